package pgtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Trace is what there is of a server outside its test's process.
type Trace struct {
	Name, Dir  string
	Postmaster int
	Processes  []int
	// Memory is the id of its System V shared memory.
	Memory int
	Killed bool
}

// TraceOf says what there is of a running server.
func TraceOf(t *testing.T, name string, s *Server) Trace {
	t.Helper()
	file, err := os.ReadFile(filepath.Join(s.data(), "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(strings.Split(string(file), "\n")[6])
	memory, err := strconv.Atoi(fields[1])
	if err != nil {
		t.Fatal(err)
	}
	return Trace{Name: name, Dir: s.dir, Postmaster: s.postmaster.Process.Pid, Processes: s.Processes(), Memory: memory}
}

// Gone says what is still there.
func (l Trace) Gone() error {
	var errs []error
	files := []string{l.Dir, fmt.Sprintf("/dev/shm/faketime_shm_%d", l.Postmaster), fmt.Sprintf("/dev/shm/sem.faketime_sem_%d", l.Postmaster)}
	for _, pid := range l.Processes {
		files = append(files, fmt.Sprintf("/proc/%d", pid))
	}
	for _, path := range files {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("%s is still there (%v)", path, err))
		}
	}
	segments, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(segments)) {
		if f := strings.Fields(line); f[1] == strconv.Itoa(l.Memory) {
			errs = append(errs, fmt.Errorf("its shared memory %d is still there", l.Memory))
		}
	}
	return errors.Join(errs...)
}
