package cli

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "modernc.org/sqlite"

	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

// rows counts the rows of every table of a hub's database.
func rows(t *testing.T, path string) map[string]int {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?mode=ro&_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	list, err := db.QueryContext(t.Context(), `SELECT name FROM sqlite_master WHERE type = 'table'`)
	if err != nil {
		t.Fatal(err)
	}
	defer list.Close()
	var names []string
	for list.Next() {
		var name string
		if err := list.Scan(&name); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	if err := list.Err(); err != nil || len(names) < 10 {
		t.Fatalf("tables %v, %v", names, err)
	}
	out := map[string]int{}
	for _, name := range names {
		n := 0
		if err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM "`+name+`"`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		out[name] = n
	}
	return out
}

// Bad input is refused with the field and the rule, exit code 2 from the
// command and 4xx from the API, and not one row of the hub is different after.
func TestBadInputChangesNothing(t *testing.T) {
	home := t.TempDir()
	h := startHub(t, home, "--heartbeat", "1m", "--timeout", "3m")
	l := localFile(t, home)
	vars := map[string]string{"OFFPEAK_HOME": home}
	db := filepath.Join(home, "hub", "offpeak.db")
	elsewhere := filepath.Join(t.TempDir(), "big.yaml")
	if err := os.WriteFile(elsewhere, []byte("task: {command: [x]}\nname: "+strings.Repeat("a", 2<<20)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// One of each role and kind, so that there is something to count.
	if code, _, stderr := once(t, home, "submit", "--name", "名前-😀-é-é-שלום", "--vram", "24GB", "--", "true"); code != 0 {
		t.Fatalf("names of all scripts are good: exit code %d, %s", code, stderr)
	}
	before := rows(t, db)
	const task = `"task":{"driver":"process","command":["true"]}`
	for _, tt := range []struct {
		name string
		// args is the command line, file a job file for -f, body the request: ""
		// where there is no such way to say it.
		args, file, body string
		// flag and field are what the command and the API name, rule what both say.
		flag, field, rule string
	}{
		{"unknown field", "submit", "task: {command: [x]}\nrequirments: {}", `{` + task + `,"requirments":{}}`, "requirments", "requirments", ""},
		{"unknown field inside", "submit", "task: {command: [x], comand: y}", `{"task":{"driver":"process","command":["x"],"comand":"y"}}`, "task.comand", "task.comand", ""},
		{"unknown flag", "submit --vrma 24GB -- x", "", "", "--vrma", "", "unknown flag"},
		{"a unit that is none", "submit --vram 24GBB -- x", "", `{` + task + `,"requirements":{"gpus":[{"vram_bytes":"24GBB"}]}}`, "--vram", "requirements.gpus[0].vram_bytes", "a size is a number with a unit"},
		{"a unit that is none, in a file", "submit", "task: {command: [x]}\nrequirements: {memory_bytes: 24GBB}", "", "requirements.memory_bytes", "", "a size"},
		{"negative size", "submit --memory=-1GB -- x", "", `{` + task + `,"requirements":{"memory_bytes":-5}}`, "--memory", "requirements.memory_bytes", "a size"},
		{"size that is not a number", "submit --disk NaN -- x", "", `{` + task + `,"requirements":{"disk_bytes":"NaN"}}`, "--disk", "requirements.disk_bytes", "a size"},
		{"infinite size", "submit --disk Inf -- x", "", `{` + task + `,"requirements":{"disk_bytes":"Inf"}}`, "--disk", "requirements.disk_bytes", "a size"},
		{"size over the limit", "submit --memory 1025TiB -- x", "", `{` + task + `,"requirements":{"memory_bytes":"1025TiB"}}`, "--memory", "requirements.memory_bytes", "1024TiB"},
		{"cores that are not a number", "submit --cpu NaN -- x", "", `{` + task + `,"requirements":{"cpu_milli":NaN}}`, "--cpu", "body", ""},
		{"infinite cores", "submit --cpu Inf -- x", "", `{` + task + `,"requirements":{"cpu_milli":1e999}}`, "--cpu", "requirements.cpu_milli", ""},
		{"too many cores", "submit --cpu 4097 -- x", "", `{` + task + `,"requirements":{"cpu_milli":99999999999}}`, "--cpu", "requirements.cpu_milli", ""},
		{"price that is not a number", "submit --max-price NaN -- x", "", `{` + task + `,"requirements":{"max_price":"NaN"}}`, "--max-price", "requirements.max_price", ""},
		{"negative price", "submit --max-price=-1 -- x", "", `{` + task + `,"requirements":{"max_price":-1}}`, "--max-price", "requirements.max_price", ""},
		{"negative time", "submit --time-limit=-5s -- x", "", `{` + task + `,"limits":{"time":"-5s"}}`, "--time-limit", "limits.time", "a duration"},
		{"time without end", "submit --time-limit Inf -- x", "", `{` + task + `,"limits":{"time":"Inf"}}`, "--time-limit", "limits.time", "a duration"},
		{"negative retries", "submit --retries=-1 -- x", "", `{` + task + `,"retry":{"user":-1}}`, "--retries", "retry.user", "is from 0"},
		{"too many GPUs", "submit --gpus 17 -- x", "", `{` + task + `,"requirements":{"gpus":[` + strings.TrimSuffix(strings.Repeat("{},", 17), ",") + `]}}`, "--gpus", "requirements.gpus", ""},
		{"a name of control bytes", "submit", "name: \"\\a\\e[2J\"\ntask: {command: [x]}", `{` + task + `,"name":"\u0007\u001b[2J"}`, "name", "name", "printable"},
		{"a name that turns around", "submit --name a\u202eb -- x", "", `{` + task + `,"name":"a\u202eb"}`, "name", "name", "printable"},
		{"a name that is not UTF-8", "submit --name a\xff -- x", "", "", "name", "", "UTF-8"},
		{"a name that is too long", "submit --name " + strings.Repeat("é", 100) + " -- x", "", `{` + task + `,"name":"` + strings.Repeat("é", 100) + `"}`, "name", "name", "bytes"},
		{"2 MiB", "submit -f " + elsewhere, "", `{` + task + `,"name":"` + strings.Repeat("x", 2<<20) + `"}`, "big.yaml", "", "1MiB"},
		{"unknown driver", "submit --driver docker -- x", "", `{"task":{"driver":"docker","command":["true"]}}`, "--driver", "task.driver", "process or wasm"},
		{"checkpoints at the root", "submit --checkpoint-dir /etc -- x", "", `{"task":{"driver":"process","command":["true"],"checkpoint":{"dir":"/etc"}}}`, "--checkpoint-dir", "task.checkpoint.dir", "inside the job's folder"},
		{"checkpoints outside", "submit --checkpoint-dir a/../../b -- x", "", `{"task":{"driver":"process","command":["true"],"checkpoint":{"dir":"a/../../b"}}}`, "--checkpoint-dir", "task.checkpoint.dir", "inside the job's folder"},
		{"outputs outside", "submit --output ../x -- x", "", `{"task":{"driver":"process","command":["true"],"outputs":["../x"]}}`, "--output", "task.outputs[0]", "inside"},
		{"nothing to run", "submit", "name: a", `{"task":{"driver":"process","command":[]}}`, "no command", "task.command", ""},
		{"no such input", "submit --input " + filepath.Join(home, "nowhere") + " -- x", "", `{"task":{"driver":"process","command":["x"],"input":"nowhere"}}`, "--input", "task.input", ""},
		{"unknown role", "token create --role king", "", "", "role", "", ""},
		{"quota that is none", "account create lab --storage 5XB", "", "", "--storage", "", "a size"},
		{"an account without a name", "account create \x07", "", "", "NAME", "", "printable"},
		{"a backup that is not absolute", "backup here", "", "", "PATH", "", "absolute"},
		{"no argument", "cancel", "", "", "cancel --help", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			env := Env{Stdin: strings.NewReader(tt.file), Stdout: &stdout, Stderr: &stderr, Getenv: func(k string) string { return vars[k] }}
			args := strings.Fields(tt.args)
			if strings.Contains(tt.args, "\x07") {
				args = strings.Split(tt.args, " ")
			}
			if tt.file != "" {
				args = append(args, "-f", "-")
			}
			code := Main(t.Context(), args, env)
			if said := stderr.String(); code != world.ExitUsage || !strings.Contains(said, tt.flag) || !strings.Contains(said, tt.rule) || stdout.Len() > 0 {
				t.Errorf("exit code %d, want 2; said %q, want %q and %q; printed %q", code, said, tt.flag, tt.rule, stdout.String())
			}
			if strings.ContainsAny(stderr.String(), "\x07\x1b\u202e") {
				t.Errorf("control bytes reach the terminal: %q", stderr.String())
			}
			if tt.body == "" {
				return
			}
			status, p := post(t, l, tt.body)
			ok := tt.field == ""
			for _, f := range p.Errors {
				ok = ok || f.Location == tt.field && strings.Contains(f.Message, tt.rule)
			}
			if status < 400 || status >= 500 || !ok || p.Next == "" {
				t.Errorf("the API answered %d %+v, want one of %s that says %q", status, p, tt.field, tt.rule)
			}
		})
	}
	if after := rows(t, db); !maps.Equal(before, after) {
		t.Errorf("rows before %v, after %v", before, after)
	}
	h.stop()
}

// post submits a body and returns the problem that it must be answered with.
func post(t *testing.T, l wire.Local, body string) (int, wire.Problem) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, l.Hubs[0]+"/v1/jobs", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+l.Token)
	req.Header.Set(wire.HeaderOperation, fmt.Sprintf("op-%d", len(body)))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var p wire.Problem
	if kind := resp.Header.Get("Content-Type"); kind != "application/problem+json" || json.Unmarshal(data, &p) != nil {
		t.Errorf("answered as %s: %s", kind, data)
	}
	return resp.StatusCode, p
}

// A proxy of the environment is for hubs elsewhere: what is on this machine is
// spoken to directly, over TLS as well.
func TestProxyIsForRemoteHubs(t *testing.T) {
	home := t.TempDir()
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	asked := make(chan string, 100)
	go func() {
		for {
			conn, err := proxy.Accept()
			if err != nil {
				return
			}
			line := make([]byte, 64)
			n, _ := conn.Read(line)
			asked <- string(line[:n])
			_, _ = io.WriteString(conn, "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
			conn.Close()
		}
	}()
	run := func(extra ...string) (string, error) {
		cmd := offpeakCommand(t, home, "whoami")
		cmd.Env = append(cmd.Env, "HTTPS_PROXY=http://"+proxy.Addr().String(), "HTTP_PROXY=http://"+proxy.Addr().String(), "NO_PROXY=")
		cmd.Env = append(cmd.Env, extra...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, args := range [][]string{nil, {"--tls"}} {
		h := startHub(t, home, args...)
		if out, err := run(); err != nil {
			t.Errorf("on loopback: %v: %s", err, out)
		}
		h.stop()
	}
	select {
	case line := <-asked:
		t.Errorf("the proxy was asked for a hub on loopback: %q", line)
	default:
	}
	if out, err := run("OFFPEAK_HUB=https://hub.example.test:7070", "OFFPEAK_TOKEN=x"); err == nil {
		t.Errorf("a proxy that refuses: %s", out)
	}
	select {
	case line := <-asked:
		if !strings.HasPrefix(line, "CONNECT hub.example.test:7070 ") {
			t.Errorf("the proxy was asked for %q", line)
		}
	default:
		t.Error("the proxy was not asked for a hub elsewhere")
	}
}
