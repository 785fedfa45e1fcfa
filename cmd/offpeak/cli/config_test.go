package cli

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"offpeak/cmd/offpeak/cli/world"

	"github.com/spf13/pflag"
)

func TestConfigure(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hub.yaml")
	err := os.WriteFile(file, []byte("listen: from-file:1\ndata: from-file\nheartbeat: 3s\nrate: 7\nadvertise: [https://a.example, https://b.example]\n"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"OFFPEAK_DATA": "from-env", "OFFPEAK_LISTEN": "from-env:1", "OFFPEAK_HOME": "/elsewhere"}
	flags := pflag.NewFlagSet("hub", pflag.ContinueOnError)
	listen := flags.String("listen", "default", "")
	data := flags.String("data", "default", "")
	beat := flags.Duration("heartbeat", 5*time.Second, "")
	tick := flags.Duration("tick", time.Second, "")
	rate := flags.Float64("rate", 1, "")
	advertise := flags.StringSlice("advertise", nil, "")
	if err := flags.Parse([]string{"--listen", "from-flag:1"}); err != nil {
		t.Fatal(err)
	}
	if err := configure(flags, file, "", func(k string) string { return env[k] }); err != nil {
		t.Fatal(err)
	}
	if *listen != "from-flag:1" || *data != "from-env" || *beat != 3*time.Second || *tick != time.Second || *rate != 7 || len(*advertise) != 2 || (*advertise)[1] != "https://b.example" {
		t.Errorf("listen %s, data %s, heartbeat %v, tick %v, rate %v, advertise %q", *listen, *data, *beat, *tick, *rate, *advertise)
	}
}

func TestConfigureNamesWhatIsWrong(t *testing.T) {
	for _, tc := range []struct {
		name, file string
		env        map[string]string
		say        string
	}{
		{"a key that is none", "listne: x\n", nil, `"listne" is not known`},
		{"a value in the file", "heartbeat: soon\n", nil, "hub.yaml: heartbeat"},
		{"a value in the environment", "", map[string]string{"OFFPEAK_HEARTBEAT": "soon"}, "OFFPEAK_HEARTBEAT"},
		{"no YAML", "{", nil, "hub.yaml"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "hub.yaml")
			if err := os.WriteFile(file, []byte(tc.file), 0o600); err != nil {
				t.Fatal(err)
			}
			flags := pflag.NewFlagSet("hub", pflag.ContinueOnError)
			flags.Duration("heartbeat", time.Second, "")
			err := configure(flags, "", file, func(k string) string { return tc.env[k] })
			exit, ok := errors.AsType[*world.ExitError](err)
			if !ok || exit.Code != 2 || !strings.Contains(err.Error(), tc.say) {
				t.Errorf("%v, want exit 2 and %q", err, tc.say)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	code, out, _ := once(t, t.TempDir(), "version")
	if code != 0 || !strings.HasPrefix(out, "offpeak 1.2.3-test") || strings.Count(out, "\n") != 1 {
		t.Errorf("exit %d: %s", code, out)
	}
	code, out, _ = once(t, t.TempDir(), "version", "-o", "json")
	var b world.Build
	if err := json.Unmarshal([]byte(out), &b); code != 0 || err != nil || b.Version != "1.2.3-test" || b.Go == "" || b.OS == "" || b.Arch == "" || b.Protocol != 1 {
		t.Errorf("exit %d: %s", code, out)
	}
	if code, _, errs := once(t, t.TempDir(), "version", "-o", "xml"); code != 2 || !strings.Contains(errs, "table or json") {
		t.Errorf("exit %d: %s", code, errs)
	}
}
