package supervisor

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"offpeak"
	"offpeak/agent/driver"
)

const (
	socketName = "sock"
	// listenFD is the descriptor at which an agent hands over the socket.
	listenFD = 3
	// pushEvery is the shortest time between two pushes of growing logs.
	pushEvery = 50 * time.Millisecond
	// killEvery is the pause between two kills of a tree that is still there.
	killEvery = 20 * time.Millisecond
	// diskEvery is the shortest time between two looks at the job's folder, and
	// diskEach what one is put off by for each entry of the last: an entry costs
	// some 10 µs, so looking takes about a twentieth of the time. By entries and
	// not by the clock, since on a busy machine a look mostly waits for its turn:
	// that is no reason to look away.
	diskEvery = time.Second
	diskEach  = 200 * time.Microsecond
	// lonelyIdle and lonelyExited are how long a supervisor without an agent
	// stays, idle or with a result, which is in its status.json as well.
	lonelyIdle   = time.Minute
	lonelyExited = 15 * time.Minute
)

// Main is the body of a supervisor process; args follow the command's name. It
// returns the exit status. It is to be called before anything else is set up:
// a supervisor stays small.
func Main(args []string) int {
	flags := flag.NewFlagSet("supervise", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	dir := flags.String("dir", "", "the supervisor's own folder")
	name := flags.String("fence", "", "the fence to use; empty is the best")
	if err := flags.Parse(args); err != nil || *dir == "" || flags.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: offpeak supervise --dir DIR [--fence FENCE]")
		return 2
	}
	// The heap is a few hundred KiB: collecting it often is cheap, and letting
	// it grow to Go's default minimum is not.
	debug.SetGCPercent(20)
	s, err := newServer(*dir, *name)
	if err != nil {
		fmt.Fprintln(os.Stderr, "offpeak supervise:", err)
		return 1
	}
	s.run()
	s.close()
	return 0
}

// server is a supervisor process. All its state belongs to the goroutine in
// run; connections, streams and the waiter talk to it over channels.
type server struct {
	dir      string
	listener net.Listener
	fence    *fence
	cg       *cgroups
	alarm    *alarm
	null     *os.File
	bufs     [2][]byte
	forks    chan func()
	forkDone chan struct{}

	conns    map[*conn]bool
	accepted chan *conn
	requests chan asked

	status   Status
	job      *job
	detail   string // of the kill or notice, for the exit
	pushedAt int64
	dirty    bool
	diskAt   int64
	killAt   int64
	aloneAt  int64
	unsaved  bool   // the exit is not written down
	folder   string // of the exited job; "" when it is gone, and so taken
	quitting bool
}

func newServer(dir, fenceName string) (*server, error) {
	// The socket, 107 bytes of path at most, is reached from inside the folder.
	if err := os.Chdir(dir); err != nil {
		return nil, fmt.Errorf("enter the supervisor's folder: %w", err)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(listenFD, "socket")
	listener, err := net.FileListener(f)
	f.Close()
	if err != nil {
		return nil, fmt.Errorf("take over the socket: %w", err)
	}
	s := &server{
		dir: dir, listener: listener,
		conns: map[*conn]bool{}, accepted: make(chan *conn), requests: make(chan asked),
		bufs: [2][]byte{make([]byte, pumpBuffer), make([]byte, pumpBuffer)},
	}
	// A job may not end its supervisor by a signal, nor may a terminal. Ignored
	// signals would stay ignored in the job, so they are taken and dropped.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGPIPE)
	if s.null, err = os.Open(os.DevNull); err != nil {
		return nil, err
	}
	if s.alarm, err = newAlarm(); err != nil {
		return nil, err
	}
	s.cg = makeCgroups(groupName(dir))
	if fenceName == FenceProcessGroup || fenceName == FenceSubreaper {
		// Forced to do without.
		s.cg.dropV2()
	}
	if err := s.startForker(); err != nil {
		s.cg.warnings = append(s.cg.warnings, err.Error())
		s.cg.dropV1()
	}
	fe, warnings, err := newFence(fenceName, s.cg)
	if err != nil {
		s.cg.close()
		return nil, err
	}
	dropAmbient()
	s.fence = fe
	s.status = Status{
		Phase: Idle, PID: os.Getpid(), Fence: fe.name, Limited: s.cg.enforced(),
		Warnings: append(warnings, s.cg.warnings...),
	}
	return s, nil
}

// accept hands new connections to the loop.
func (s *server) accept() {
	for {
		c, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // out of descriptors
			continue
		}
		s.accepted <- newConn(c)
	}
}

// run is the loop. Outside of a job the process is quiet: it wakes for
// requests, and once when it has been without an agent for too long.
func (s *server) run() {
	go s.accept()
	s.aloneAt = BootTime()
	s.rearm(now())
	for !s.quitting || s.job != nil && !s.job.gone {
		var changed <-chan struct{}
		var exited <-chan syscall.WaitStatus
		var disk <-chan folder
		var empty <-chan struct{}
		if j := s.job; j != nil && !j.gone {
			changed, exited, disk = j.changed, j.exited, j.disk
			if j.ended {
				exited, empty = nil, j.empty
			}
		}
		select {
		case c := <-s.accepted:
			s.conns[c] = true
			go c.read(s.requests)
			go c.write()
		case a := <-s.requests:
			if a.gone {
				a.from.close()
				delete(s.conns, a.from)
				s.aloneAt = BootTime()
				break
			}
			s.answer(a)
		case <-changed:
			s.dirty = true
			if s.status.FirstOutput == 0 || BootTime()-s.pushedAt >= int64(pushEvery) {
				s.push(nil)
			}
		case ws := <-exited:
			s.mainGone(ws)
		case <-empty:
			s.treeGone()
		case found := <-disk:
			s.measured(found)
		case <-s.alarm.C:
		}
		t := now()
		s.tick(t)
		s.rearm(t)
	}
	if s.unsaved {
		s.save()
	}
	for c := range s.conns {
		c.flush(time.Second)
	}
}

func (s *server) close() {
	s.listener.Close()
	os.Remove(socketName)
	s.stopForker()
	s.cg.close()
}

// rearm sets the alarm to the next moment at which something may be due.
func (s *server) rearm(t instant) {
	wait := time.Duration(0)
	within := func(d time.Duration) {
		if d = max(d, time.Microsecond); wait == 0 || d < wait {
			wait = d
		}
	}
	switch j := s.job; {
	case j != nil && !j.gone:
		if j.ended || j.watch.killed != "" {
			within(time.Duration(s.killAt - t.Boot))
			break
		}
		if _, d := j.watch.due(t); d > 0 {
			within(d)
		}
		if s.dirty {
			within(time.Duration(s.pushedAt-t.Boot) + pushEvery)
		}
		if j.start.Limits.Disk > 0 && !j.measuring {
			within(time.Duration(s.diskAt - t.Boot))
		}
	case len(s.conns) == 0:
		within(time.Duration(s.aloneAt-t.Boot) + s.lonely())
	}
	_ = s.alarm.set(wait)
}

func (s *server) lonely() time.Duration {
	if s.status.Phase == Exited && s.folder != "" {
		return lonelyExited
	}
	return lonelyIdle
}

// tick does what is due now.
func (s *server) tick(t instant) {
	j := s.job
	if j == nil || j.gone {
		if s.unsaved && len(s.conns) == 0 {
			s.save()
		}
		if len(s.conns) == 0 && time.Duration(t.Boot-s.aloneAt) >= s.lonely() {
			s.quitting = true
		}
		return
	}
	if j.ended || j.watch.killed != "" {
		if t.Boot >= s.killAt {
			s.kill()
		}
		return
	}
	if s.dirty && t.Boot-s.pushedAt >= int64(pushEvery) {
		s.push(nil)
	}
	if j.start.Limits.Disk > 0 && t.Boot >= s.diskAt && !j.measuring {
		j.measure()
	}
	switch a, _ := j.watch.due(t); a {
	case actFreeze:
		_ = s.freeze(true)
	case actLost:
		s.end(offpeak.EndNodeLost, "no word from a hub for the lease's timeout, and frozen for as long as the job allows")
	case actGone:
		s.end(j.watch.noticed, "killed at the end of the grace")
	case actLimit:
		_ = s.notice(Notice{Reason: offpeak.EndTimeLimit})
	}
}

// current fills in what changes without an event.
func (s *server) current() Status {
	st := s.status
	j := s.job
	if j == nil {
		return st
	}
	if !j.gone {
		st.Ran = offpeak.Millis(j.watch.ran(now()).Milliseconds())
		st.Frozen, st.Why, st.Noticed = j.watch.frozen(), j.watch.why(), j.watch.noticed
	}
	st.Stdout, st.Stderr = j.out[0].written.Load(), j.out[1].written.Load()
	for _, o := range j.out {
		first := o.first.Load()
		if us := max((first-j.watch.started.Mono)/1000, 1); first != 0 && (st.FirstOutput == 0 || us < st.FirstOutput) {
			st.FirstOutput = us
		}
	}
	return st
}

// push sends the status to every agent but one that has it from an answer.
func (s *server) push(but *conn) {
	st := s.current()
	s.status.FirstOutput = st.FirstOutput
	s.dirty, s.pushedAt = false, BootTime()
	for c := range s.conns {
		if c != but {
			c.pushed(st)
		}
	}
}

// answer does what an agent asks.
func (s *server) answer(a asked) {
	refusal := s.do(a.req)
	st := s.current()
	st.Re = a.req.ID
	if refusal != nil {
		st.Error = refusal.Error()
	}
	a.from.reply(st)
	if a.req.Status == nil && refusal == nil {
		s.push(a.from)
	}
}

func (s *server) do(r Request) error {
	switch {
	case r.Status != nil:
		return nil
	case r.Quit != nil:
		s.quitting = true
		if s.running() {
			s.end(offpeak.EndCancelled, "the supervisor was told to quit")
		}
		return nil
	case r.Start != nil:
		if err := checkStart(*r.Start); err != nil {
			return err
		}
		if s.status.Phase == Exited && s.status.Lease == r.Start.Forget {
			s.forget()
		}
		if s.status.Phase != Idle {
			return fmt.Errorf("not idle: %s", s.status.Phase)
		}
		s.start(*r.Start)
		return nil
	}
	if !s.running() {
		return fmt.Errorf("no job is running: %s", s.status.Phase)
	}
	switch {
	case r.Lease != nil:
		if s.job.watch.renew(*r.Lease, now()) {
			return s.thaw(true)
		}
		return nil
	case r.Freeze != nil && r.Freeze.Frozen:
		return s.freeze(false)
	case r.Freeze != nil:
		return s.thaw(false)
	case r.Notice != nil:
		return s.notice(*r.Notice)
	case r.Kill != nil:
		s.end(r.Kill.Reason, cmp.Or(r.Kill.Detail, "killed by order"))
		return nil
	}
	return errors.New("empty request")
}

func (s *server) running() bool { return s.status.Phase == Running }

// forget makes the supervisor idle after a job.
func (s *server) forget() {
	s.job, s.unsaved = nil, false
	s.status = Status{Phase: Idle, PID: s.status.PID, Fence: s.status.Fence, Limited: s.status.Limited, Warnings: s.status.Warnings}
}

func (s *server) start(start Start) {
	s.status.Lease = start.Lease
	s.detail = ""
	j, err := launch(start, s.fence, s.fork, &s.bufs, s.null)
	if err != nil {
		exit := Exit{Reason: offpeak.EndNodeError, Detail: err.Error()}
		if se, ok := errors.AsType[*driver.StartError](err); ok {
			exit = Exit{Reason: se.Reason, Detail: se.Detail}
		}
		s.exited(start.Folder, exit)
		return
	}
	s.job = j
	s.status.Phase = Running
	s.diskAt = BootTime() + int64(diskEvery)
}

func checkStart(start Start) error {
	c := start.Command
	switch {
	case !filepath.IsAbs(c.Path) || len(c.Args) == 0:
		return errors.New("start: the command needs an absolute path and a name")
	case !filepath.IsAbs(c.Dir) || !filepath.IsAbs(start.Folder):
		return errors.New("start: folders must be absolute")
	case start.NoticePath != "" && !filepath.IsAbs(start.NoticePath):
		return errors.New("start: the notice's path must be absolute")
	}
	return nil
}

// freeze stops the tree. A tree that can't be stopped for lack of a lease is
// killed: it must not run when another node may have the job.
func (s *server) freeze(unleased bool) error {
	j := s.job
	if j.ended || j.watch.killed != "" || !j.watch.freeze(now(), unleased) {
		s.pushIf(unleased)
		return nil
	}
	if err := s.fence.freeze(true); err != nil {
		if !unleased {
			j.watch.thaw(now(), false)
			return fmt.Errorf("freeze: %w", err)
		}
		s.end(offpeak.EndNodeLost, "no word from a hub for the lease's timeout, and the job can't be frozen: "+err.Error())
		return nil
	}
	s.pushIf(unleased)
	return nil
}

func (s *server) pushIf(own bool) {
	if own {
		s.push(nil)
	}
}

func (s *server) thaw(unleased bool) error {
	j := s.job
	if !j.watch.thaw(now(), unleased) {
		return nil
	}
	if err := s.fence.freeze(false); err != nil {
		return fmt.Errorf("thaw: %w", err)
	}
	return nil
}

// notice tells the job to go. A job that is frozen for lack of a lease may not
// run on, not even to leave, so it is killed.
func (s *server) notice(n Notice) error {
	j := s.job
	if j.ended || j.watch.killed != "" {
		return nil
	}
	if j.watch.unleased {
		s.end(n.Reason, "killed while frozen for lack of a lease")
		return nil
	}
	grace := j.watch.grace
	if n.Grace > 0 {
		grace = n.Grace
	}
	t := now()
	killAt := t.Boot + int64(grace)
	if j.watch.noticed != "" && j.watch.killAt < killAt {
		// A second notice may hasten the end but not put it off.
		killAt = j.watch.killAt
		grace = time.Duration(killAt - t.Boot)
	}
	j.watch.noticed, j.watch.killAt = n.Reason, killAt
	err := writeNotice(j.start, n.Reason, grace)
	if terr := s.thaw(false); err == nil {
		err = terr
	}
	j.term()
	s.push(nil)
	return err
}

func writeNotice(start Start, reason offpeak.EndReason, grace time.Duration) error {
	path := start.NoticePath
	if path == "" {
		path = filepath.Join(start.Folder, "notice.json")
	}
	if err := writeWhole(path, offpeak.Notice{
		Reason: reason, Deadline: time.Now().Add(grace).UTC(), SecondsLeft: grace.Seconds(),
	}); err != nil {
		return fmt.Errorf("write the notice: %w", err)
	}
	return nil
}

// end kills the tree for a reason; the first reason stays.
func (s *server) end(reason offpeak.EndReason, detail string) {
	if j := s.job; j.watch.killed == "" && !j.ended {
		if reason == "" {
			reason = offpeak.EndCancelled
		}
		j.watch.killed, s.detail = reason, detail
		s.kill()
	}
}

// kill kills once; the alarm repeats it until no child is left.
func (s *server) kill() {
	s.killAt = BootTime() + int64(killEvery)
	s.job.stop.Store(true)
	if err := s.fence.kill(); err != nil && !slices.Contains(s.status.Warnings, err.Error()) {
		s.status.Warnings = append(s.status.Warnings, err.Error())
	}
}

// mainGone: the job is what its first process is; what that leaves behind is
// killed.
func (s *server) mainGone(ws syscall.WaitStatus) {
	j := s.job
	j.ended, j.status = true, ws
	select {
	case <-j.empty:
		s.treeGone()
	default:
		s.kill()
	}
}

// treeGone: no child is left, so the output ends too.
func (s *server) treeGone() {
	j := s.job
	j.stop.Store(true)
	if j.watch.frozen() && s.cg.v2 != "" {
		// The group serves the next job.
		_ = s.fence.freeze(false)
	}
	j.stopDraining()
	<-j.drained
	if j.measuring {
		<-j.disk
	}
	s.status.Ran = offpeak.Millis(j.watch.ran(now()).Milliseconds())
	s.status.Noticed = j.watch.noticed
	j.gone = true
	exit := j.exit()
	if limit := j.start.Limits.Disk; limit > 0 && (exit.Reason == offpeak.EndExitNonzero || exit.Reason == offpeak.EndSignalled) {
		// It may have filled the disk and failed of it between two looks.
		j.stop.Store(false)
		if found := lookAt(j.start.Command.Dir, &j.stop); found.size > limit {
			exit.Reason, exit.Detail = offpeak.EndDiskLimit, overLimit(found.size, limit)
		}
	}
	if s.detail != "" && j.watch.killed == exit.Reason {
		exit.Detail = s.detail
	}
	s.exited(j.start.Folder, exit)
	s.push(nil)
}

// exited records how the job ended.
func (s *server) exited(folder string, exit Exit) {
	s.status.Phase, s.status.Exit = Exited, &exit
	s.aloneAt = BootTime()
	s.folder, s.unsaved = folder, true
}

// save writes the result down, so that it survives this process. As long as an
// agent is connected that is the agent's part: it alone knows when the folder is
// to go. Where it is gone the result was taken.
func (s *server) save() {
	s.unsaved = false
	switch err := writeWhole(filepath.Join(s.folder, StatusFile), s.current()); {
	case errors.Is(err, fs.ErrNotExist):
		s.folder = ""
	case err != nil:
		s.status.Warnings = append(s.status.Warnings, "the status could not be written: "+err.Error())
	}
}
