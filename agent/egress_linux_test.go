package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"offpeak"
	"offpeak/agent/driver"
	"offpeak/agent/driver/process"
	"offpeak/agent/egress"
	"offpeak/agent/supervisor"
	"offpeak/internal/require"
)

// TestEgressOutlivesTheAgent: a job's way to the network is cut while no agent is
// there, and open again with the next; with the job its socket goes.
func TestEgressOutlivesTheAgent(t *testing.T) {
	w := realWorld(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	found, err := supervisor.Probe(t.Context(), exe, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	require.Met(t, found.NoNetwork, "network namespaces")
	bash := require.Tool(t, "bash", "bash")
	w.env.Drivers = []driver.Driver{process.Driver{Exe: exe}}
	sockets := filepath.Join(t.TempDir(), "egress")
	begin := func(hosts ...string) {
		t.Helper()
		w.env.Egress, err = egress.New(egress.Config{
			Folder: sockets, Hosts: hosts, Log: slog.New(slog.DiscardHandler),
			Resolve: func(context.Context, string) ([]netip.Addr, error) { return nil, errors.New("no such host") },
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	w.join()
	begin("files.example:443")
	first := w.run()
	// A gate that nobody holds any more is of an agent that was killed.
	if err := os.MkdirAll(filepath.Join(sockets, "lease_0"), 0o700); err != nil {
		t.Fatal(err)
	}
	turn := filepath.Join(t.TempDir(), "turn")
	task := work(bash)
	task.Egress = []string{"files.example:443"}
	task.Task.Command = []string{bash, "-c", `for i in 1 2 3; do
exec 3<>/dev/tcp/127.0.0.1/3128 && printf 'CONNECT files.example:443 HTTP/1.1\r\n\r\n' >&3 && tail -n 1 <&3
exec 3>&-; while [ ! -e "$TURN.$i" ]; do sleep 0.02; done; done; echo $https_proxy`}
	task.Task.Env = map[string]string{"TURN": turn}
	w.hub.offer("lease_1", task)
	said := func(n int) string {
		w.hub.wait("another line", func() bool { return strings.Count(string(w.hub.leases["lease_1"].logs["stdout"]), "\n") >= n })
		out := ""
		w.hub.with(func() { out = strings.Split(string(w.hub.leases["lease_1"].logs["stdout"]), "\n")[n-1] })
		return out
	}
	next := func(n string) {
		t.Helper()
		if err := os.WriteFile(turn+"."+n, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const unknown = "offpeak: the name files.example is not known"
	if got := said(1); got != unknown {
		t.Errorf("with an agent: %q", got)
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(w.cfg.Data, "leases", "lease_1", "stdout.log")
	next("1")
	eventually(t, "a line without an agent", func() bool {
		data, _ := os.ReadFile(log)
		return strings.Count(string(data), "\n") == 2
	})
	begin("files.example:443")
	w.run()
	if got := said(2); !strings.Contains(got, "is away") {
		t.Errorf("without an agent: %q", got)
	}
	if _, err := os.Stat(filepath.Join(sockets, "lease_0")); err == nil {
		t.Error("what an agent left that was killed is still there")
	}
	eventually(t, "the gate", func() bool { allowed, _ := w.env.Egress.Reached("lease_1"); return len(allowed) == 1 })
	next("2")
	if got := said(3); got != unknown {
		t.Errorf("with the next agent: %q", got)
	}
	next("3")
	if got := said(4); got != "http://127.0.0.1:3128" {
		t.Errorf("https_proxy is %q", got)
	}
	if got := w.hub.ended("lease_1"); got.end.Reason != offpeak.EndCompleted {
		t.Errorf("end = %+v", got.end)
	}
	w.noLeaseFolders()
	eventually(t, "the socket's end", func() bool { list, _ := os.ReadDir(sockets); return len(list) == 0 })
	if got := w.env.Egress.Ended(); len(got) != 1 || got[0].Lease != "lease_1" || got[0].Reached[0].Refused != 1 {
		t.Errorf("the owner is told %+v", got)
	}
	// What the owner does not allow ends before it starts, and names the rule.
	task = work(bash)
	task.Egress = []string{"other.example:443"}
	w.hub.offer("lease_2", task)
	if got := w.hub.ended("lease_2"); got.end.Reason != offpeak.EndNodeError || !strings.Contains(got.end.Detail, "owner of this machine") {
		t.Errorf("end = %+v", got.end)
	}
}
