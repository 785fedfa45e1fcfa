// Package pgtest runs private PostgreSQL servers for tests: from the Debian
// package's binaries, on free ports, in temporary folders, as a user that is not
// root, and as durable as a production server, so that a test may kill one and
// ask what was kept.
//
// A Server belongs to one test (Start, StartSkewable) or, as Shared, to all of
// one test binary, where each test takes a database of its own. No process, file
// or shared memory outlives the tests, however they end: a keeper waits for the
// end of the test's process, by a pipe that the kernel closes, and removes all
// there is. What a server needs of the machine is said through package require.
//
// Methods that do something to a running server return errors, because tests
// call them from goroutines. They may be called one at a time; URL, Database,
// Processes and Logs at any time.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"offpeak/internal/require"
)

// patience is how long a server may take to come or go. It is generous: crash
// recovery writes to a disk that others use too.
const patience = 2 * time.Minute

// Server is one PostgreSQL server.
type Server struct {
	bin  string // the folder of the server's binaries
	dir  string // all that the server writes lies below
	env  []string
	as   *syscall.Credential // who it runs as; nil: who runs the test
	port int
	// skewable says that it runs on a clock that Skew sets.
	skewable  bool
	keeper    *keeper
	databases atomic.Int64

	postmaster *exec.Cmd
	// gone is closed when the postmaster has ended.
	gone chan struct{}
}

// Start starts a server that ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	s := launch(t, nil)
	t.Cleanup(func() { s.end(t) })
	return s
}

// launch starts a server that lives until close. Prepare, if given, is called
// before its first start.
func launch(t testing.TB, prepare func(*Server) error) *Server {
	t.Helper()
	bin, err := binaries()
	require.Met(t, err, "PostgreSQL on Linux (apt-get install postgresql)")
	as, err := notRoot()
	require.Met(t, err, "a user who is not root")
	s := &Server{bin: bin, as: as}
	if err := s.create(prepare); err != nil {
		t.Fatalf("start PostgreSQL: %v", errors.Join(err, s.close()))
	}
	return s
}

// binaries is the folder of the newest PostgreSQL's server binaries.
func binaries() (string, error) {
	if runtime.GOOS != "linux" {
		return "", fmt.Errorf("find postgres: processes are found by /proc, which %s lacks", runtime.GOOS)
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if len(found) == 0 {
		path, err := exec.LookPath("postgres")
		if err != nil {
			return "", fmt.Errorf("find postgres: %w", err)
		}
		return filepath.Dir(path), nil
	}
	version := func(path string) int {
		n, _ := strconv.Atoi(strings.Split(path, "/")[4])
		return n
	}
	return filepath.Dir(slices.MaxFunc(found, func(a, b string) int { return version(a) - version(b) })), nil
}

// notRoot is whom a server started by root runs as, since PostgreSQL refuses
// root; nil where the test does not run as root.
func notRoot() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		u, err = user.Lookup("nobody")
	}
	if err != nil {
		return nil, err
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("look up user %s: %w", u.Username, err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// create makes the folder, the keeper and the cluster, and starts it.
func (s *Server) create(prepare func(*Server) error) error {
	tmp, err := filepath.EvalSymlinks(os.TempDir())
	if err != nil {
		return err
	}
	for dir := tmp; s.as != nil && dir != "/"; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err != nil || info.Mode()&1 == 0 {
			return fmt.Errorf("others than root can't enter %s: set TMPDIR to a folder that they can (%w)", dir, errors.Join(err, os.ErrPermission))
		}
	}
	// A short name: the path of a Unix socket holds 107 bytes.
	if s.dir, err = os.MkdirTemp(tmp, "pg"); err != nil {
		return err
	}
	if s.keeper, err = keep(s.dir); err != nil {
		return errors.Join(err, os.RemoveAll(s.dir))
	}
	if s.as != nil {
		if err := os.Chown(s.dir, int(s.as.Uid), int(s.as.Gid)); err != nil {
			return err
		}
	}
	// Nothing of the environment reaches the server: PGPORT and others would be heard.
	s.env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "LANG=C", "LC_ALL=C", "TZ=UTC"}
	initdb := s.command("initdb", "--pgdata", s.data(), "--username", "postgres", "--auth", "trust",
		"--encoding", "UTF8", "--locale", "C", "--no-sync", "--no-instructions")
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("run initdb: %w\n%s", err, out)
	}
	if prepare != nil {
		if err := prepare(s); err != nil {
			return err
		}
	}
	// Somebody else may take a free port before the server does.
	for range 5 {
		if s.port, err = freePort(); err != nil {
			return err
		}
		if err = s.Start(); err == nil || !strings.Contains(s.Logs(), "Address already in use") {
			return err
		}
	}
	return err
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func (s *Server) log() string { return filepath.Join(s.dir, "log") }

// command is one of the server's programs, run as the server's user in the
// server's folder, by which its processes are known, and out of reach of a
// terminal's interrupt.
func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir, cmd.Env = s.dir, s.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: s.as}
	return cmd
}

// URL is the server's own database, for a superuser.
func (s *Server) URL() string { return s.url("postgres") }

func (s *Server) url(database string) string {
	u := url.URL{Scheme: "postgres", User: url.User("postgres"), Host: s.Addr(), Path: "/" + database, RawQuery: "sslmode=disable"}
	return u.String()
}

// Addr is where the server listens, also while it is down: it keeps its port.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Database makes an empty database and returns its URL. It goes with the server.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("test%d", s.databases.Add(1))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		t.Fatalf("create database: %v", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "create database "+name); err != nil {
		t.Fatalf("create database: %v", err)
	}
	return s.url(name)
}

// Start starts the server, also after it was killed or stopped, and returns when
// it answers: recovery, if there was any to do, is over. A running server stays.
func (s *Server) Start() error {
	if s.running() {
		return nil
	}
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	defer log.Close()
	cmd := s.command("postgres", "-D", s.data(), "-p", strconv.Itoa(s.port),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="+s.dir,
		"-c", "max_connections=300", "-c", "shared_buffers=64MB",
		// In the data folder, so that it goes with it.
		"-c", "dynamic_shared_memory_type=mmap",
		"-c", "log_line_prefix=%m [%p] %d ")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_ = cmd.Wait() // how it ended shows in its log
	}()
	s.postmaster, s.gone = cmd, gone
	return s.ready()
}

func (s *Server) running() bool {
	if s.postmaster == nil {
		return false
	}
	select {
	case <-s.gone:
		return false
	default:
		return true
	}
}

// ready waits until the server answers, or has ended.
func (s *Server) ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		err := s.ask(ctx, "select 1", new(int))
		if err == nil {
			return nil
		}
		select {
		case <-s.gone:
			return fmt.Errorf("start postgres: it ended: %s\n%s", s.postmaster.ProcessState, s.Logs())
		case <-ctx.Done():
			return fmt.Errorf("start postgres: it did not answer within %s: %w\n%s", patience, err, s.Logs())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// ask runs a query that returns one value, over a connection of its own.
func (s *Server) ask(ctx context.Context, query string, answer any) error {
	conn, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return conn.QueryRow(ctx, query).Scan(answer)
}

// Kill kills every process of the server at once, as the loss of its machine
// does, and returns when they are gone. What was not durable is lost.
func (s *Server) Kill() error {
	return s.signal("kill", syscall.SIGKILL, s.kill)
}

// Mode is how a server is stopped.
type Mode syscall.Signal

// The modes, as pg_ctl names them: Fast ends all sessions and writes everything
// down; Immediate leaves at once, and the next start recovers.
const (
	Fast      = Mode(syscall.SIGINT)
	Immediate = Mode(syscall.SIGQUIT)
)

// Stop asks the server to stop, and returns when it is gone.
func (s *Server) Stop(m Mode) error {
	return s.signal("stop", syscall.Signal(m), nil)
}

// Restart stops a server fast and starts it again.
func (s *Server) Restart() error {
	if err := s.Stop(Fast); err != nil {
		return err
	}
	return s.Start()
}

// signal sends the postmaster a signal that ends it and waits until all its
// processes are gone. Then is called once it has been sent.
func (s *Server) signal(verb string, sig syscall.Signal, then func()) error {
	if !s.running() {
		return nil
	}
	if err := s.postmaster.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%s postgres: %w", verb, err)
	}
	deadline := time.Now().Add(patience)
	for {
		if then != nil {
			then()
		}
		left := s.Processes()
		if len(left) == 0 && !s.running() {
			return s.forgetClock(s.postmaster.Process.Pid)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s postgres: processes %v are still there after %s", verb, left, patience)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (s *Server) kill() {
	for _, pid := range s.Processes() {
		_ = syscall.Kill(pid, syscall.SIGKILL) // one that is gone is gone
	}
}

// Freeze stops every process of the server with SIGSTOP: it answers nobody, yet
// its sockets stay open.
func (s *Server) Freeze() error {
	if !s.running() {
		return errors.New("freeze postgres: it does not run")
	}
	// The postmaster first: then there are no new processes to miss.
	if err := s.postmaster.Process.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("freeze postgres: %w", err)
	}
	return s.all("freeze", syscall.SIGSTOP)
}

// Thaw undoes Freeze.
func (s *Server) Thaw() error { return s.all("thaw", syscall.SIGCONT) }

func (s *Server) all(verb string, sig syscall.Signal) error {
	for _, pid := range s.Processes() {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("%s postgres: signal process %d: %w", verb, pid, err)
		}
	}
	return nil
}

// Processes are the server's processes: those that work in its folder.
func (s *Server) Processes() []int {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	var out []int
	for _, link := range links {
		if dir, err := os.Readlink(link); err == nil && dir == s.data() {
			pid, _ := strconv.Atoi(strings.Split(link, "/")[2])
			out = append(out, pid)
		}
	}
	return out
}

// Logs is the newest part of what the server has logged.
func (s *Server) Logs() string {
	const most = 8 << 10
	data, err := os.ReadFile(s.log())
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-most):])
}

// end closes the server at the end of its test, and shows the log of a failed one.
func (s *Server) end(t testing.TB) {
	if t.Failed() {
		t.Logf("PostgreSQL's log:\n%s", s.Logs())
	}
	if err := s.close(); err != nil {
		t.Errorf("end PostgreSQL: %v", err)
	}
}

// close has the keeper remove the server, as it does when the test dies.
func (s *Server) close() error {
	if s.keeper == nil {
		return nil
	}
	err := s.keeper.dismiss()
	if s.postmaster != nil {
		<-s.gone
	}
	return err
}
