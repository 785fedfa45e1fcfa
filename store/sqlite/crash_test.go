package sqlite_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"offpeak"
	"offpeak/store/sqlite"
)

// crashEnv names the store to a child process that this test starts of itself.
const crashEnv = "OFFPEAK_TEST_CRASH_STORE"

// TestCrash kills a writing process again and again and asks that all it had
// acknowledged is there, and nothing is half done.
func TestCrash(t *testing.T) {
	if path := os.Getenv(crashEnv); path != "" {
		crashWriter(t, path)
		return
	}
	cycles := 40
	if testing.Short() || raced {
		cycles = 5
	}
	path := filepath.Join(t.TempDir(), "store.db")
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	newGrid(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	acked := map[offpeak.JobID]offpeak.JobState{}
	for cycle := range cycles {
		for line := range crashOnce(t, path, 1+rng.IntN(60)) {
			id, state, _ := strings.Cut(line, " ")
			acked[offpeak.JobID(id)] = offpeak.JobState(state)
		}
		s, err := sqlite.Open(t.Context(), path, sqlite.Options{})
		if err != nil {
			t.Fatalf("cycle %d: %v", cycle, err)
		}
		for id, state := range acked {
			j, err := s.Job(t.Context(), "", id)
			// The writer may have gone further than it could say.
			if err != nil || state == offpeak.JobSucceeded && j.State != state {
				t.Errorf("cycle %d: job %s was acknowledged as %s and is %s, %v", cycle, id, state, j.State, err)
			}
		}
		if bad, err := s.Check(t.Context()); err != nil || len(bad) != 0 {
			t.Errorf("cycle %d: Check = %v, %v", cycle, bad, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		clear(acked) // later cycles look at their own
	}
}

// crashOnce runs a writer, kills it once it has said so many lines, and returns
// all whole lines it said.
func crashOnce(t *testing.T, path string, lines int) map[string]bool {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestCrash$")
	cmd.Env = append(os.Environ(), crashEnv+"="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := map[string]bool{}
	r := bufio.NewReader(out)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			break // a half line was not said
		}
		if !strings.HasPrefix(line, "job_") {
			t.Errorf("the writer says %q", line)
			continue
		}
		said[strings.TrimSpace(line)] = true
		if len(said) == lines {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the writer ended by itself")
	}
	if len(said) < lines {
		t.Fatalf("the writer said %d lines of %d", len(said), lines)
	}
	return said
}

// crashWriter takes jobs through their lives from several goroutines, says each
// acknowledged state, and never ends.
func crashWriter(t *testing.T, path string) {
	s, err := sqlite.Open(context.Background(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	g := &grid{Store: s}
	// Ids and sequences go on from cycle to cycle.
	g.n.Store(time.Now().UnixNano())
	g.seq.Store(time.Now().UnixNano())
	fail := make(chan error)
	for range 4 {
		go func() {
			for {
				if err := g.cycleSaying(func(id offpeak.JobID, st offpeak.JobState) { fmt.Printf("%s %s\n", id, st) }); err != nil {
					fail <- err
					return
				}
			}
		}()
	}
	t.Fatal(<-fail)
}
