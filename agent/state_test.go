package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"offpeak"
	"offpeak/agent/presence"
	"offpeak/wire"
)

// TestTornState truncates, empties and garbles each state file in turn. The
// agent starts, or says what to do; it never trusts half a file nor trips twice.
func TestTornState(t *testing.T) {
	harms := map[string]func(data []byte) []byte{
		"truncated": func(data []byte) []byte { return data[:len(data)/2] },
		"emptied":   func([]byte) []byte { return nil },
		"zeroed":    func(data []byte) []byte { return make([]byte, len(data)) },
		"garbled":   func(data []byte) []byte { return []byte(strings.Repeat("\xff{", len(data)/2)) },
		"other":     func([]byte) []byte { return []byte("{}") },
	}
	for name, harm := range harms {
		for _, file := range []string{"node.json", "node.key", "orders.json", "policy.json", "lease.json"} {
			t.Run(file+" "+name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.script("work", untilNotice)
				w.join()
				a := w.run()
				w.hub.offer("lease_1", work("work"))
				w.hub.wait("running", func() bool { return w.hub.leases["lease_1"].desired.State == offpeak.LeaseRunning })
				if _, err := Tell(t.Context(), w.cfg.Data, OrderResume, 0); err != nil {
					t.Fatal(err)
				}
				if _, err := TellPolicy(t.Context(), w.cfg.Data, presence.DefaultPolicy()); err != nil {
					t.Fatal(err)
				}
				if err := a.stop(); err != nil {
					t.Fatal(err)
				}
				path := filepath.Join(w.cfg.Data, file)
				if file == "lease.json" {
					path = filepath.Join(w.cfg.Data, "leases", "lease_1", file)
				}
				data, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, harm(data), 0o600); err != nil {
					t.Fatal(err)
				}
				switch file {
				case "node.json":
					if err := w.run().wait(); !errors.Is(err, ErrIdentityLost) {
						t.Fatalf("run = %v, want ErrIdentityLost", err)
					}
					if err := w.run().wait(); !errors.Is(err, ErrIdentityLost) {
						t.Fatalf("second run = %v, want ErrIdentityLost", err)
					}
					// The key makes it the same node again, and the job goes on.
					w.join()
				case "node.key":
					if err := w.run().wait(); err == nil || !strings.Contains(err.Error(), "agent join") {
						t.Fatalf("run = %v, want what to do", err)
					}
					return
				case "lease.json":
					// Nobody can tell any more whose job that is: it is killed, and
					// the heartbeat says that the lease is not held.
					w.hub.with(func() { w.hub.endLocked(w.hub.leases["lease_1"], wire.Report{Reason: offpeak.EndNodeRestarted}) })
					a := w.run()
					eventually(t, "connected", func() bool { return w.status().Connected })
					w.noLeaseFolders()
					w.hub.wait("no lease held", func() bool {
						b := w.hub.beats[len(w.hub.beats)-1]
						return b.Incarnation == a.link.Incarnation() && len(b.Held) == 0
					})
					w.sups.waitKilled()
					return
				}
				w.run()
				w.hub.stop("lease_1", offpeak.EndOutbid)
				if got := w.hub.ended("lease_1"); got.end.Reason != offpeak.EndOutbid {
					t.Errorf("end = %+v", got.end)
				}
			})
		}
	}
}

// TestIncarnationsThatWaitForAnAnswer: sessions whose opening was answered to
// nobody are claimed by the next agents, a copy of the disk is not.
func TestIncarnationsThatWaitForAnAnswer(t *testing.T) {
	w := newWorld(t)
	w.join()
	for range 3 {
		w.hub.with(func() {
			w.hub.faults = func(path string) fault {
				if path == "session" {
					return lostAnswer
				}
				return delivered
			}
		})
		a := w.run()
		n := 0
		w.hub.with(func() { n = w.hub.calls["session"] })
		w.hub.wait("two tries", func() bool { return w.hub.calls["session"] > n+2 })
		if err := a.stop(); err != nil {
			t.Fatal(err)
		}
	}
	copied := t.TempDir()
	if err := os.CopyFS(copied, os.DirFS(w.cfg.Data)); err != nil {
		t.Fatal(err)
	}
	w.hub.with(func() { w.hub.faults = nil })
	w.run()
	eventually(t, "connected", func() bool { return w.status().Connected })

	clone := *w
	clone.cfg.Data = copied
	clone.run()
	eventually(t, "conflict", func() bool { return clone.status().Conflict })
}
