package presence

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"offpeak/internal/require"
)

// privateBus starts a message bus of the test's own and returns its address.
func privateBus(t *testing.T) string {
	t.Helper()
	path := require.Tool(t, "dbus-daemon", "dbus-daemon")
	dir := t.TempDir()
	config := filepath.Join(dir, "bus.conf")
	text := `<busconfig><type>session</type><listen>unix:path=` + filepath.Join(dir, "bus") + `</listen>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>`
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "--config-file="+config, "--nofork", "--print-address=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the bus does not start: %v", err)
	}
	return strings.TrimSpace(address)
}

// service takes a name on a bus and exports objects there.
func service(t *testing.T, address, name string, export func(*dbus.Conn)) *dbus.Conn {
	t.Helper()
	conn, err := dbus.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	export(conn)
	if _, err := conn.RequestName(name, dbus.NameFlagDoNotQueue); err != nil {
		t.Fatal(err)
	}
	return conn
}

// fakeIdle is GNOME's idle monitor or KDE's screen locker.
type fakeIdle struct{ ms atomic.Uint64 }

func (f *fakeIdle) GetIdletime() (uint64, *dbus.Error)        { return f.ms.Load(), nil }
func (f *fakeIdle) GetSessionIdleTime() (uint32, *dbus.Error) { return uint32(f.ms.Load()), nil }

// properties answers GetAll.
type properties map[string]dbus.Variant

func (p properties) GetAll(string) (map[string]dbus.Variant, *dbus.Error) { return p, nil }

func TestDesktopsTellInput(t *testing.T) {
	address := privateBus(t)
	b := &bus{name: "session bus", address: address}
	defer b.Close()
	for name, ask := range map[string]func(context.Context) (time.Duration, error){"GNOME": b.mutterIdle, "KDE": b.saverIdle} {
		if _, err := ask(bounded(t)); !errors.Is(err, ErrAbsent) {
			t.Errorf("without %s: %v", name, err)
		}
	}
	idle := &fakeIdle{}
	idle.ms.Store(90_000)
	service(t, address, "org.gnome.Mutter.IdleMonitor", func(c *dbus.Conn) {
		_ = c.Export(idle, "/org/gnome/Mutter/IdleMonitor/Core", "org.gnome.Mutter.IdleMonitor")
	})
	service(t, address, "org.freedesktop.ScreenSaver", func(c *dbus.Conn) {
		_ = c.Export(idle, "/ScreenSaver", "org.freedesktop.ScreenSaver")
	})
	for name, ask := range map[string]func(context.Context) (time.Duration, error){"GNOME": b.mutterIdle, "KDE": b.saverIdle} {
		if d, err := ask(bounded(t)); err != nil || d != 90*time.Second {
			t.Errorf("%s: %s, %v", name, d, err)
		}
	}
	idle.ms.Store(3)
	if d, err := b.mutterIdle(bounded(t)); err != nil || d != 3*time.Millisecond {
		t.Errorf("after input: %s, %v", d, err)
	}
	idle.ms.Store(1 << 63)
	if d, err := b.mutterIdle(bounded(t)); err != nil || d < 24*time.Hour {
		t.Errorf("what can't be counted: %s, %v", d, err)
	}
}

// TestScreenSaverWithoutIdleTime: GNOME serves the name and not the method.
func TestScreenSaverWithoutIdleTime(t *testing.T) {
	address := privateBus(t)
	b := &bus{name: "session bus", address: address}
	defer b.Close()
	service(t, address, "org.freedesktop.ScreenSaver", func(c *dbus.Conn) {
		_ = c.ExportMethodTable(map[string]any{"Lock": func() *dbus.Error { return nil }}, "/ScreenSaver", "org.freedesktop.ScreenSaver")
	})
	if _, err := b.saverIdle(bounded(t)); !errors.Is(err, ErrAbsent) {
		t.Errorf("err = %v", err)
	}
}

// fakeLogin is logind: its sessions, and who holds up its sleep.
type fakeLogin struct {
	mu       sync.Mutex
	sessions []loginSession
	holds    []*os.File
	refuses  bool
}

type loginSession struct {
	ID   string
	UID  uint32
	User string
	Seat string
	Path dbus.ObjectPath
}

func (f *fakeLogin) ListSessions() ([]loginSession, *dbus.Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sessions, nil
}

func (f *fakeLogin) Inhibit(what, _, _, mode string) (dbus.UnixFD, *dbus.Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuses || what != "sleep" || mode != "delay" {
		return 0, dbus.NewError("org.freedesktop.DBus.Error.AccessDenied", []any{"no"})
	}
	r, w, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	f.holds = append(f.holds, r, w)
	return dbus.UnixFD(w.Fd()), nil
}

// held says whether somebody holds up the sleep: the pipe has a writer but ours.
func (f *fakeLogin) held() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.holds) == 0 {
		return false
	}
	r, w := f.holds[len(f.holds)-2], f.holds[len(f.holds)-1]
	w.Close()
	_ = r.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	_, err := r.Read(make([]byte, 1))
	return errors.Is(err, os.ErrDeadlineExceeded)
}

func TestSessionHints(t *testing.T) {
	address := privateBus(t)
	b := &bus{name: "system bus", address: address}
	defer b.Close()
	mono := time.Hour
	if _, err := b.sessionIdle(bounded(t), mono); !errors.Is(err, ErrAbsent) {
		t.Errorf("without logind: %v", err)
	}
	login := &fakeLogin{}
	conn := service(t, address, "org.freedesktop.login1", func(c *dbus.Conn) {
		_ = c.Export(login, "/org/freedesktop/login1", "org.freedesktop.login1.Manager")
	})
	if _, err := b.sessionIdle(bounded(t), mono); !errors.Is(err, ErrAbsent) {
		t.Errorf("without sessions: %v", err)
	}
	add := func(id, seat string, p properties) {
		path := dbus.ObjectPath("/org/freedesktop/login1/session/" + id)
		_ = conn.Export(p, path, "org.freedesktop.DBus.Properties")
		login.mu.Lock()
		defer login.mu.Unlock()
		login.sessions = append(login.sessions, loginSession{ID: id, Seat: seat, Path: path})
	}
	v := dbus.MakeVariant
	// Who is elsewhere, has just left or is nobody does not count.
	add("c1", "seat0", properties{"Class": v("greeter"), "IdleHint": v(false)})
	add("c2", "", properties{"Class": v("user"), "Remote": v(true), "IdleHint": v(false)})
	add("c3", "seat0", properties{"Class": v("user"), "State": v("closing"), "IdleHint": v(false)})
	if _, err := b.sessionIdle(bounded(t), mono); !errors.Is(err, ErrAbsent) {
		t.Errorf("nobody: %v", err)
	}
	add("c4", "seat0", properties{"Class": v("user"), "State": v("active"), "IdleHint": v(true), "IdleSinceHintMonotonic": v(uint64(50 * 60 * 1_000_000))})
	if d, err := b.sessionIdle(bounded(t), mono); err != nil || d != 10*time.Minute {
		t.Errorf("idle: %s, %v", d, err)
	}
	add("c5", "seat0", properties{"Class": v("user"), "State": v("active"), "IdleHint": v(false)})
	if d, err := b.sessionIdle(bounded(t), mono); err != nil || d != 0 {
		t.Errorf("two users: %s, %v", d, err)
	}
}

func TestMeteredNetwork(t *testing.T) {
	address := privateBus(t)
	b := &bus{name: "system bus", address: address}
	defer b.Close()
	var conn *dbus.Conn
	service(t, address, "org.freedesktop.NetworkManager", func(c *dbus.Conn) { conn = c })
	for says, want := range []string{"absent", "true", "false", "true", "false"} {
		_ = conn.Export(properties{"Metered": dbus.MakeVariant(uint32(says))}, "/org/freedesktop/NetworkManager", "org.freedesktop.DBus.Properties")
		got, err := b.metered(bounded(t))
		if text := map[bool]string{true: "absent", false: fmt.Sprint(got)}[errors.Is(err, ErrAbsent)]; text != want {
			t.Errorf("%d: %s, %v, want %s", says, text, err, want)
		}
	}
}

// TestSleepIsHeldUp: the machine waits until the sleep was told, and no longer, and
// is held up again after it woke.
func TestSleepIsHeldUp(t *testing.T) {
	address := privateBus(t)
	b := &bus{name: "system bus", address: address}
	defer b.Close()
	login := &fakeLogin{}
	conn := service(t, address, "org.freedesktop.login1", func(c *dbus.Conn) {
		_ = c.Export(login, "/org/freedesktop/login1", "org.freedesktop.login1.Manager")
	})
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	var told []bool
	telling := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- b.announceSleep(ctx, func(before bool) {
			mu.Lock()
			told = append(told, before)
			mu.Unlock()
			if before {
				<-telling
			}
		})
	}()
	until := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("waited in vain for " + what)
			}
		}
	}
	holds := func() int { login.mu.Lock(); defer login.mu.Unlock(); return len(login.holds) / 2 }
	until("the first hold", func() bool { return holds() == 1 })
	sleeps := func(before bool) {
		if err := conn.Emit("/org/freedesktop/login1", "org.freedesktop.login1.Manager.PrepareForSleep", before); err != nil {
			t.Fatal(err)
		}
	}
	sleeps(true)
	until("the telling", func() bool { mu.Lock(); defer mu.Unlock(); return slices.Equal(told, []bool{true}) })
	if !login.held() {
		t.Error("the machine sleeps before it was told")
	}
	close(telling)
	until("the end of the hold", func() bool { return !login.held() })
	sleeps(false)
	until("the waking", func() bool { mu.Lock(); defer mu.Unlock(); return slices.Equal(told, []bool{true, false}) })
	until("the next hold", func() bool { return holds() == 2 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestSleepWithoutHold: where logind refuses to wait, sleep is told all the same.
func TestSleepWithoutHold(t *testing.T) {
	address := privateBus(t)
	b := &bus{name: "system bus", address: address}
	defer b.Close()
	login := &fakeLogin{refuses: true}
	conn := service(t, address, "org.freedesktop.login1", func(c *dbus.Conn) {
		_ = c.Export(login, "/org/freedesktop/login1", "org.freedesktop.login1.Manager")
	})
	ctx, cancel := context.WithCancel(t.Context())
	told := make(chan bool, 100)
	done := make(chan error, 1)
	go func() { done <- b.announceSleep(ctx, func(before bool) { told <- before }) }()
	for deadline := time.Now().Add(10 * time.Second); len(told) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nobody was told")
		}
		_ = conn.Emit("/org/freedesktop/login1", "org.freedesktop.login1.Manager.PrepareForSleep", true)
	}
	// The bus goes: that is said, so that it can be tried again.
	b.Close()
	if err := <-done; err == nil {
		t.Error("the bus is gone, and nobody says so")
	}
	cancel()
}

// TestBusThatNeverAnswers: a socket that accepts, and says nothing for ever.
func TestBusThatNeverAnswers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bus")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b := &bus{name: "session bus", address: "unix:path=" + path}
	defer b.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := b.mutterIdle(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 2*time.Second {
		t.Errorf("after %s: %v", time.Since(began), err)
	}
}

// TestServiceThatNeverAnswers: the bus is well, the service hangs.
func TestServiceThatNeverAnswers(t *testing.T) {
	address := privateBus(t)
	b := &bus{name: "session bus", address: address}
	defer b.Close()
	release := make(chan struct{})
	service(t, address, "org.gnome.Mutter.IdleMonitor", func(c *dbus.Conn) {
		_ = c.ExportMethodTable(map[string]any{"GetIdletime": func() (uint64, *dbus.Error) { <-release; return 0, nil }}, "/org/gnome/Mutter/IdleMonitor/Core", "org.gnome.Mutter.IdleMonitor")
	})
	defer close(release)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := b.mutterIdle(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err = %v", err)
	}
}

func TestNoBus(t *testing.T) {
	for name, b := range map[string]*bus{
		"none named": {name: "bus"}, "gone": {name: "bus", address: "unix:path=" + filepath.Join(t.TempDir(), "bus")},
		"started on demand": {name: "bus", address: "autolaunch:"}, "another machine's": {name: "bus", address: "tcp:host=127.0.0.1,port=1"},
	} {
		if _, err := b.mutterIdle(bounded(t)); !errors.Is(err, ErrAbsent) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
