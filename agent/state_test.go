package agent

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"offpeak"
	"offpeak/agent/link"
	"offpeak/internal/require"
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
		for _, file := range []string{"node.json", "node.key", "orders.json", "lease.json"} {
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
					w.hub.with(func() { w.hub.gen = 0 })
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

func TestWriteIsWholeOrNot(t *testing.T) {
	w := newWorld(t)
	f, err := openFolder(w.cfg.Data, w.env.Log)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.write("orders.json", orders{Paused: true}, true); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(f.at("orders.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode = %v, %v", info.Mode(), err)
	}
	// A disk that refuses the new file leaves the old one as it was.
	if err := os.Mkdir(f.at("orders.json.tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := f.write("orders.json", orders{}, true); err == nil {
		t.Error("write over a folder succeeded")
	}
	if !f.orders().Paused {
		t.Error("the old file is gone")
	}
	if _, err := os.Stat(f.at("orders.json.bad")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a whole file was set aside")
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

// TestFullDiskKeepsTheNode: the node's own state is written from what was set
// aside, once jobs have filled the disk.
func TestFullDiskKeepsTheNode(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	require.Met(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"), "root, to mount a small disk")
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	f, err := openFolder(dir, w.env.Log)
	if err != nil {
		t.Fatal(err)
	}
	full := bytes.Repeat([]byte{1}, 4096)
	filler, err := os.Create(f.at("filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer filler.Close()
	for err == nil {
		_, err = filler.Write(full)
	}
	if err := f.write("leases/x", orders{}, false); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("write on a full disk = %v", err)
	}
	if err := f.write("node.json", link.Identity{Node: "node_1"}, true); err != nil {
		t.Errorf("write the identity: %v", err)
	}
}
