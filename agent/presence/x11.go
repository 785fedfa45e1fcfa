package presence

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// display asks an X server of this machine for how long nobody has touched it and
// whether a window fills its screen. It keeps one connection.
type display struct {
	getenv func(string) string
	// folder is where displays have their sockets.
	folder string
	host   string

	mu   sync.Mutex
	conn *xconn
}

func newDisplay(getenv func(string) string) *display {
	host, _ := os.Hostname()
	return &display{getenv: getenv, folder: "/tmp/.X11-unix", host: host}
}

// xconn is a connection to an X server.
type xconn struct {
	net.Conn
	root uint32
	// base is where the ids begin that this connection may give.
	base uint32
	// saver is the opcode of the screen saver's extension, 0 without it.
	saver byte
	// nested says that the server is Xwayland, which sees only part of the input.
	nested bool
	atoms  map[string]uint32
}

// The requests that are used, by their numbers in the protocol.
const (
	xInternAtom     = 16
	xGetProperty    = 20
	xQueryExtension = 98
	xSaverQueryInfo = 1
	// xMostProperty bounds what is read of a property, in words.
	xMostProperty = 1024
)

// errWayland says that there is a display that can't be asked for all input.
var errWayland = errors.New("is a Wayland display, which tells nobody of its input")

// idle is the time since the last input.
func (d *display) idle(ctx context.Context) (time.Duration, error) {
	var idle time.Duration
	err := d.ask(ctx, func(c *xconn) error {
		switch {
		case c.nested || d.wayland():
			return errWayland
		case c.saver == 0:
			return errors.New("has no screen saver extension to ask for its input")
		}
		r, err := c.roundTrip(c.saver, xSaverQueryInfo, words(c.root))
		if err == nil {
			idle = time.Duration(binary.LittleEndian.Uint32(r[16:])) * time.Millisecond
		}
		return err
	})
	if errors.Is(err, ErrAbsent) && d.wayland() {
		return 0, errWayland
	}
	return idle, err
}

// fullScreen is the name of a window that fills a screen, "" if none does.
func (d *display) fullScreen(ctx context.Context) (name string, err error) {
	err = d.ask(ctx, func(c *xconn) error {
		name = ""
		windows, err := c.property(c.root, "_NET_CLIENT_LIST")
		if err != nil {
			return err
		}
		full, err := c.atom("_NET_WM_STATE_FULLSCREEN")
		if err != nil {
			return err
		}
		hidden, err := c.atom("_NET_WM_STATE_HIDDEN")
		if err != nil {
			return err
		}
		for ; len(windows) >= 4; windows = windows[4:] {
			window := binary.LittleEndian.Uint32(windows)
			state, err := c.property(window, "_NET_WM_STATE")
			if err != nil {
				return err
			}
			if has(state, full) && !has(state, hidden) {
				name = "a window"
				if class, err := c.property(window, "WM_CLASS"); err == nil {
					// The instance and the class, each ended by a zero.
					parts := strings.Split(string(class), "\x00")
					if len(parts) > 1 && printable(parts[1]) {
						name = parts[1]
					}
				}
				return nil
			}
		}
		return nil
	})
	if errors.Is(err, ErrAbsent) && d.wayland() {
		return "", errWayland
	}
	return name, err
}

func has(list []byte, atom uint32) bool {
	for ; len(list) >= 4; list = list[4:] {
		if atom != 0 && binary.LittleEndian.Uint32(list) == atom {
			return true
		}
	}
	return false
}

// wayland says that this session's display is a Wayland compositor.
func (d *display) wayland() bool {
	if d.getenv("WAYLAND_DISPLAY") != "" || d.getenv("XDG_SESSION_TYPE") == "wayland" {
		return true
	}
	run := d.getenv("XDG_RUNTIME_DIR")
	if run == "" || d.getenv("DISPLAY") != "" {
		return false
	}
	found, _ := filepath.Glob(filepath.Join(run, "wayland-[0-9]"))
	return len(found) > 0
}

// socket finds the display's socket and number; ErrAbsent: there is none here.
func (d *display) socket() (path, number string, err error) {
	name := d.getenv("DISPLAY")
	if name == "" {
		// The environment of a service names none; what is there is asked.
		found, _ := filepath.Glob(filepath.Join(d.folder, "X[0-9]*"))
		if len(found) == 0 {
			return "", "", fmt.Errorf("display is %w", ErrAbsent)
		}
		return found[0], strings.TrimPrefix(filepath.Base(found[0]), "X"), nil
	}
	host, number, ok := cutLast(name, ":")
	number, _, _ = strings.Cut(number, ".")
	switch {
	case !ok || number == "" || strings.Trim(number, "0123456789") != "":
		return "", "", fmt.Errorf("DISPLAY %q is no display", name)
	case strings.HasPrefix(host, "/"):
		return name, number, nil
	case host != "" && host != "unix":
		return "", "", fmt.Errorf("display is another machine's: %w", ErrAbsent)
	}
	return filepath.Join(d.folder, "X"+number), number, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// ask calls do with a connection; one that was closed meanwhile is opened anew.
func (d *display) ask(ctx context.Context, do func(*xconn) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for fresh := d.conn == nil; ; fresh = true {
		if d.conn == nil {
			c, err := d.open(ctx)
			if err != nil {
				return err
			}
			d.conn = c
		}
		stop := d.conn.bound(ctx)
		err := do(d.conn)
		stop()
		var broken *net.OpError
		if !errors.As(err, &broken) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && ctx.Err() == nil {
			return err
		}
		d.conn.Close()
		d.conn = nil
		if fresh || ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
	}
}

// bound ends what goes on at the connection when ctx is done.
func (c *xconn) bound(ctx context.Context) (stop func() bool) {
	_ = c.SetDeadline(time.Time{})
	return context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
}

func (d *display) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conn != nil {
		d.conn.Close()
		d.conn = nil
	}
}

func (d *display) open(ctx context.Context) (*xconn, error) {
	path, number, err := d.socket()
	if err != nil {
		return nil, err
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("display :%s is %w", number, ErrAbsent)
	} else if err != nil {
		return nil, fmt.Errorf("reach display :%s: %w", number, err)
	}
	c := &xconn{Conn: conn, atoms: map[string]uint32{}}
	stop := c.bound(ctx)
	defer stop()
	if err := c.greet(d.cookie(number)); err != nil {
		conn.Close()
		return nil, fmt.Errorf("open display :%s: %w", number, errors.Join(err, ctx.Err()))
	}
	return c, nil
}

// greet opens the conversation and finds out what is needed of the server.
func (c *xconn) greet(cookie []byte) error {
	var name string
	if cookie != nil {
		name = "MIT-MAGIC-COOKIE-1"
	}
	hello := []byte{'l', 0, 11, 0, 0, 0, byte(len(name)), 0, byte(len(cookie)), 0, 0, 0}
	hello = append(append(hello, pad([]byte(name))...), pad(cookie)...)
	if _, err := c.Write(hello); err != nil {
		return err
	}
	head := make([]byte, 8)
	if _, err := io.ReadFull(c, head); err != nil {
		return err
	}
	body := make([]byte, 4*int(binary.LittleEndian.Uint16(head[6:])))
	if _, err := io.ReadFull(c, body); err != nil {
		return err
	}
	if head[0] != 1 {
		reason := strings.TrimSpace(string(body[:min(int(head[1]), len(body))]))
		return fmt.Errorf("it refuses this program: %q", reason)
	}
	// Vendor and formats lie before the first screen, whose first word is its root.
	const fixed = 32
	if len(body) < fixed {
		return errors.New("its greeting is short")
	}
	vendor := int(binary.LittleEndian.Uint16(body[16:]))
	at := fixed + (vendor+3)/4*4 + 8*int(body[21])
	if body[20] == 0 || len(body) < at+4 {
		return errors.New("it has no screen")
	}
	c.base, c.root = binary.LittleEndian.Uint32(body[4:]), binary.LittleEndian.Uint32(body[at:])
	var err error
	if c.saver, err = c.extension("MIT-SCREEN-SAVER"); err != nil {
		return err
	}
	nested, err := c.extension("XWAYLAND")
	c.nested = nested != 0
	return err
}

func (c *xconn) extension(name string) (opcode byte, err error) {
	r, err := c.roundTrip(xQueryExtension, 0, append([]byte{byte(len(name)), 0, 0, 0}, pad([]byte(name))...))
	if err != nil || r[8] == 0 {
		return 0, err
	}
	return r[9], nil
}

func (c *xconn) atom(name string) (uint32, error) {
	if a, ok := c.atoms[name]; ok {
		return a, nil
	}
	// Only if it exists: what no program has named, none uses.
	r, err := c.roundTrip(xInternAtom, 1, append([]byte{byte(len(name)), 0, 0, 0}, pad([]byte(name))...))
	if err != nil {
		return 0, err
	}
	a := binary.LittleEndian.Uint32(r[8:])
	if a != 0 {
		c.atoms[name] = a
	}
	return a, nil
}

// property reads a property of a window; nothing if it or the window is not there.
func (c *xconn) property(window uint32, name string) ([]byte, error) {
	a, err := c.atom(name)
	if err != nil || a == 0 {
		return nil, err
	}
	r, err := c.roundTrip(xGetProperty, 0, words(window, a, 0, 0, xMostProperty))
	var refused *xError
	if errors.As(err, &refused) {
		// A window may go at any time.
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	n := int(binary.LittleEndian.Uint32(r[16:])) * int(r[1]) / 8
	return r[32:min(32+n, len(r))], nil
}

// xError is the server's refusal of a request.
type xError struct{ code byte }

func (e *xError) Error() string { return fmt.Sprintf("it refuses a request with code %d", e.code) }

// roundTrip sends one request and returns its reply, at least 32 bytes.
func (c *xconn) roundTrip(opcode, detail byte, body []byte) ([]byte, error) {
	request := append([]byte{opcode, detail, 0, 0}, body...)
	binary.LittleEndian.PutUint16(request[2:], uint16(len(request)/4))
	if _, err := c.Write(request); err != nil {
		return nil, err
	}
	for {
		r := make([]byte, 32)
		if _, err := io.ReadFull(c, r); err != nil {
			return nil, err
		}
		switch r[0] {
		case 0:
			return nil, &xError{r[1]}
		case 1:
			more := int(binary.LittleEndian.Uint32(r[4:]))
			if more > xMostProperty+8 {
				return nil, fmt.Errorf("it answers with %d words: %w", more, io.ErrUnexpectedEOF)
			}
			r = append(r, make([]byte, 4*more)...)
			_, err := io.ReadFull(c, r[32:])
			return r, err
		}
		// An event, which nobody asked for.
	}
}

func words(list ...uint32) []byte {
	var b []byte
	for _, w := range list {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return b
}

func pad(b []byte) []byte { return append(bytes.Clone(b), make([]byte, (4-len(b)%4)%4)...) }

// cookie is what lets this user in, nil if nothing is kept for the display.
func (d *display) cookie(number string) []byte {
	path := d.getenv("XAUTHORITY")
	if path == "" {
		path = filepath.Join(d.getenv("HOME"), ".Xauthority")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return findCookie(data, d.host, number)
}

// findCookie looks through an authority file: entries of a family and four counted
// strings, address, display, name and data.
func findCookie(data []byte, host, number string) []byte {
	const (
		familyLocal = 256
		familyWild  = 65535
	)
	for len(data) >= 2 {
		family := binary.BigEndian.Uint16(data)
		data = data[2:]
		var parts [4][]byte
		for i := range parts {
			if len(data) < 2 {
				return nil
			}
			n := int(binary.BigEndian.Uint16(data))
			if data = data[2:]; len(data) < n {
				return nil
			}
			parts[i], data = data[:n], data[n:]
		}
		here := family == familyWild || family == familyLocal && string(parts[0]) == host
		if here && (len(parts[1]) == 0 || string(parts[1]) == number) && string(parts[2]) == "MIT-MAGIC-COOKIE-1" && len(parts[3]) == 16 {
			return bytes.Clone(parts[3])
		}
	}
	return nil
}
