package agent

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"offpeak"
	"offpeak/internal/require"
	"offpeak/wire"
)

// smallDisk is a world whose data folder lies on a disk of 64 MiB.
func smallDisk(t *testing.T) *world {
	w := realWorld(t)
	require.Met(t, unix.Mount("tmpfs", w.cfg.Data, "tmpfs", 0, "size=64m"), "root, to mount a small disk")
	t.Cleanup(func() { _ = unix.Unmount(w.cfg.Data, unix.MNT_DETACH) })
	w.env.Free = freeBytes
	w.cfg.Times.DiskPause = 50 * time.Millisecond
	return w
}

func freeOf(t *testing.T, w *world) offpeak.Bytes {
	t.Helper()
	free, err := freeBytes(w.cfg.Data)
	if err != nil {
		t.Fatal(err)
	}
	return free
}

// noise is data that no compression makes small.
func noise(size offpeak.Bytes) string {
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	return string(data)
}

// deceived is an agent on a small disk that believes it to be large, connected.
func deceived(t *testing.T) *world {
	t.Helper()
	w := smallDisk(t)
	w.env.Free = func(string) (offpeak.Bytes, error) { return offpeak.TiB, nil }
	w.join()
	w.run()
	eventually(t, "connected", func() bool { return w.status().Connected })
	return w
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	w := smallDisk(t)
	w.join()
	w.run()
	eventually(t, "connected", func() bool { return w.status().Connected })
	atFirst := freeOf(t, w)
	input := w.hub.store(map[string]string{"big": noise(80 * offpeak.MiB)})

	// What does not fit is handed back before a byte of it is fetched.
	task := work("/bin/true")
	task.Task.Input, task.Resources.Disk = input, 100*offpeak.MiB
	w.hub.offer("lease_1", task)
	got := w.hub.ended("lease_1")
	if got.end.Reason != offpeak.EndDeclined || !strings.Contains(got.end.Detail, "100MiB wanted") || !strings.Contains(got.end.Detail, "free on the node's disk") {
		t.Errorf("end = %+v", got.end)
	}
	w.hub.with(func() {
		if n := w.hub.calls["download"]; n != 0 {
			t.Errorf("%d blobs were fetched for an input that does not fit", n)
		}
	})
	// The last beat may be from before the decline: it is in use for a while first.
	inUse := func(hb wire.Heartbeat) bool { return hb.Availability == offpeak.NodeInUse }
	w.hub.wait("available again", func() bool {
		return slices.ContainsFunc(w.hub.beats, inUse) && !inUse(w.hub.beats[len(w.hub.beats)-1])
	})

	// A job fills the disk, and stays or fails of it: the disk limit is the reason.
	for id, command := range map[offpeak.LeaseID]string{"lease_2": "dd if=/dev/zero of=f bs=1M; sleep 60", "lease_3": "dd if=/dev/zero of=f bs=1M"} {
		filler := work("/bin/sh")
		filler.Task.Command = []string{"/bin/sh", "-c", command}
		filler.Resources.Disk = 40 * offpeak.MiB
		w.hub.offer(id, filler)
		w.hub.wait("it to run", func() bool { return len(w.hub.leases[id].kinds) > 0 })
		beats := 0
		w.hub.with(func() { beats = len(w.hub.beats) })
		if got := w.hub.ended(id); got.end.Reason != offpeak.EndDiskLimit || !strings.Contains(got.end.Detail, "40MiB") {
			t.Errorf("%s: end = %+v", command, got.end)
		}
		w.hub.wait("heartbeats", func() bool { return len(w.hub.beats) > beats })
		w.noLeaseFolders()
	}

	// An input that turns out not to fit is the node's fault, and goes away again.
	w.hub.with(func() { w.hub.calls["download"] = 0 })
	if free := freeOf(t, w); free < atFirst-2*offpeak.MiB {
		t.Errorf("%s free, %s at first", free, atFirst)
	}
	w.hub.offer("lease_4", small(work("/bin/true")))
	if got := w.hub.ended("lease_4"); got.end.Reason != offpeak.EndCompleted {
		t.Errorf("a job after the disk was full: %+v", got.end)
	}
	if _, err := Tell(t.Context(), w.cfg.Data, OrderPause, 0); err != nil {
		t.Errorf("keep an order: %v", err)
	}
}

// TestDiskThatFillsInACheckpoint: the node's disk is full when a job is half-way
// through a checkpoint. The half is not stored, the job hears of its end though
// there is no room for the notice, and the next attempt has the whole one before.
func TestDiskThatFillsInACheckpoint(t *testing.T) {
	t.Parallel()
	w := deceived(t)
	atFirst := freeOf(t, w)
	task := work("/bin/sh")
	task.Task.Command = []string{"/bin/sh", "-c", `trap 'echo told; exit 9' TERM; cd "$OFFPEAK_CHECKPOINT_DIR"
		echo whole >1.part && mv 1.part 1
		until [ -e "$GO" ]; do sleep 0.02; done
		dd if=/dev/zero of=2.part bs=64k 2>/dev/null || echo full; while :; do sleep 0.02; done`}
	gate := filepath.Join(t.TempDir(), "go")
	task.Task.Env = map[string]string{"GO": gate}
	task.Task.Checkpoint.Every = offpeak.Duration(10 * time.Millisecond)
	task.Resources.Disk = 60 * offpeak.MiB
	// Somebody else fills the rest: the job stays below its own limit.
	if err := os.WriteFile(filepath.Join(w.cfg.Data, "others"), make([]byte, 20*offpeak.MiB), 0o600); err != nil {
		t.Fatal(err)
	}
	w.hub.offer("lease_1", task)
	w.hub.wait("the whole checkpoint", func() bool { return len(w.hub.leases["lease_1"].checks) == 1 })
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a full disk", func() bool { return freeOf(t, w) < 64*offpeak.KiB })
	beats := 0
	w.hub.with(func() { beats = len(w.hub.beats) })
	w.hub.wait("heartbeats", func() bool { return len(w.hub.beats) > beats+3 })
	w.hub.stop("lease_1", offpeak.EndDrained)
	got := w.hub.ended("lease_1")
	if got.end.Reason != offpeak.EndDrained || got.end.ExitCode == nil || *got.end.ExitCode != 9 {
		t.Errorf("end = %+v", got.end)
	}
	if len(got.checks) != 1 || got.checks[0].Name != "1" {
		t.Errorf("checkpoints = %+v", got.checks)
	}
	w.noLeaseFolders()
	if free := freeOf(t, w); free < atFirst-21*offpeak.MiB {
		t.Errorf("%s free, %s before, 20 MiB are others'", free, atFirst)
	}
	again := work("/bin/sh")
	again.Task.Command = []string{"/bin/sh", "-c", `cat "$OFFPEAK_CHECKPOINT_DIR/1"`}
	again.Checkpoints = []offpeak.Checkpoint{{ID: 1, Name: "1", Tree: got.checks[0].Tree}}
	w.hub.offer("lease_2", again)
	if got := w.hub.ended("lease_2"); got.end.Reason != offpeak.EndCompleted || string(got.logs["stdout"]) != "whole\n" {
		t.Errorf("end = %+v, log %q", got.end, got.logs["stdout"])
	}
}

func small(w wire.Work) wire.Work {
	w.Resources.Disk = offpeak.MiB
	return w
}

func TestDiskThatFillsWhileFetching(t *testing.T) {
	t.Parallel()
	w := deceived(t)
	before := freeOf(t, w)
	task := work("/bin/true")
	task.Task.Input = w.hub.store(map[string]string{"big": noise(80 * offpeak.MiB)})
	w.hub.offer("lease_1", task)
	if got := w.hub.ended("lease_1"); got.end.Reason != offpeak.EndNodeDiskFull {
		t.Errorf("end = %+v", got.end)
	}
	w.noLeaseFolders()
	if free := freeOf(t, w); free < before-offpeak.MiB {
		t.Errorf("%s free, %s before", free, before)
	}
}

func TestDiskLimit(t *testing.T) {
	t.Parallel()
	w := realWorld(t)
	w.join()
	w.run()
	task := work("/bin/sh")
	task.Task.Command = []string{"/bin/sh", "-c", "dd if=/dev/zero of=f bs=1M count=8; sleep 60"}
	task.Resources.Disk = 4 * offpeak.MiB
	w.hub.offer("lease_1", task)
	if got := w.hub.ended("lease_1"); got.end.Reason != offpeak.EndDiskLimit || !strings.Contains(got.end.Detail, "4MiB") {
		t.Errorf("end = %+v", got.end)
	}
	w.noLeaseFolders()
}
