package state

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"offpeak/agent/link"
	"offpeak/internal/require"
)

func TestWriteIsWholeOrNot(t *testing.T) {
	f, err := Open(t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.write("orders.json", Orders{Paused: true}, true); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(f.At("orders.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode = %v, %v", info.Mode(), err)
	}
	// A disk that refuses the new file leaves the old one as it was.
	if err := os.Mkdir(f.At("orders.json.tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := f.write("orders.json", Orders{}, true); err == nil {
		t.Error("write over a folder succeeded")
	}
	if !f.Orders().Paused {
		t.Error("the old file is gone")
	}
	if _, err := os.Stat(f.At("orders.json.bad")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a whole file was set aside")
	}
}

// TestFullDiskKeepsTheNode: the node's own state is written from what was set
// aside, once jobs have filled the disk.
func TestFullDiskKeepsTheNode(t *testing.T) {
	dir := t.TempDir()
	require.Met(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"), "root, to mount a small disk")
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	f, err := Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	full := bytes.Repeat([]byte{1}, 4096)
	filler, err := os.Create(f.At("filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer filler.Close()
	for err == nil {
		_, err = filler.Write(full)
	}
	if err := f.write("leases/x", Orders{}, false); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("write on a full disk = %v", err)
	}
	if err := f.write("node.json", link.Identity{Node: "node_1"}, true); err != nil {
		t.Errorf("write the identity: %v", err)
	}
}

// TestLockIsFreeWhenLetGo: also while something that was just forked still has
// the file open.
func TestLockIsFreeWhenLetGo(t *testing.T) {
	f, err := Open(t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	unlock, err := f.Lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Lock(); !errors.Is(err, ErrBusy) {
		t.Errorf("a second lock = %v", err)
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); to == f.At("lock") {
			n, err := strconv.Atoi(fd.Name())
			if err != nil {
				t.Fatal(err)
			}
			forked, err := unix.Dup(n)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(forked)
		}
	}
	unlock()
	again, err := f.Lock()
	if err != nil {
		t.Fatalf("lock after it was let go: %v", err)
	}
	again()
}
