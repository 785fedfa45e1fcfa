package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"offpeak"
	"offpeak/agent/hardware"
	"offpeak/wire"
)

// hold is a process that takes memory of a made-up device until its input ends,
// or somebody kills it.
func hold(device, bytes string) int {
	n, err := strconv.ParseInt(bytes, 10, 64)
	if err != nil {
		return 3
	}
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return 4
	}
	if _, err := f.Seek(n, io.SeekStart); err != nil {
		return 5
	}
	fmt.Println("holds", n)
	_, _ = io.Copy(io.Discard, os.Stdin)
	time.Sleep(time.Hour)
	return 0
}

// rig is a folder of made-up devices.
type rig struct {
	t   testing.TB
	dir string
}

func newRig(t testing.TB, sizes ...offpeak.Bytes) rig {
	t.Helper()
	r := rig{t, t.TempDir()}
	for i, size := range sizes {
		d, err := json.Marshal(offpeak.Device{ID: offpeak.DeviceID(fmt.Sprintf("GPU-fake-%d", i)), Vendor: "nvidia", Model: "Made Up", VRAM: size})
		if err != nil {
			t.Fatal(err)
		}
		r.write(fmt.Sprintf("gpu%d.json", i), string(d))
		r.write(fmt.Sprintf("gpu%d.dev", i), "")
	}
	return r
}

func (r rig) write(name, text string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (r rig) device(i int) string { return filepath.Join(r.dir, fmt.Sprintf("gpu%d.dev", i)) }

// take is somebody else's process that takes memory.
func (r rig) take(i int, n offpeak.Bytes) (stop func()) {
	r.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.Command(exe, "hold", r.device(i), strconv.FormatInt(int64(n), 10))
	in, err := cmd.StdinPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	stop = func() { in.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() }
	r.t.Cleanup(stop)
	return stop
}

// holding is the work of a job that takes memory of one of a rig's devices.
func (r rig) holding(i int, asks, takes offpeak.Bytes) wire.Work {
	exe, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	w := work(exe)
	w.Task.Command = []string{exe, "hold", r.device(i), strconv.FormatInt(int64(takes), 10)}
	w.Resources.Devices = []offpeak.DeviceID{offpeak.DeviceID(fmt.Sprintf("GPU-fake-%d", i))}
	w.VRAM = []offpeak.Bytes{asks}
	return w
}

func (w *world) fit(r rig) {
	w.env.Measure = hardware.NewMeter(hardware.Sources{Fake: r.dir}).Measure
	w.cfg.Times.Devices, w.cfg.Times.Watch, w.cfg.Times.Readings = 200*time.Millisecond, 100*time.Millisecond, 200*time.Millisecond
}

// vram is what the newest inventory offers of a device, -1 if it is not there.
func (h *fakeHub) vram(i int) offpeak.Bytes {
	if len(h.surveys) == 0 {
		return -1
	}
	inv := h.surveys[len(h.surveys)-1]
	for _, d := range inv.Devices {
		if d.ID == offpeak.DeviceID(fmt.Sprintf("GPU-fake-%d", i)) {
			return d.VRAM
		}
	}
	return -1
}

// A job that takes more than its --vram ends within 2 s, by its own reason; its
// neighbour goes on, and so does the one whose agent was replaced.
func TestVRAMLimit(t *testing.T) {
	w := realWorld(t)
	r := newRig(t, 8*offpeak.GiB, 8*offpeak.GiB, 8*offpeak.GiB)
	w.fit(r)
	w.join()
	first := w.run()
	for i, takes := range []offpeak.Bytes{4 * offpeak.GiB, 3 * offpeak.GiB} {
		w.hub.offer(offpeak.LeaseID(fmt.Sprintf("lease_%d", i)), r.holding(i, 4*offpeak.GiB, takes))
	}
	began := time.Now()
	w.hub.offer("lease_2", r.holding(2, 4*offpeak.GiB, 4*offpeak.GiB+1))
	got := w.hub.ended("lease_2")
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("ended after %s", took)
	}
	if got.end.Reason != offpeak.EndVRAMLimit || !strings.Contains(got.end.Detail, "of the 4GiB that it asked for on Made Up") {
		t.Errorf("ended as %s: %s", got.end.Reason, got.end.Detail)
	}
	// What the jobs hold is not held by others.
	w.hub.wait("both neighbours to hold their memory", func() bool {
		n := len(w.hub.readings)
		return n > 0 && len(w.hub.readings[n-1]) == 3 && *w.hub.readings[n-1][0].Used == 4*offpeak.GiB && *w.hub.readings[n-1][1].Used == 3*offpeak.GiB
	})
	w.hub.with(func() {
		for i := range 3 {
			if got := w.hub.vram(i); got != 8*offpeak.GiB {
				t.Errorf("device %d offers %s, want all of it", i, got)
			}
		}
		for i := range 2 {
			if end := w.hub.leases[offpeak.LeaseID(fmt.Sprintf("lease_%d", i))].end; end.Reason != "" {
				t.Errorf("neighbour %d ended as %s: %s", i, end.Reason, end.Detail)
			}
		}
	})
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	w.run()
	w.hub.stop("lease_0", offpeak.EndDrained)
	w.hub.ended("lease_0")
	w.hub.with(func() {
		if end := w.hub.leases["lease_1"].end; end.Reason != "" {
			t.Errorf("the adopted job ended as %s: %s", end.Reason, end.Detail)
		}
		if got := w.hub.vram(1); got != 8*offpeak.GiB {
			t.Errorf("with an adopted job the device offers %s", got)
		}
	})
}

// A game takes memory: the next look tells the hub that less is to be had.
func TestOthersTakeVRAM(t *testing.T) {
	w := realWorld(t)
	r := newRig(t, 24*offpeak.GiB)
	r.write("gpu0.temperature", "61\n")
	w.fit(r)
	w.join()
	w.run()
	w.hub.wait("the whole device", func() bool { return w.hub.vram(0) == 24*offpeak.GiB })
	r.take(0, 10*offpeak.GiB)
	w.hub.wait("the device less a game", func() bool { return w.hub.vram(0) > 12*offpeak.GiB && w.hub.vram(0) < 14*offpeak.GiB })
	w.hub.wait("its heat", func() bool {
		n := len(w.hub.readings)
		return n > 0 && *w.hub.readings[n-1][0].Temperature == 61 && *w.hub.readings[n-1][0].Others == 10*offpeak.GiB
	})
	w.hub.with(func() {
		if n := len(w.hub.surveys); n > 3 {
			t.Errorf("%d inventories for one change", n)
		}
	})
}

// A tool that hangs costs the device a warning, and no heartbeat its time.
func TestHungToolHoldsUpNoHeartbeat(t *testing.T) {
	w := realWorld(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte("#!/bin/sh\ntrap '' TERM\nsleep 1000 & sleep 1001\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	w.join()
	w.env.Measure = hardware.NewMeter(hardware.Sources{Tools: dir, Sys: t.TempDir()}).Measure
	w.cfg.Times.Devices = 10 * time.Millisecond
	w.run()
	var beats int
	w.hub.wait("the agent to be there", func() bool { beats = len(w.hub.beats); return beats > 0 })
	began := time.Now()
	w.hub.wait("an inventory with a warning", func() bool {
		n := len(w.hub.surveys)
		return n > 0 && slices.ContainsFunc(w.hub.surveys[n-1].Warnings, func(s string) bool { return strings.Contains(s, "no answer within 2s") })
	})
	took := time.Since(began)
	w.hub.with(func() {
		// They come every 50 ms; on a busy machine rather less.
		if n := len(w.hub.beats) - beats; n < int(took/(200*time.Millisecond)) {
			t.Errorf("%d heartbeats in %s", n, took)
		}
	})
}

// Case 34, idle: a device that is gone for a while is not offered, is said to be
// missing, and comes back by itself.
func TestDeviceVanishesAndReturns(t *testing.T) {
	w := realWorld(t)
	r := newRig(t, 8*offpeak.GiB, 8*offpeak.GiB)
	w.fit(r)
	w.join()
	w.run()
	w.hub.wait("both devices", func() bool { return w.hub.vram(0) > 0 && w.hub.vram(1) > 0 })
	away := r.device(0) + ".away"
	if err := os.Rename(r.device(0), away); err != nil {
		t.Fatal(err)
	}
	w.hub.wait("a missing device", func() bool {
		inv := w.hub.surveys[len(w.hub.surveys)-1]
		return w.hub.vram(0) < 0 && w.hub.vram(1) > 0 && len(inv.Warnings) == 1 && strings.Contains(inv.Warnings[0], "GPU missing: Made Up (GPU-fake-0)")
	})
	if err := os.Rename(away, r.device(0)); err != nil {
		t.Fatal(err)
	}
	w.hub.wait("it to be back", func() bool {
		return w.hub.vram(0) > 0 && len(w.hub.surveys[len(w.hub.surveys)-1].Warnings) == 0
	})
}

// Case 32: jobs get their devices by UUID, each its own.
func TestDevicesByUUID(t *testing.T) {
	w := realWorld(t)
	w.fit(newRig(t, 8*offpeak.GiB, 24*offpeak.GiB))
	w.join()
	w.run()
	w.hub.wait("the devices", func() bool { return w.hub.vram(0) > 0 })
	for i, want := range []string{"GPU-fake-0 GPU-fake-0\n", "GPU-fake-1 GPU-fake-1\n"} {
		id := offpeak.LeaseID(fmt.Sprintf("lease_%d", i))
		task := work("/bin/sh")
		task.Task.Command = []string{"/bin/sh", "-c", `echo "$OFFPEAK_DEVICES $CUDA_VISIBLE_DEVICES"`}
		task.Resources.Devices = []offpeak.DeviceID{offpeak.DeviceID(fmt.Sprintf("GPU-fake-%d", i))}
		w.hub.offer(id, task)
		if got := w.hub.ended(id); string(got.logs["stdout"]) != want {
			t.Errorf("job %d has %q, want %q", i, got.logs["stdout"], want)
		}
	}
}
