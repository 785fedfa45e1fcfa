package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"offpeak"
	"offpeak/agent/driver"
)

const (
	// drainBound is how long output is awaited after the tree is gone: only a
	// process outside of the tree that was handed a pipe can hold it open.
	drainBound = 2 * time.Second
	// maxReport bounds what a driver's process may report.
	maxReport = 4 << 10
	// oomScore makes the kernel prefer a job over its owner's programs when the
	// whole machine is short of memory.
	oomScore = "500"
)

// job is one started command. The loop owns it; its goroutines (two streams,
// one waiter, at times one measurer of the disk) end with its tree.
type job struct {
	start  Start
	fence  *fence
	watch  watch
	out    [2]*stream
	pipes  [2]*os.File
	report *os.File
	ooms   int64

	// reap guards the main process's number: it is signalled only while it has
	// not been reaped.
	reap sync.Mutex
	main int // guarded by reap; 0 when reaped

	// exited gets the main process's status, empty is closed when no child is
	// left, drained when both outputs are in their files.
	exited  chan syscall.WaitStatus
	empty   chan struct{}
	drained chan struct{}
	// changed gets a value when output came since the last look.
	changed chan struct{}
	// disk gets what a look at the job's folder found.
	disk      chan folder
	measuring bool
	stop      atomic.Bool

	status syscall.WaitStatus
	ended  bool // the main process is gone
	gone   bool // the tree is gone
}

// forker is who forks a job's first process.
type forker interface {
	fork(f func())
	forkApart(until <-chan struct{}, f func() error) error
}

// launch starts the command. A command that can't be started is a
// *driver.StartError; what is the machine's fault is any other error.
func launch(start Start, f *fence, by forker, bufs *[2][]byte, null *os.File) (*job, error) {
	j := &job{
		start: start, fence: f,
		exited: make(chan syscall.WaitStatus, 1), empty: make(chan struct{}),
		drained: make(chan struct{}), changed: make(chan struct{}, 1),
		disk: make(chan folder, 1),
	}
	if err := f.cg.limit(start.Limits); err != nil {
		return nil, err
	}
	j.ooms = f.cg.oomKills()
	var opened []*os.File
	var ends [2]*os.File
	fail := func(err error) (*job, error) {
		for _, o := range opened {
			o.Close()
		}
		return nil, err
	}
	for i, name := range [...]string{"stdout.log", "stderr.log"} {
		path := filepath.Join(start.Folder, name)
		r, w, err := pipe()
		if err != nil {
			return fail(err)
		}
		opened = append(opened, r, w)
		j.pipes[i], ends[i] = r, w
		j.out[i] = &stream{
			open: func() (io.WriteCloser, error) { return createLog(path) },
			cap:  int64(start.Limits.Log), buf: bufs[i],
			now:     func() int64 { return readClock(unix.CLOCK_MONOTONIC) },
			changed: j.notify,
		}
	}
	files := []uintptr{null.Fd(), ends[0].Fd(), ends[1].Fd()}
	if start.Command.Report {
		r, w, err := pipe()
		if err != nil {
			return fail(err)
		}
		opened = append(opened, r, w)
		j.report = r
		files = append(files, w.Fd())
	}
	c := start.Command
	var err error
	j.watch = watch{
		lease: start.Deadline, keep: start.KeepFrozen, grace: start.Grace,
		limit: start.Limits.Time, started: now(),
	}
	var apart error
	fork := func() error {
		j.main, err = syscall.ForkExec(c.Path, c.Args, &syscall.ProcAttr{
			Dir: c.Dir, Env: c.Env, Files: files, Sys: f.attr(),
		})
		return err
	}
	if c.NoNetwork {
		apart = by.forkApart(j.empty, fork)
	} else {
		by.fork(func() { _ = fork() })
	}
	if err != nil {
		return fail(startError(c, err))
	}
	if apart != nil {
		return fail(apart)
	}
	f.main = j.main
	ends[0].Close()
	ends[1].Close()
	if j.report != nil {
		opened[len(opened)-1].Close()
	}
	_ = os.WriteFile("/proc/"+strconv.Itoa(j.main)+"/oom_score_adj", []byte(oomScore), 0)
	go j.wait()
	go j.pump()
	return j, nil
}

// startError says whose fault a refused fork or exec is.
func startError(c driver.Command, err error) error {
	switch {
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return fmt.Errorf("start %s: %w", c.Path, err)
	}
	if info, serr := os.Stat(c.Dir); serr != nil || !info.IsDir() {
		return fmt.Errorf("start in %s: not a folder that can be entered", c.Dir)
	}
	detail := fmt.Sprintf("start %s: %v", c.Path, err)
	if _, serr := os.Stat(c.Path); serr == nil && errors.Is(err, syscall.ENOENT) {
		detail = fmt.Sprintf("start %s: the interpreter it names does not exist", c.Path)
	}
	return &driver.StartError{Reason: offpeak.EndCommandNotFound, Detail: detail}
}

func (j *job) notify() {
	select {
	case j.changed <- struct{}{}:
	default:
	}
}

// wait reaps the job's processes, orphans included, until no child is left.
// When the main process was the last one, empty is closed before its status is
// told, so that nobody looks for what it left behind.
func (j *job) wait() {
	for {
		// Look without reaping, so that a reaped main process is never signalled.
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil)
		main, ended, empty := j.reapAll()
		if empty = empty || errors.Is(err, unix.ECHILD); empty {
			close(j.empty)
		}
		if ended {
			j.exited <- main
		}
		if empty {
			return
		}
	}
}

// reapAll reaps what is dead: whether the main process was among it, and
// whether no child is left.
func (j *job) reapAll() (main syscall.WaitStatus, ended, empty bool) {
	j.reap.Lock()
	defer j.reap.Unlock()
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return main, ended, true
		case pid == 0:
			return main, ended, false
		}
		if pid == j.main {
			j.main, main, ended = 0, ws, true
		}
	}
}

// pipe makes a pipe of which only the read end is polled: the job must get an
// end that blocks.
func pipe() (r, w *os.File, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("make a pipe: %w", err)
	}
	if err := unix.SetNonblock(p[0], true); err != nil {
		unix.Close(p[0])
		unix.Close(p[1])
		return nil, nil, fmt.Errorf("make a pipe: %w", err)
	}
	return os.NewFile(uintptr(p[0]), "pipe"), os.NewFile(uintptr(p[1]), "pipe"), nil
}

// term sends the notice's signal to the main process and its group.
func (j *job) term() {
	j.reap.Lock()
	defer j.reap.Unlock()
	if j.main != 0 && !j.start.Command.NoSignal {
		_ = unix.Kill(-j.main, unix.SIGTERM)
	}
}

// pump runs both streams.
func (j *job) pump() {
	defer close(j.drained)
	done := make(chan struct{})
	go func() {
		defer close(done)
		j.out[1].run(j.pipes[1])
		j.pipes[1].Close()
	}()
	j.out[0].run(j.pipes[0])
	j.pipes[0].Close()
	<-done
}

// stopDraining bounds how much longer the streams read.
func (j *job) stopDraining() {
	for _, p := range j.pipes {
		_ = p.SetReadDeadline(time.Now().Add(drainBound))
	}
}

// measure walks the job's folder in the background.
func (j *job) measure() {
	if j.measuring {
		return
	}
	j.measuring = true
	go func() { j.disk <- lookAt(j.start.Command.Dir, &j.stop) }()
}

// measured takes what a look found.
func (s *server) measured(found folder) {
	j := s.job
	j.measuring = false
	s.diskAt = BootTime() + int64(max(diskEvery, time.Duration(found.entries)*diskEach))
	if found.size > j.start.Limits.Disk {
		s.end(offpeak.EndDiskLimit, overLimit(found.size, j.start.Limits.Disk))
	}
}

func overLimit(size, limit offpeak.Bytes) string {
	return fmt.Sprintf("the job's folder took %s of the %s it may", size, limit)
}

// maxEntries bounds one walk of a job's folder.
const maxEntries = 200_000

// folder is what a look found: what the folder takes on the disk, and how many
// entries were looked at.
type folder struct {
	size    offpeak.Bytes
	entries int
}

// lookAt sums what a folder takes on the disk: blocks, each file once whatever
// names it has, links not followed.
func lookAt(dir string, stop *atomic.Bool) folder {
	var sum int64
	entries := 0
	seen := map[[2]uint64]bool{}
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if entries++; entries > maxEntries || stop.Load() {
			return filepath.SkipAll
		}
		if err != nil {
			return nil //nolint:nilerr // it went away, or it is closed to us
		}
		info, err := d.Info()
		if err != nil {
			return nil //nolint:nilerr // it went away
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return nil
		}
		if st.Nlink > 1 && !d.IsDir() {
			key := [2]uint64{uint64(st.Dev), st.Ino} //nolint:unconvert // 32 bits wide on some machines
			if seen[key] {
				return nil
			}
			seen[key] = true
		}
		sum += st.Blocks * 512
		return nil
	})
	return folder{offpeak.Bytes(sum), entries}
}

// exit says how the job ended, from the facts; called when it is gone.
func (j *job) exit() Exit {
	var e Exit
	switch ws := j.status; {
	case ws.Signaled():
		e = Exit{Reason: offpeak.EndSignalled, Signal: unix.SignalName(ws.Signal())}
		if ws.CoreDump() {
			e.Detail = "core dumped"
		}
	default:
		code := ws.ExitStatus()
		e = Exit{Reason: offpeak.EndExitNonzero, Code: &code}
		if code == 0 {
			e.Reason = offpeak.EndCompleted
		}
	}
	if r, ok := j.readReport(); ok && e.Reason != offpeak.EndCompleted {
		e.Reason, e.Detail = r.Reason, r.Detail
	}
	if e.Reason != offpeak.EndCompleted && j.watch.killed == "" && j.fence.cg.oomKills() > j.ooms {
		e.Reason = offpeak.EndOutOfMemory
		e.Detail = fmt.Sprintf("the kernel killed a process of the job at its limit of %s", j.start.Limits.Memory)
	}
	if e.Reason == offpeak.EndOutOfMemory {
		return e
	}
	return j.watch.verdict(e)
}

// readReport reads what a driver's process said of why it could not run the task.
func (j *job) readReport() (driver.StartError, bool) {
	if j.report == nil {
		return driver.StartError{}, false
	}
	defer j.report.Close()
	_ = j.report.SetReadDeadline(time.Now().Add(drainBound))
	data, err := io.ReadAll(io.LimitReader(j.report, maxReport))
	var r driver.StartError
	if err != nil || json.Unmarshal(data, &r) != nil || r.Reason == "" {
		return driver.StartError{}, false
	}
	return r, true
}

// writeWhole writes a file that appears whole, by rename.
func writeWhole(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	tmp := path + ".tmp"
	// Not followed if the job put a link there.
	if err := os.Remove(tmp); err != nil && !os.IsNotExist(err) {
		return err
	}
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	return err
}
