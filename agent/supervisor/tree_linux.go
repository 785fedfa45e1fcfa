package supervisor

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// proc is a process as /proc shows it. Start tells it from a later one with
// the same number.
type proc struct {
	pid, parent int
	state       byte
	start       string
}

// readProc reads one process; ok is false when it is gone.
func readProc(pid int) (proc, bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return proc{}, false
	}
	// The name, in parentheses, may hold anything; the fields follow the last one.
	i := bytes.LastIndexByte(data, ')')
	if i < 0 {
		return proc{}, false
	}
	f := bytes.Fields(data[i+1:])
	if len(f) < 20 {
		return proc{}, false
	}
	parent, err := strconv.Atoi(string(f[1]))
	if err != nil {
		return proc{}, false
	}
	return proc{pid: pid, parent: parent, state: f[0][0], start: string(f[19])}, true
}

// processes lists all that /proc shows.
func processes() (out []proc) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, ok := readProc(pid); ok {
			out = append(out, p)
		}
	}
	return out
}

// descendants lists the living processes below root.
func descendants(root int) []proc {
	children := map[int][]proc{}
	for _, p := range processes() {
		children[p.parent] = append(children[p.parent], p)
	}
	var out []proc
	for queue := []int{root}; len(queue) > 0; queue = queue[1:] {
		for _, p := range children[queue[0]] {
			queue = append(queue, p.pid)
			if p.state != 'Z' && p.state != 'X' {
				out = append(out, p)
			}
		}
	}
	return out
}

// before says that p was started before q.
func (p proc) before(q proc) bool {
	a, _ := strconv.ParseUint(p.start, 10, 64)
	b, _ := strconv.ParseUint(q.start, 10, 64)
	return a < b
}

// signal sends sig to exactly the process that p was read from.
func (p proc) signal(sig unix.Signal) error {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if now, ok := readProc(p.pid); !ok || now.start != p.start {
		return unix.ESRCH
	}
	return unix.PidfdSendSignal(fd, sig, nil, 0)
}

// stopAll stops what list finds until a look finds nothing that still moves: a
// stopped process can't fork, so at most each generation takes another look.
func stopAll(list func() []proc) error {
	for range 1000 {
		moving := 0
		for _, p := range list() {
			if p.state != 'T' && p.state != 't' {
				moving++
				_ = p.signal(unix.SIGSTOP)
			}
		}
		if moving == 0 {
			return nil
		}
	}
	return fmt.Errorf("stop the job: it forks faster than it can be stopped")
}

// killAll stops, so that nothing forks away, and then kills.
func killAll(list func() []proc) error {
	err := stopAll(list)
	for _, p := range list() {
		_ = p.signal(unix.SIGKILL)
	}
	return err
}

// signalAll signals what list finds now.
func signalAll(list func() []proc, sig unix.Signal) {
	for _, p := range list() {
		_ = p.signal(sig)
	}
}

// union joins two listings of processes.
func union(a, b []proc) []proc {
	for _, p := range b {
		if !slices.ContainsFunc(a, func(q proc) bool { return q.pid == p.pid }) {
			a = append(a, p)
		}
	}
	return a
}
