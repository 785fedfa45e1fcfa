package presence

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"offpeak/internal/require"
)

// env is the environment of a source.
func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

// xvfb starts a real X server that lets in who knows its cookie, and returns the
// environment of a program on it.
func xvfb(t *testing.T) func(string) string {
	t.Helper()
	path := require.Tool(t, "Xvfb", "xvfb")
	authority := filepath.Join(t.TempDir(), "authority")
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	// Local family, host, no display: this cookie is for all of this machine's.
	if err := os.WriteFile(authority, entry(256, host, "", "MIT-MAGIC-COOKIE-1", "0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := exec.Command(path, "-displayfd", "3", "-auth", authority, "-nolisten", "tcp", "-noreset", "-screen", "0", "320x200x24")
	cmd.ExtraFiles = []*os.File{w}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	number := make([]byte, 16)
	_ = r.SetReadDeadline(time.Now().Add(20 * time.Second))
	n, err := r.Read(number)
	if err != nil {
		t.Fatalf("the X server does not start: %v", err)
	}
	getenv := env("DISPLAY", ":"+strings.TrimSpace(string(number[:n])), "XAUTHORITY", authority)
	// It says its number a moment before it lets anybody in.
	d := newDisplay(getenv)
	defer d.Close()
	for tries := 0; ; tries++ {
		if _, err = d.idle(bounded(t)); err == nil {
			return getenv
		} else if tries == 100 {
			t.Fatalf("the X server lets nobody in: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func entry(family uint16, parts ...string) []byte {
	b := binary.BigEndian.AppendUint16(nil, family)
	for _, p := range parts {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(p))), p...)
	}
	return b
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// desk is a program on the display: it moves the pointer and opens windows.
type desk struct {
	*xconn
	t *testing.T
}

func newDesk(t *testing.T, getenv func(string) string) desk {
	d := newDisplay(getenv)
	c, err := d.open(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return desk{c, t}
}

func (d desk) send(opcode, detail byte, body []byte) {
	d.t.Helper()
	request := append([]byte{opcode, detail, 0, 0}, body...)
	binary.LittleEndian.PutUint16(request[2:], uint16(len(request)/4))
	if _, err := d.Write(request); err != nil {
		d.t.Fatal(err)
	}
}

// touch moves the pointer, as the XTEST extension does for those who test.
func (d desk) touch(x uint16) {
	d.t.Helper()
	xtest, err := d.extension("XTEST")
	if err != nil || xtest == 0 {
		d.t.Fatalf("no XTEST: %v", err)
	}
	const fakeInput, motion = 2, 6
	body := make([]byte, 32)
	body[0] = motion
	binary.LittleEndian.PutUint32(body[8:], d.root)
	binary.LittleEndian.PutUint16(body[20:], x)
	binary.LittleEndian.PutUint16(body[22:], 7)
	d.send(xtest, fakeInput, body)
}

func (d desk) intern(name string) uint32 {
	d.t.Helper()
	r, err := d.roundTrip(xInternAtom, 0, append([]byte{byte(len(name)), 0, 0, 0}, pad([]byte(name))...))
	if err != nil {
		d.t.Fatal(err)
	}
	return binary.LittleEndian.Uint32(r[8:])
}

func (d desk) set(window uint32, property string, kind uint32, format byte, data []byte) {
	d.t.Helper()
	const changeProperty = 18
	body := words(window, d.intern(property), kind)
	body = append(body, format, 0, 0, 0)
	body = append(body, words(uint32(len(data)*8/int(format)))...)
	d.send(changeProperty, 0, append(body, pad(data)...))
}

const (
	typeAtom   = 4
	typeString = 31
	typeWindow = 33
)

func TestXSeesInput(t *testing.T) {
	getenv := xvfb(t)
	d := newDisplay(getenv)
	defer d.Close()
	you := newDesk(t, getenv)
	time.Sleep(300 * time.Millisecond)
	before, err := d.idle(bounded(t))
	if err != nil || before < 200*time.Millisecond {
		t.Fatalf("before: %s, %v", before, err)
	}
	// Asked again on the same connection.
	if again, err := d.idle(bounded(t)); err != nil || again < before {
		t.Fatalf("again: %s, %v", again, err)
	}
	you.touch(17)
	deadline := time.Now().Add(5 * time.Second)
	for {
		after, err := d.idle(bounded(t))
		if err != nil {
			t.Fatal(err)
		}
		if after < 200*time.Millisecond {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the pointer moved, and nobody saw it: %s", after)
		}
		time.Sleep(10 * time.Millisecond)
	}
	// The server closes the connection: it is opened anew.
	d.conn.Close()
	if _, err := d.idle(bounded(t)); err != nil {
		t.Errorf("after the connection broke: %v", err)
	}
}

func TestXSeesFullScreen(t *testing.T) {
	getenv := xvfb(t)
	d := newDisplay(getenv)
	defer d.Close()
	see := func() string {
		t.Helper()
		name, err := d.fullScreen(bounded(t))
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	// No window manager: no lists of windows.
	if name := see(); name != "" {
		t.Errorf("an empty screen is full of %q", name)
	}
	you := newDesk(t, getenv)
	window := you.window()
	you.set(you.root, "_NET_CLIENT_LIST", typeWindow, 32, words(0x123456, window))
	if name := see(); name != "" {
		t.Errorf("a plain window fills the screen: %q", name)
	}
	full, hidden := you.intern("_NET_WM_STATE_FULLSCREEN"), you.intern("_NET_WM_STATE_HIDDEN")
	you.set(window, "WM_CLASS", typeString, 8, []byte("mpv\x00Film\x00"))
	you.set(window, "_NET_WM_STATE", typeAtom, 32, words(full))
	wait := time.Now().Add(5 * time.Second)
	for see() != "Film" {
		if time.Now().After(wait) {
			t.Fatalf("full screen: %q", see())
		}
		time.Sleep(10 * time.Millisecond)
	}
	you.set(window, "_NET_WM_STATE", typeAtom, 32, words(full, hidden))
	for see() != "" {
		if time.Now().After(wait) {
			t.Fatalf("minimised: %q", see())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// window opens one, with the first of the ids that the server gave this program.
func (d desk) window() uint32 {
	d.t.Helper()
	const createWindow, inputOutput = 1, 1
	body := words(d.base+1, d.root)
	for _, n := range []uint16{0, 0, 100, 100, 0, inputOutput} {
		body = binary.LittleEndian.AppendUint16(body, n)
	}
	d.send(createWindow, 0, append(body, words(0, 0)...))
	return d.base + 1
}

func TestXRefusesWithoutCookie(t *testing.T) {
	getenv := xvfb(t)
	d := newDisplay(env("DISPLAY", getenv("DISPLAY"), "XAUTHORITY", filepath.Join(t.TempDir(), "none")))
	defer d.Close()
	_, err := d.idle(bounded(t))
	if err == nil || errors.Is(err, ErrAbsent) || !strings.Contains(err.Error(), "refuses") {
		t.Errorf("err = %v", err)
	}
}

// TestXThatNeverAnswers: a socket that accepts, and says nothing for ever.
func TestXThatNeverAnswers(t *testing.T) {
	folder := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(folder, "X9"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d := newDisplay(env())
	d.folder = folder
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err = d.idle(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 2*time.Second {
		t.Errorf("after %s: %v", time.Since(began), err)
	}
}

func TestDisplays(t *testing.T) {
	empty, run := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(run, "wayland-0"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		getenv func(string) string
		absent bool
	}{
		"no display":                {env(), true},
		"one that is gone":          {env("DISPLAY", ":7"), true},
		"another machine's":         {env("DISPLAY", "localhost:10.0"), true},
		"Wayland alone":             {env("WAYLAND_DISPLAY", "wayland-0"), false},
		"a service beside Wayland":  {env("XDG_RUNTIME_DIR", run), false},
		"a session without Wayland": {env("XDG_RUNTIME_DIR", empty), true},
		"no name":                   {env("DISPLAY", "junk"), false},
	} {
		d := newDisplay(c.getenv)
		d.folder = empty
		if _, err := d.idle(bounded(t)); err == nil || errors.Is(err, ErrAbsent) != c.absent {
			t.Errorf("%s: %v, want it absent: %t", name, err, c.absent)
		}
	}
}

func TestFindCookie(t *testing.T) {
	const name, cookie = "MIT-MAGIC-COOKIE-1", "0123456789abcdef"
	file := entry(256, "elsewhere", "0", name, "fedcba9876543210")
	file = append(file, entry(256, "desk", "1", name, "fedcba9876543210")...)
	file = append(file, entry(256, "desk", "0", "XDM-AUTHORIZATION-1", cookie)...)
	file = append(file, entry(256, "desk", "0", name, cookie)...)
	if got := string(findCookie(file, "desk", "0")); got != cookie {
		t.Errorf("cookie %q", got)
	}
	if got := string(findCookie(entry(65535, "", "", name, cookie), "desk", "3")); got != cookie {
		t.Errorf("for all: %q", got)
	}
	if got := findCookie(file[:len(file)-3], "desk", "0"); got != nil {
		t.Errorf("of a torn file: %q", got)
	}
}

func FuzzFindCookie(f *testing.F) {
	f.Add(entry(256, "desk", "0", "MIT-MAGIC-COOKIE-1", "0123456789abcdef"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if c := findCookie(data, "desk", "0"); c != nil && len(c) != 16 {
			t.Errorf("a cookie of %d bytes", len(c))
		}
	})
}

// FuzzXServer talks to a server that answers anything.
func FuzzXServer(f *testing.F) {
	f.Add([]byte{1, 0, 11, 0, 0, 0, 8, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		near, far := net.Pipe()
		go func() {
			defer far.Close()
			_ = far.SetDeadline(time.Now().Add(time.Second))
			go func() {
				_, _ = far.Write(data)
				far.Close()
			}()
			b := make([]byte, 512)
			for {
				if _, err := far.Read(b); err != nil {
					return
				}
			}
		}()
		c := &xconn{Conn: near, atoms: map[string]uint32{}}
		defer near.Close()
		if err := c.greet(nil); err == nil {
			_, _ = c.property(c.root, "WM_CLASS")
		}
	})
}
