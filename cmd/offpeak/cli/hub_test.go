package cli

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"offpeak"
	"offpeak/internal/local"
	"offpeak/internal/require"
	"offpeak/wire"
)

// offpeakCommand makes a command of offpeak with a home of its own.
func offpeakCommand(t *testing.T, home string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), "OFFPEAK_TEST_MAIN=1", "OFFPEAK_PRESENCE=false", "OFFPEAK_HOME="+home)
	return cmd
}

// once runs a command that ends by itself and returns its exit code and output.
func once(t *testing.T, home string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := offpeakCommand(t, home, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), out.String(), errs.String()
	}
	if err != nil {
		t.Fatal(err)
	}
	return 0, out.String(), errs.String()
}

// running is a hub process.
type running struct {
	t      *testing.T
	cmd    *exec.Cmd
	url    string
	stderr *lines
	ended  chan error
}

// startHub starts a hub and waits until it listens.
func startHub(t *testing.T, home string, args ...string) *running {
	t.Helper()
	cmd := offpeakCommand(t, home, append([]string{"hub", "--listen", "127.0.0.1:0", "--tick", "100ms"}, args...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	h := &running{t: t, cmd: cmd, stderr: &lines{more: make(chan struct{}, 1)}, ended: make(chan error, 1)}
	cmd.Stderr = h.stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	go func() { h.ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-h.ended
	})
	var ok bool
	if h.url, ok = strings.CutPrefix(strings.TrimSpace(line), "listening on "); !ok {
		t.Fatalf("first line %q, %v; stderr: %s", line, err, h.stderr)
	}
	return h
}

// stop stops the hub as an operator does and checks that it ends well.
func (h *running) stop() {
	h.t.Helper()
	if err := h.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		h.t.Fatal(err)
	}
	if err := h.wait(); err != nil {
		h.t.Errorf("hub ended with %v: %s", err, h.stderr)
	}
}

func (h *running) wait() error {
	h.t.Helper()
	select {
	case err := <-h.ended:
		h.ended <- err
		return err
	case <-time.After(20 * time.Second):
		h.t.Fatalf("hub goes on: %s", h.stderr)
		return nil
	}
}

// lines is what a process wrote, to be waited on.
type lines struct {
	mu   sync.Mutex // guards buf
	buf  bytes.Buffer
	more chan struct{}
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.more <- struct{}{}:
	default:
	}
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// await waits until text was written.
func (l *lines) await(t *testing.T, text string) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for !strings.Contains(l.String(), text) {
		select {
		case <-l.more:
		case <-limit:
			t.Fatalf("%q was not written: %s", text, l)
		}
	}
}

func localFile(t *testing.T, home string) wire.Local {
	t.Helper()
	l, err := local.Read(filepath.Join(home, "local.json"))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func direct(l wire.Local) *wire.Direct {
	return &wire.Direct{Client: wire.Client(l.Fingerprint), Base: l.Hubs[0], Token: l.Token, Agent: "test"}
}

var secretForm = regexp.MustCompile(`offpeak_u_\S+`)

func TestHubFirstStart(t *testing.T) {
	home := t.TempDir()
	h := startHub(t, home)
	h.stderr.await(t, "Keep it safe")
	secret := secretForm.FindString(h.stderr.String())
	if secret == "" {
		t.Fatalf("no admin token was shown: %s", h.stderr)
	}
	l := localFile(t, home)
	if l.Hubs[0] != h.url || l.PID != h.cmd.Process.Pid || l.Fingerprint != "" {
		t.Errorf("local file %+v", l)
	}
	for name, token := range map[string]string{"the token shown": secret, "the local file's": l.Token} {
		d := direct(l)
		d.Token = token
		if who, err := d.Whoami(t.Context()); err != nil || who.Role != offpeak.RoleAdmin || who.Version != "1.2.3-test" {
			t.Errorf("%s: %+v, %v", name, who, err)
		}
	}
	h.stop()
	if _, err := local.Read(filepath.Join(home, "local.json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the local file outlived its hub: %v", err)
	}
	h = startHub(t, home)
	if s := secretForm.FindString(h.stderr.String()); s != "" {
		t.Error("a token was shown again")
	}
	d := direct(localFile(t, home))
	d.Token = secret
	if _, err := d.Whoami(t.Context()); err != nil {
		t.Errorf("the first token after a restart: %v", err)
	}
	d.Token = l.Token
	if _, err := d.Whoami(t.Context()); !errors.Is(err, offpeak.ErrUnauthenticated) {
		t.Errorf("the local token of a hub that ended: %v", err)
	}
	h.stop()
}

func TestHubRefuses(t *testing.T) {
	home := t.TempDir()
	h := startHub(t, home)
	data := filepath.Join(home, "hub")

	refused := func(what string, want int, say string, args ...string) {
		t.Helper()
		code, _, stderr := once(t, t.TempDir(), args...)
		if code != want || !strings.Contains(stderr, say) || !strings.HasPrefix(stderr, "error: ") {
			t.Errorf("%s: exit %d, %q; want exit %d and %q", what, code, stderr, want, say)
		}
	}
	refused("a second hub on the same data", 1, fmt.Sprintf("in use by process %d", h.cmd.Process.Pid), "hub", "--listen", "127.0.0.1:0", "--data", data)
	refused("a port in use", 1, "the port is in use", "hub", "--listen", strings.TrimPrefix(h.url, "http://"))
	h.stop()

	db := filepath.Join(data, "offpeak.db")
	good, err := os.ReadFile(db)
	if err != nil {
		t.Fatal(err)
	}
	broken := bytes.Clone(good)
	copy(broken[4096:], bytes.Repeat([]byte{0xff}, 8192))
	if err := os.WriteFile(db, broken, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("a corrupt database", 1, "offpeak restore", "hub", "--listen", "127.0.0.1:0", "--data", data)
	if after, err := os.ReadFile(db); err != nil || !bytes.Equal(after, broken) {
		t.Errorf("the corrupt database was changed: %v", err)
	}

	for _, tc := range []struct {
		say  string
		args []string
	}{
		{"unknown flag", []string{"hub", "--colour"}},
		{"takes no arguments", []string{"hub", "now"}},
		{"--heartbeat", []string{"hub", "--heartbeat", "-1s"}},
		{"three heartbeats", []string{"hub", "--timeout", "6s"}},
		{"--listen", []string{"hub", "--listen", "here"}},
		{"--advertise", []string{"hub", "--advertise", "example.org"}},
		{"--keep-logs", []string{"hub", "--keep-logs", "-1h"}},
		{"--rate", []string{"hub", "--rate", "NaN"}},
		{"--blobs", []string{"hub", "--blobs", "gs://bucket"}},
		{"--blobs", []string{"hub", "--blobs", "s3://bucket?endpoint=ftp://s3.example.org"}},
		{"is a folder of its own", []string{"hub", "--listen", "127.0.0.1:0", "--data", filepath.Join(home, "beside"), "--blobs", filepath.Join(home, "beside", "blobs")}},
		{"--blobs", []string{"restore", "/nowhere", "--blobs", "here"}},
		{"--log-level", []string{"hub", "--log-level", "loud"}},
		{"--log-format", []string{"hub", "--log-format", "xml"}},
		{"does not exist", []string{"hub", "--config", "/nowhere/hub.yaml"}},
		{"one argument", []string{"restore"}},
		{"no backup", []string{"restore", "/nowhere"}},
		{"unknown command", []string{"dance"}},
	} {
		refused(strings.Join(tc.args, " "), 2, tc.say, tc.args...)
	}
}

// A second hub of one user leaves the first where its agents and commands find
// it; one that was killed does not stand in the way of the next.
func TestHubsOfOneUser(t *testing.T) {
	home := t.TempDir()
	first := startHub(t, home)
	second := startHub(t, home, "--data", filepath.Join(home, "other"))
	second.stderr.await(t, "another hub of yours serves already")
	second.stderr.await(t, "offpeak login "+second.url)
	if have := localFile(t, home).Hubs; !slices.Equal(have, []string{first.url}) {
		t.Errorf("the local file names %v beside a second hub, want %s", have, first.url)
	}
	second.stop()
	if have := localFile(t, home).Hubs; !slices.Equal(have, []string{first.url}) {
		t.Errorf("the local file names %v after a second hub, want %s", have, first.url)
	}
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.wait()
	next := startHub(t, home, "--data", filepath.Join(home, "other"))
	if have := localFile(t, home).Hubs; !slices.Equal(have, []string{next.url}) {
		t.Errorf("the local file names %v after a kill, want %s", have, next.url)
	}
}

// A hub whose disk fills up refuses what is new, says so, and loses nothing that
// it had acknowledged.
// smallDisk is a disk of 8 MiB, and what fills it up.
func smallDisk(t *testing.T) (disk string, fill func() (free func())) {
	t.Helper()
	disk = t.TempDir()
	require.Met(t, syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=8m"), "the right to mount a small disk")
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return disk, func() func() {
		t.Helper()
		f, err := os.Create(filepath.Join(disk, "fill"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(f, endless{}); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("the disk did not fill up: %v", err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		return func() {
			t.Helper()
			if err := os.Remove(f.Name()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A hub that died on a full disk starts there as anywhere: it serves what it
// has, refuses what it can't keep, and goes on by itself when there is room.
func TestHubStartsOnAFullDisk(t *testing.T) {
	home := t.TempDir()
	disk, fill := smallDisk(t)
	data := filepath.Join(disk, "hub")
	h := startHub(t, home, "--data", data)
	before := localFile(t, home)
	code, kept, stderr := once(t, home, "submit", "--name", "before", "--", "true")
	if code != 0 {
		t.Fatalf("submit: exit %d, %s", code, stderr)
	}
	free := fill()
	if err := h.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = h.wait()
	h = startHub(t, home, "--data", data, "--listen", strings.TrimPrefix(before.Hubs[0], "http://"))
	code, ids, stderr := once(t, home, "ps", "-o", "name")
	if code != 0 || ids != kept {
		t.Errorf("ps on a full disk: exit %d, %q, want %q: %s", code, ids, kept, stderr)
	}
	submit := func() error {
		_, err := direct(before).Submit(t.Context(), "op-full", offpeak.Spec{Task: offpeak.Task{Driver: "process", Command: []string{"true", strings.Repeat("y", 100<<10)}}})
		return err
	}
	if err := submit(); !errors.Is(err, offpeak.ErrStorage) && !errors.Is(err, offpeak.ErrUnavailable) {
		t.Errorf("submit on a full disk: %v", err)
	}
	free()
	for limit := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		err := submit()
		if err == nil {
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("submit with room again: %v", err)
		}
	}
	h.stop()
}

func TestHubOnAFullDisk(t *testing.T) {
	home := t.TempDir()
	disk, fill := smallDisk(t)
	data := filepath.Join(disk, "hub")
	h := startHub(t, home, "--data", data)
	code, kept, stderr := once(t, home, "submit", "--name", "before", "--", "true")
	if code != 0 {
		t.Fatalf("submit: exit %d, %s", code, stderr)
	}
	free := fill()
	input := filepath.Join(t.TempDir(), "input")
	if err := os.WriteFile(input, bytes.Repeat([]byte("0123456789abcdef"), 1<<17), 0o600); err != nil {
		t.Fatal(err)
	}
	d := direct(localFile(t, home))
	_, err := d.Submit(t.Context(), "op-full", offpeak.Spec{Name: strings.Repeat("x", 60), Task: offpeak.Task{Driver: "process", Command: []string{"true", strings.Repeat("y", 100<<10)}}})
	if !errors.Is(err, offpeak.ErrStorage) && !errors.Is(err, offpeak.ErrUnavailable) {
		t.Errorf("submit on a full disk: %v", err)
	}
	if code, _, stderr := once(t, home, "hub", "--no-local-file", "--listen", "127.0.0.1:0", "--data", filepath.Join(disk, "second")); code != 1 || !strings.Contains(stderr, "the disk is full") {
		t.Errorf("a hub that starts on a full disk: exit %d, %s", code, stderr)
	}
	free()
	code, ids, stderr := once(t, home, "ps", "-o", "name")
	if code != 0 || ids != kept {
		t.Errorf("ps after the disk was full: exit %d, %q, want %q: %s", code, ids, kept, stderr)
	}
	if code, _, stderr := once(t, home, "submit", "--input", input, "--", "true"); code != 0 {
		t.Errorf("submit with room again: exit %d, %s", code, stderr)
	}
	h.stop()
}

// endless is zeroes without end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestHubServesTLSBeyondLoopback(t *testing.T) {
	home := t.TempDir()
	h := startHub(t, home, "--listen", "0.0.0.0:0")
	l := localFile(t, home)
	if !strings.HasPrefix(l.Hubs[0], "https://") || len(l.Fingerprint) != 64 {
		t.Fatalf("local file %+v", l)
	}
	if _, err := direct(l).Whoami(t.Context()); err != nil {
		t.Errorf("with the pin: %v", err)
	}
	pin := l.Fingerprint
	l.Fingerprint = strings.Repeat("0", 64)
	if _, err := direct(l).Whoami(t.Context()); err == nil || !strings.Contains(err.Error(), "another hub") {
		t.Errorf("with another pin: %v", err)
	}
	addr := strings.TrimPrefix(h.url, "https://")
	if conn, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}); err == nil {
		conn.Close()
		t.Error("the hub speaks TLS 1.2")
	}
	if resp, err := http.Get("http://" + addr + "/v1/health"); err == nil && resp.StatusCode == http.StatusOK {
		t.Error("the hub speaks plain HTTP")
	}
	info, err := os.Stat(filepath.Join(home, "hub", "hub.key"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the hub's key: %v, %v", info, err)
	}
	h.stop()
	h = startHub(t, home, "--listen", "0.0.0.0:0")
	if again := localFile(t, home).Fingerprint; again != pin {
		t.Error("a restart changed the key")
	}
	h.stop()
}

func TestBackupAndRestore(t *testing.T) {
	home := t.TempDir()
	h := startHub(t, home)
	d := direct(localFile(t, home))
	job, err := d.Submit(t.Context(), "op-1", offpeak.Spec{Name: "kept", Task: offpeak.Task{Driver: "process", Command: []string{"true"}}})
	if err != nil {
		t.Fatal(err)
	}
	// Not all of it is written yet, perhaps.
	const size = 1500
	group, err := d.SubmitGroup(t.Context(), "op-0", wire.NewGroup{
		Spec:  offpeak.Spec{Task: offpeak.Task{Driver: "process", Command: []string{"true"}}},
		Array: offpeak.Array{Indexes: offpeak.Indexes{{First: 1, Last: size}}, AtOnce: 3},
	})
	if err != nil {
		t.Fatal(err)
	}
	backup := filepath.Join(t.TempDir(), "b")
	if err := d.Backup(t.Context(), "op-2", backup); err != nil {
		t.Fatal(err)
	}
	later, err := d.Submit(t.Context(), "op-3", offpeak.Spec{Name: "later", Task: offpeak.Task{Driver: "process", Command: []string{"true"}}})
	if err != nil {
		t.Fatal(err)
	}
	h.stop()

	if code, _, stderr := once(t, home, "restore", backup); code != 2 || !strings.Contains(stderr, "holds a hub's state already") {
		t.Errorf("restore over a hub's state: exit %d, %s", code, stderr)
	}
	if err := os.Rename(filepath.Join(home, "hub"), filepath.Join(home, "old")); err != nil {
		t.Fatal(err)
	}
	if code, stdout, stderr := once(t, home, "restore", backup); code != 0 || !strings.Contains(stdout, "restored") {
		t.Fatalf("restore: exit %d, %s%s", code, stdout, stderr)
	}
	h = startHub(t, home)
	d = direct(localFile(t, home))
	if got, err := d.Job(t.Context(), job.ID); err != nil || got.Spec.Name != "kept" {
		t.Errorf("the job in the backup: %+v, %v", got, err)
	}
	if got, err := d.Group(t.Context(), group.ID); err != nil || got.Counts[offpeak.JobQueued] != size || got.Array.AtOnce != 3 || got.Array.Indexes.String() != "1-1500" {
		t.Errorf("the array in the backup: %+v, %v", got, err)
	}
	if got, err := d.CancelGroup(t.Context(), "op-4", group.ID); err != nil || got.Counts[offpeak.JobCancelled] != size {
		t.Errorf("the array cancelled: %+v, %v", got, err)
	}
	if _, err := d.Job(t.Context(), later.ID); !errors.Is(err, offpeak.ErrNotFound) {
		t.Errorf("the job after the backup: %v", err)
	}
	if c, err := d.Check(t.Context()); err != nil || !c.OK {
		t.Errorf("check: %+v, %v", c, err)
	}
	h.stop()
}

// A hub told to stop lets requests finish; told again, it goes at once.
func TestSecondSignal(t *testing.T) {
	home := t.TempDir()
	h := startHub(t, home)
	l := localFile(t, home)
	conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = io.WriteString(conn, "PUT /v1/blobs/"+strings.Repeat("a", 64)+" HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nAuthorization: Bearer "+l.Token+"\r\nContent-Length: 100\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	// The hub asks for the body: its handler is at work and waits for us.
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "100") {
		t.Fatalf("answer %q, %v", line, err)
	}
	_ = h.cmd.Process.Signal(syscall.SIGTERM)
	h.stderr.await(t, `"stopping"`)
	if conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://")); err == nil {
		// The listener may still be closing; a new request is not served.
		conn.Close()
	}
	select {
	case <-h.ended:
		t.Fatal("the hub did not wait for the request")
	default:
	}
	_ = h.cmd.Process.Signal(syscall.SIGTERM)
	err = h.wait()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("after the second signal: %v", err)
	}
}
