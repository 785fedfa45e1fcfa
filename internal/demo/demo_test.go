package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"offpeak"
)

func TestReadEvents(t *testing.T) {
	stream := ": hello\n\n" +
		"id: 4\nevent: job.queued\ndata: {\"cursor\":4,\"type\":\"job.queued\",\"job\":\"job_1\"}\n\n" +
		"event: ping\ndata: {}\n\n" +
		"id: 5\ndata: {\"cursor\":5,\ndata: \"type\":\"lease.lost\",\"attempt\":1}\n\n"
	var got []offpeak.Event
	err := readEvents(strings.NewReader(stream), func(e offpeak.Event) error {
		got = append(got, e)
		return nil
	})
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Job != "job_1" || got[1].Type != "lease.lost" || got[1].Attempt != 1 {
		t.Errorf("read %+v", got)
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]said{
		`{"event":"start","attempt":2,"step":300,"from":"step-00000300"}`: {record: record{"start", 2, 300, "step-00000300"}},
		"step 25 of 5000 loss 0.2500":                                     {step: 25, of: 5000, loss: 0.25},
		"step twenty":                                                     {},
		"test accuracy 0.9822":                                            {accuracy: 0.9822},
		"passed over: checkpoint step-1: it is cut short":                 {},
		"": {},
	} {
		if got := parse(text); got != want {
			t.Errorf("parse(%q) = %+v, want %+v", text, got, want)
		}
	}
}

func TestStepOf(t *testing.T) {
	if got, err := stepOf("step-00001200"); err != nil || got != 1200 {
		t.Errorf("got %d, %v", got, err)
	}
	for _, name := range []string{"", "1200", "step-", "step-x", "epoch-0001"} {
		if got, err := stepOf(name); err == nil {
			t.Errorf("%q names step %d", name, got)
		}
	}
}

func TestParseStat(t *testing.T) {
	if state, ppid := parseStat("42 (a) b (c) S 7 42 42 0"); state != "S" || ppid != 7 {
		t.Errorf("got %q, %d", state, ppid)
	}
}

// All processes of a folder die, those that left their parent's session and
// only work below it as well; the processes of another folder do not.
func TestKillAll(t *testing.T) {
	mine, other := t.TempDir(), t.TempDir()
	start := func(dir, script string) *exec.Cmd {
		cmd := exec.Command("/bin/sh", "-c", script)
		cmd.Dir = dir
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		return cmd
	}
	start(mine, `setsid sleep 600 & echo $! >pid; wait`)
	bystander := start(other, `sleep 600`)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := poll(ctx, 10*time.Second, "the child", func() (bool, error) {
		_, err := os.Stat(filepath.Join(mine, "pid"))
		pids, _ := processes(mine)
		return err == nil && len(pids) >= 2, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := killAll(ctx, mine); err != nil || n < 2 {
		t.Fatalf("killed %d processes, %v", n, err)
	}
	if pids, err := processes(mine); err != nil || len(pids) != 0 {
		t.Errorf("left alive: %v, %v", pids, err)
	}
	if pids, err := processes(other); err != nil || !slices.Contains(pids, bystander.Process.Pid) {
		t.Errorf("the bystander is gone: %v, %v", pids, err)
	}
}

func TestGroupsOf(t *testing.T) {
	proc := t.TempDir()
	file := "4:memory:/work/one\n9:name=systemd:/\n0::/unit/two\n"
	if err := os.WriteFile(filepath.Join(proc, "cgroup"), []byte(file), 0o644); err != nil {
		t.Fatal(err)
	}
	mounts := "25 20 0:22 /work /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
		"26 20 0:23 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n" +
		"27 20 0:24 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
	got := groupsOf(proc, []byte(mounts))
	want := []string{"/sys/fs/cgroup/memory/one", "/sys/fs/cgroup/unified/unit/two"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// What must not happen is noticed.
func TestVerify(t *testing.T) {
	good := func() (*story, []tried, float64) {
		s := &story{steps: 5000, victim: "laptop", kept: offpeak.Checkpoint{ID: 7, Attempt: 1, Name: "step-00002000"}}
		return s, []tried{
			{lease: offpeak.Lease{Attempt: 1, State: offpeak.LeaseLost}, node: "laptop", last: 2125},
			{lease: offpeak.Lease{Attempt: 2, State: offpeak.LeaseSucceeded, Restored: 7}, node: "gaming-pc", from: 2000, last: 5000, end: "done", accuracy: 0.98},
		}, 0.98
	}
	s, tries, accuracy := good()
	if err := s.verify(tries, accuracy); err != nil {
		t.Fatalf("a good ending: %v", err)
	}
	for name, spoil := range map[string]func(s *story, tries []tried, accuracy *float64){
		"a step lost":          func(_ *story, tries []tried, _ *float64) { tries[1].from = 2001 },
		"resumed from before":  func(_ *story, tries []tried, _ *float64) { tries[1].from = 0 },
		"another checkpoint":   func(_ *story, tries []tried, _ *float64) { tries[1].lease.Restored = 6 },
		"not finished":         func(_ *story, tries []tried, _ *float64) { tries[1].last = 4999 },
		"first not lost":       func(_ *story, tries []tried, _ *float64) { tries[0].lease.State = offpeak.LeaseFailed },
		"same node":            func(_ *story, tries []tried, _ *float64) { tries[1].node = "laptop" },
		"not accurate":         func(_ *story, tries []tried, a *float64) { *a, tries[1].accuracy = 0.9, 0.9 },
		"outputs of another":   func(_ *story, _ []tried, a *float64) { *a = 0.97 },
		"checkpoint unnamed":   func(s *story, _ []tried, _ *float64) { s.kept.Name = "" },
		"killed when finished": func(_ *story, tries []tried, _ *float64) { tries[0].last = 5000 },
	} {
		s, tries, accuracy := good()
		spoil(s, tries, &accuracy)
		if err := s.verify(tries, accuracy); err == nil {
			t.Errorf("%s: not noticed", name)
		}
	}
	if s, tries, accuracy := good(); s.verify(tries[:1], accuracy) == nil {
		t.Error("one attempt: not noticed")
	}
}
