package agent

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"offpeak"
	"offpeak/agent/driver"
	"offpeak/agent/driver/wasm"
	"offpeak/wire"
)

// TestWasmJobs runs modules all their way: a hub's offer, a real supervisor,
// the engine in a process of its own.
func TestWasmJobs(t *testing.T) {
	t.Parallel()
	w := realWorld(t)
	// Not this binary: with the race detector modules run many times slower.
	exe, guest := filepath.Join(t.TempDir(), "engine"), filepath.Join(t.TempDir(), "guest.wasm")
	gobuild(t, exe, "offpeak/agent/driver/wasm/internal/engine")
	gobuild(t, guest, "./testdata/guest", "GOOS=wasip1", "GOARCH=wasm")
	w.env.Drivers = []driver.Driver{wasm.Driver{Exe: exe}}
	module, err := os.ReadFile(guest)
	if err != nil {
		t.Fatal(err)
	}
	w.hub.with(func() { w.hub.timeout = 1e11 }) // compiling takes what it takes on a busy machine
	w.join()
	w.run()
	input := w.hub.store(map[string]string{"guest.wasm": string(module)})
	task := func(args ...string) wire.Work {
		out := work("")
		out.Task.Driver, out.Task.Input, out.Task.Command = "wasm", input, append([]string{"guest.wasm"}, args...)
		out.Task.Env = map[string]string{"OF_THE_TASK": "two words=$HOME"}
		out.Task.Grace = offpeak.Duration(20e9)
		return out
	}

	// The first attempt is told to go, and leaves a checkpoint.
	w.hub.offer("lease_1", task("train"))
	w.hub.wait("work", func() bool {
		return strings.Contains(string(w.hub.leases["lease_1"].logs["stdout"]), "working\n")
	})
	w.hub.stop("lease_1", offpeak.EndOwnerReturned)
	got := w.hub.ended("lease_1")
	log := string(got.logs["stdout"])
	if got.end.Reason != offpeak.EndOwnerReturned || len(got.checks) != 1 || got.checks[0].Name != "step" {
		t.Fatalf("end = %+v, checkpoints %+v, log %q %q", got.end, got.checks, log, got.logs["stderr"])
	}
	for _, line := range []string{
		"OFFPEAK_CHECKPOINT_DIR=/checkpoints", "OFFPEAK_OUTPUT_DIR=/outputs", "OFFPEAK_NOTICE=/.offpeak/notice.json",
		"OFFPEAK_LEASE=lease_1", "OFFPEAK_ATTEMPT=1", "OF_THE_TASK=two words=$HOME",
	} {
		if !slices.Contains(strings.Split(log, "\n"), line) {
			t.Errorf("no line %q in %q", line, log)
		}
	}
	if !strings.Contains(log, `notice {"reason":"owner_returned"`) {
		t.Errorf("the guest did not see the notice: %q", log)
	}

	// The second goes on from it.
	again := task("train")
	again.Checkpoints = []offpeak.Checkpoint{{ID: 1, Name: "step", Tree: got.checks[0].Tree}}
	w.hub.offer("lease_2", again)
	got = w.hub.ended("lease_2")
	if got.end.Reason != offpeak.EndCompleted || got.end.Restored != 1 || !strings.Contains(string(got.logs["stdout"]), "resumed from step 7\n") {
		t.Errorf("end = %+v, log %q %q", got.end, got.logs["stdout"], got.logs["stderr"])
	}
	if files := w.hub.files(got.end.Output); !slices.Equal(files, []string{"outputs", "outputs/model"}) {
		t.Errorf("outputs = %q", files)
	}

	hungry := task("grow")
	hungry.Resources.Memory = 160 * offpeak.MiB
	w.hub.offer("lease_3", hungry)
	if got := w.hub.ended("lease_3"); got.end.Reason != offpeak.EndOutOfMemory {
		t.Errorf("a module without end to its hunger: %+v, log %.200q", got.end, got.logs["stderr"])
	}

	w.hub.offer("lease_4", task("escape", strings.TrimPrefix(w.hub.server.URL, "http://"), "127.0.0.1:22"))
	if got := w.hub.ended("lease_4"); got.end.Reason != offpeak.EndCompleted || string(got.logs["stdout"]) != "contained\n" || got.end.Output != "" {
		t.Errorf("end = %+v, log %q %q", got.end, got.logs["stdout"], got.logs["stderr"])
	}

	broken := task("train")
	broken.Task.Input = w.hub.store(map[string]string{"guest.wasm": "\x00asm\xff\xff\xff\xff"})
	w.hub.offer("lease_5", broken)
	if got := w.hub.ended("lease_5"); got.end.Reason != offpeak.EndBadModule {
		t.Errorf("end = %+v", got.end)
	}
	w.noLeaseFolders()
}

func gobuild(t *testing.T, out, what string, env ...string) {
	t.Helper()
	cmd := exec.Command("go", "build", "-o", out, what)
	cmd.Env = append(append(os.Environ(), "CGO_ENABLED=0"), env...)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", what, err, text)
	}
}
