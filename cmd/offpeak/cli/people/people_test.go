package people

import (
	"path/filepath"
	"strings"
	"testing"

	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/world"
)

// The last job is that of the grid that a command goes to, by whatever way it is found.
func TestLastJobs(t *testing.T) {
	home := t.TempDir()
	contexts := remote.Contexts{Current: "lab", Contexts: []remote.Target{
		{Name: "lab", Hubs: []string{"http://127.0.0.1:1"}, Token: "t1"},
		{Name: "../club", Hubs: []string{"http://127.0.0.1:2"}, Token: "t2"},
	}}
	if err := contexts.Save(filepath.Join(home, "contexts.yaml")); err != nil {
		t.Fatal(err)
	}
	from := func(context, hub string) *client {
		vars := map[string]string{"OFFPEAK_HOME": home, "OFFPEAK_HUB": hub}
		c := &client{context: context, env: world.Env{Stderr: t.Output(), Getenv: func(name string) string { return vars[name] }}}
		if err := c.dial(); err != nil {
			t.Fatal(err)
		}
		return c
	}
	ways := []struct{ context, hub, job string }{
		{"", "", "job_lab"}, {"../club", "", "job_club"}, {"", "http://127.0.0.1:3", "job_env"},
		// The same by other ways.
		{"lab", "http://127.0.0.1:3", "job_lab"}, {"", "http://127.0.0.1:2", "job_club"},
	}
	for i, w := range ways {
		got, err := from(w.context, w.hub).job(t.Context(), "-")
		if first := i < 3; first != (err != nil) || !first && string(got) != w.job {
			t.Errorf("%+v: %q, %v", w, got, err)
		}
		from(w.context, w.hub).remember(w.job)
	}
	for _, w := range ways {
		if got, err := from(w.context, w.hub).job(t.Context(), "-"); err != nil || string(got) != w.job {
			t.Errorf("%+v: %q, %v", w, got, err)
		}
	}
}

func TestPick(t *testing.T) {
	ids, names := []string{"node_01a", "node_01b", "node_02a"}, []string{"tower", "laptop", "tower"}
	for _, tt := range []struct{ ref, want, err string }{
		{"node_01b", "node_01b", ""}, {"laptop", "node_01b", ""}, {"1b", "node_01b", ""},
		{"tower", "", "fits 2 of them"}, {"node_01", "", "fits 2 of them"}, {"", "", "not found"}, {"x", "", "not found"},
	} {
		got, err := pick("NODE", tt.ref, ids, names)
		if got != tt.want || (err == nil) != (tt.err == "") || (err != nil && !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("pick(%q) = %q, %v", tt.ref, got, err)
		}
	}
}
