package supervisor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Options say how to start a supervisor.
type Options struct {
	// Exe is the binary whose hidden command "supervise" is Main.
	Exe string
	// Dir is the supervisor's own folder, which must exist; any length of path.
	Dir string
	// Log takes what the supervisor process prints, which is nothing unless it
	// can't start. Nil drops it.
	Log *os.File
	// Fence forces a fence; "" is the best that works.
	Fence string
}

// Spawn starts an idle supervisor that outlives this process, and connects to it.
func Spawn(ctx context.Context, o Options) (*Handle, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("spawn supervisor: %w", err)
	}
	o.Dir = dir
	// A machine may refuse namespaces in several ways; then do without.
	var errs []error
	for _, namespaced := range []bool{true, false} {
		if namespaced && o.Fence != "" && o.Fence != FencePIDNamespace || !namespaced && o.Fence == FencePIDNamespace {
			continue
		}
		h, err := spawn(ctx, o, namespaced)
		if err == nil {
			return h, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("spawn supervisor: %w", errors.Join(errs...))
}

func spawn(ctx context.Context, o Options, namespaced bool) (*Handle, error) {
	listener, err := listen(o.Dir)
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	args := []string{"supervise", "--dir", o.Dir}
	if o.Fence != "" {
		args = append(args, "--fence", o.Fence)
	}
	cmd := exec.Command(o.Exe, args...)
	// Nothing of the agent's environment may leak into jobs' supervisors; two
	// threads are plenty.
	cmd.Env = []string{"GOMAXPROCS=2", "PATH=/usr/bin:/bin"}
	cmd.ExtraFiles = []*os.File{listener}
	if o.Log != nil {
		cmd.Stderr = o.Log
	}
	cmd.SysProcAttr = sysProcAttr(namespaced)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", o.Exe, err)
	}
	// The socket is there already, so there is nothing to wait for; if the
	// process dies instead of answering, the connection ends.
	listener.Close()
	h, err := Adopt(ctx, o.Dir)
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, err
	}
	h.reap(cmd)
	return h, nil
}

func sysProcAttr(namespaced bool) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setsid: true}
	if !namespaced {
		return a
	}
	a.Cloneflags = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS
	if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 {
		// An unprivileged process may have namespaces inside one of users, in
		// which it stays who it is. The capability is for mounting /proc.
		a.Cloneflags |= syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		a.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN}
	}
	return a
}

// listen binds the socket in dir. A socket's path has room for 107 bytes, so
// the folder is named through a descriptor of it.
func listen(dir string) (*os.File, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open the supervisor's folder: %w", err)
	}
	defer d.Close()
	if err := os.Remove(filepath.Join(dir, socketName)); err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("remove an old socket: %w", err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), socketName)
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: through(d)})
	if err == nil {
		err = os.Chmod(filepath.Join(dir, socketName), 0o600)
	}
	if err == nil {
		err = unix.Listen(fd, 16)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("listen in %s: %w", dir, err)
	}
	return f, nil
}

func through(d *os.File) string { return fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), socketName) }

// Adopt connects to the supervisor in dir, whoever started it. It returns an
// error when none answers there.
func Adopt(ctx context.Context, dir string) (*Handle, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("adopt supervisor: %w", err)
	}
	defer d.Close()
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "unix", through(d))
	if err != nil {
		return nil, fmt.Errorf("adopt supervisor in %s: %w", dir, err)
	}
	h := &Handle{
		dir: dir, conn: c,
		waiting: map[uint64]chan Status{},
		updates: make(chan Status, 1),
		gone:    make(chan struct{}),
		reaped:  make(chan struct{}),
	}
	close(h.reaped)
	go h.read()
	if _, err := h.Do(ctx, Request{Status: &struct{}{}}); err != nil {
		h.Close()
		return nil, fmt.Errorf("adopt supervisor in %s: %w", dir, err)
	}
	return h, nil
}

// Handle is an agent's end of one supervisor. Its methods may be called from
// any goroutine.
type Handle struct {
	dir     string
	conn    net.Conn
	updates chan Status
	gone    chan struct{}
	reaped  chan struct{}

	writeMu sync.Mutex

	mu      sync.Mutex
	nextID  uint64                 // guarded by mu
	waiting map[uint64]chan Status // guarded by mu
	err     error                  // guarded by mu; set before gone is closed
	closed  bool                   // guarded by mu
	cmd     *exec.Cmd              // guarded by mu; nil for an adopted one
}

// Process is the supervisor's process as this one numbers it, which it does not
// know itself in a namespace of its own. 0: it is gone.
func (h *Handle) Process() int {
	h.mu.Lock()
	cmd := h.cmd
	h.mu.Unlock()
	if cmd != nil {
		return cmd.Process.Pid
	}
	// Started by another agent, it is known by what it was started with. What its
	// job starts with the same words is younger.
	dir, err := filepath.Abs(h.dir)
	if err != nil {
		return 0
	}
	var oldest proc
	for _, p := range processes() {
		args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
		if err != nil || !bytes.Contains(args, []byte("\x00supervise\x00--dir\x00"+dir+"\x00")) {
			continue
		}
		if oldest.pid == 0 || p.before(oldest) {
			oldest = p
		}
	}
	return oldest.pid
}

// RefusedError is a supervisor's refusal of a request; nothing was changed.
type RefusedError struct{ Why string }

func (e *RefusedError) Error() string { return "supervisor refused: " + e.Why }

// ErrGone says that the supervisor is gone, or the handle closed.
var ErrGone = errors.New("supervisor is gone")

// Dir is the supervisor's folder.
func (h *Handle) Dir() string { return h.dir }

// Do asks one thing and returns the status after it. It returns a
// *RefusedError when the supervisor refused and an ErrGone when it is gone.
func (h *Handle) Do(ctx context.Context, r Request) (Status, error) {
	answer := make(chan Status, 1)
	h.mu.Lock()
	h.nextID++
	r.ID = h.nextID
	h.waiting[r.ID] = answer
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		delete(h.waiting, r.ID)
		h.mu.Unlock()
	}()
	data, err := json.Marshal(r)
	if err != nil {
		return Status{}, fmt.Errorf("ask supervisor: %w", err)
	}
	if err := h.write(ctx, append(data, '\n')); err != nil {
		return Status{}, fmt.Errorf("ask supervisor: %w: %w", ErrGone, err)
	}
	select {
	case st := <-answer:
		if st.Error != "" {
			return st, &RefusedError{Why: st.Error}
		}
		return st, nil
	case <-h.gone:
		h.mu.Lock()
		defer h.mu.Unlock()
		return Status{}, fmt.Errorf("ask supervisor: %w: %w", ErrGone, h.err)
	case <-ctx.Done():
		return Status{}, fmt.Errorf("ask supervisor: %w", context.Cause(ctx))
	}
}

func (h *Handle) write(ctx context.Context, data []byte) error {
	h.writeMu.Lock()
	defer h.writeMu.Unlock()
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(10 * time.Second)
	}
	_ = h.conn.SetWriteDeadline(deadline)
	n, err := h.conn.Write(data)
	if err != nil && n > 0 {
		// A cut request would garble the next.
		h.conn.Close()
	}
	return err
}

// Updates yields the latest status when it changed; answers to Do are among
// them, so that it never goes back in time. It is closed when the supervisor is
// gone or the handle closed.
func (h *Handle) Updates() <-chan Status { return h.updates }

// Alive says that the supervisor was there when last heard.
func (h *Handle) Alive() bool {
	select {
	case <-h.gone:
		return false
	default:
		return true
	}
}

// read takes answers and pushes until the connection ends.
func (h *Handle) read() {
	sc := bufio.NewScanner(h.conn)
	sc.Buffer(make([]byte, 0, 4<<10), maxMessage)
	err := error(nil)
	for sc.Scan() {
		var st Status
		if err = json.Unmarshal(sc.Bytes(), &st); err != nil {
			break
		}
		// Answers count as updates: what was pushed before one is stale after it.
		select {
		case <-h.updates:
		default:
		}
		h.updates <- st
		if st.Re == 0 {
			continue
		}
		h.mu.Lock()
		answer := h.waiting[st.Re]
		h.mu.Unlock()
		if answer != nil {
			answer <- st
		}
	}
	if err == nil {
		err = sc.Err()
	}
	if err == nil {
		err = errors.New("connection ended")
	}
	h.conn.Close()
	h.mu.Lock()
	h.err = err
	h.mu.Unlock()
	close(h.gone)
	close(h.updates)
}

// reap makes the handle wait for the process it started once that is gone, so
// that no zombie is left. A handle that is closed first lets go of it.
func (h *Handle) reap(cmd *exec.Cmd) {
	h.reaped = make(chan struct{})
	h.mu.Lock()
	h.cmd = cmd
	h.mu.Unlock()
	go func() {
		defer close(h.reaped)
		<-h.gone
		h.mu.Lock()
		closed := h.closed
		h.mu.Unlock()
		if closed {
			_ = cmd.Process.Release()
			return
		}
		// Its end of the connection is closed by its death or as its last act;
		// should it hang between the two, its job is dead all the same.
		kill := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		defer kill.Stop()
		_ = cmd.Wait()
	}()
}

// Close leaves the supervisor running for another agent to adopt. It is for an
// agent that ends itself.
func (h *Handle) Close() error {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	err := h.conn.Close()
	<-h.gone
	<-h.reaped
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// End quits the supervisor, killing what runs, and waits until it is gone and
// nothing of it is left. If it does not answer within the context it is killed.
func (h *Handle) End(ctx context.Context) error {
	_, err := h.Do(ctx, Request{Quit: &struct{}{}})
	if err == nil {
		select {
		case <-h.gone:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	h.mu.Lock()
	cmd := h.cmd
	h.mu.Unlock()
	if err != nil && cmd != nil {
		_ = cmd.Process.Kill()
	}
	if err != nil && cmd == nil && h.Alive() {
		return fmt.Errorf("end supervisor: %w", err)
	}
	<-h.gone
	<-h.reaped
	return Remove(h.dir)
}
