package presence

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
)

// bus is a connection to a message bus, opened when it is first needed and again
// when it broke.
type bus struct {
	name    string
	address string

	mu   sync.Mutex
	conn *dbus.Conn
}

// sessionBus is the bus of the owner's session, if this process belongs to one.
func sessionBus(getenv func(string) string) *bus {
	address := getenv("DBUS_SESSION_BUS_ADDRESS")
	if run := getenv("XDG_RUNTIME_DIR"); address == "" && run != "" {
		if path := filepath.Join(run, "bus"); there(path) {
			address = "unix:path=" + path
		}
	}
	return &bus{name: "session bus", address: address}
}

// systemBus is the machine's bus.
func systemBus(getenv func(string) string) *bus {
	address := getenv("DBUS_SYSTEM_BUS_ADDRESS")
	if path := "/run/dbus/system_bus_socket"; address == "" && there(path) {
		address = "unix:path=" + path
	}
	return &bus{name: "system bus", address: address}
}

func there(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// open returns the connection. ErrAbsent: there is no such bus.
func (b *bus) open(ctx context.Context) (*dbus.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil && b.conn.Connected() {
		return b.conn, nil
	}
	b.conn = nil
	if !strings.HasPrefix(b.address, "unix:") {
		// No other kind is this machine's alone, and none may be started from here.
		return nil, fmt.Errorf("%s is %w", b.name, ErrAbsent)
	}
	conn, err := dbus.Dial(b.address)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s is %w", b.name, ErrAbsent)
	} else if err != nil {
		return nil, fmt.Errorf("reach %s: %w", b.name, err)
	}
	// The library waits for a greeting for ever: closing ends that.
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	err = conn.Auth(nil)
	if err == nil {
		err = conn.Hello()
	}
	if !stop() || err != nil {
		conn.Close()
		return nil, fmt.Errorf("open %s: %w", b.name, errors.Join(ctx.Err(), err))
	}
	b.conn = conn
	return conn, nil
}

func (b *bus) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil {
		b.conn.Close()
		b.conn = nil
	}
}

// object is one of a service.
type object struct {
	service string
	path    dbus.ObjectPath
}

// call calls a method and stores what it returns in into. ErrAbsent: nothing offers
// it. No service is started for it.
func (b *bus) call(ctx context.Context, o object, method string, args []any, into ...any) error {
	conn, err := b.open(ctx)
	if err != nil {
		return err
	}
	err = conn.Object(o.service, o.path).CallWithContext(ctx, method, dbus.FlagNoAutoStart, args...).Store(into...)
	var refused dbus.Error
	if errors.As(err, &refused) {
		switch refused.Name {
		case "org.freedesktop.DBus.Error.ServiceUnknown", "org.freedesktop.DBus.Error.NameHasNoOwner",
			"org.freedesktop.DBus.Error.UnknownMethod", "org.freedesktop.DBus.Error.UnknownObject",
			"org.freedesktop.DBus.Error.UnknownInterface", "org.freedesktop.DBus.Error.UnknownProperty",
			"org.freedesktop.DBus.Error.NotSupported":
			return fmt.Errorf("%s is %w", o.service, ErrAbsent)
		}
	}
	if err != nil {
		return fmt.Errorf("ask %s: %w", o.service, err)
	}
	return nil
}

func (b *bus) properties(ctx context.Context, o object, iface string) (map[string]dbus.Variant, error) {
	var out map[string]dbus.Variant
	err := b.call(ctx, o, "org.freedesktop.DBus.Properties.GetAll", []any{iface}, &out)
	return out, err
}

// value is a property of type T, its zero value if there is none.
func value[T any](m map[string]dbus.Variant, name string) T {
	v, _ := m[name].Value().(T)
	return v
}

// mutterIdle asks GNOME's compositor.
func (b *bus) mutterIdle(ctx context.Context) (time.Duration, error) {
	var ms uint64
	err := b.call(ctx, object{"org.gnome.Mutter.IdleMonitor", "/org/gnome/Mutter/IdleMonitor/Core"}, "org.gnome.Mutter.IdleMonitor.GetIdletime", nil, &ms)
	return millis(ms), err
}

// saverIdle asks KDE's screen locker, and others that serve the same.
func (b *bus) saverIdle(ctx context.Context) (time.Duration, error) {
	var ms uint32
	err := b.call(ctx, object{"org.freedesktop.ScreenSaver", "/ScreenSaver"}, "org.freedesktop.ScreenSaver.GetSessionIdleTime", nil, &ms)
	return millis(uint64(ms)), err
}

// millis bounds what a service says to what can be counted.
func millis(ms uint64) time.Duration {
	const longest = 10 * 365 * 24 * time.Hour
	return time.Duration(min(ms, uint64(longest/time.Millisecond))) * time.Millisecond
}

var login = object{"org.freedesktop.login1", "/org/freedesktop/login1"}

// sessionIdle asks logind for the hints of the sessions at this machine's own
// seats. mono is the clock that it counts on. ErrAbsent: nobody is logged in there.
func (b *bus) sessionIdle(ctx context.Context, mono time.Duration) (time.Duration, error) {
	var sessions []struct {
		ID   string
		UID  uint32
		User string
		Seat string
		Path dbus.ObjectPath
	}
	if err := b.call(ctx, login, login.service+".Manager.ListSessions", nil, &sessions); err != nil {
		return 0, err
	}
	idle, found := time.Duration(0), false
	var lost error
	for _, s := range sessions {
		if s.Seat == "" {
			continue
		}
		m, err := b.properties(ctx, object{login.service, s.Path}, login.service+".Session")
		if errors.Is(err, ErrAbsent) {
			continue // It has just ended.
		} else if err != nil {
			lost = err
			continue
		}
		if value[string](m, "Class") != "user" || value[bool](m, "Remote") || value[string](m, "State") == "closing" {
			continue
		}
		var one time.Duration
		if value[bool](m, "IdleHint") {
			one = max(mono-time.Duration(min(value[uint64](m, "IdleSinceHintMonotonic"), uint64(mono/time.Microsecond)))*time.Microsecond, 0)
		}
		if !found || one < idle {
			idle, found = one, true
		}
	}
	switch {
	case lost != nil && idle == 0 && !found:
		return 0, lost
	case !found:
		return 0, fmt.Errorf("session is %w", ErrAbsent)
	}
	return idle, lost
}

// metered asks NetworkManager whether the network is paid by volume.
func (b *bus) metered(ctx context.Context) (bool, error) {
	const service = "org.freedesktop.NetworkManager"
	m, err := b.properties(ctx, object{service, "/org/freedesktop/NetworkManager"}, service)
	if err != nil {
		return false, err
	}
	switch value[uint32](m, "Metered") {
	case 1, 3: // yes, guessed so
		return true, nil
	case 2, 4:
		return false, nil
	}
	return false, fmt.Errorf("NetworkManager knows of no connection: %w", ErrAbsent)
}

// announceSleep is an Announcer by logind. It holds up each sleep for as long as
// it takes to tell.
func (b *bus) announceSleep(ctx context.Context, asleep func(bool)) error {
	opening, cancel := context.WithTimeout(ctx, Bound)
	defer cancel()
	conn, err := b.open(opening)
	if err != nil {
		return err
	}
	signals := make(chan *dbus.Signal, 16)
	conn.Signal(signals)
	defer conn.RemoveSignal(signals)
	match := []dbus.MatchOption{dbus.WithMatchSender(login.service), dbus.WithMatchInterface(login.service + ".Manager"), dbus.WithMatchMember("PrepareForSleep")}
	if err := conn.AddMatchSignalContext(opening, match...); err != nil {
		return fmt.Errorf("listen for sleep: %w", err)
	}
	delay, err := b.delaySleep(opening)
	if err != nil {
		return err
	}
	defer func() { closeFD(delay) }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-conn.Context().Done():
			return errors.New("the system bus closed the connection")
		case s := <-signals:
			if s == nil || len(s.Body) == 0 || s.Name != login.service+".Manager.PrepareForSleep" {
				continue
			}
			before, _ := s.Body[0].(bool)
			asleep(before)
			if before {
				// Told: now the machine may sleep.
				closeFD(delay)
				delay = -1
				continue
			}
			again, cancel := context.WithTimeout(ctx, Bound)
			if delay, err = b.delaySleep(again); err != nil {
				delay = -1
			}
			cancel()
		}
	}
}

// delaySleep takes logind's promise to wait a little before it sleeps, for as long
// as the descriptor is open. Where it refuses, sleep is announced all the same.
func (b *bus) delaySleep(ctx context.Context) (int, error) {
	var fd dbus.UnixFD
	err := b.call(ctx, login, login.service+".Manager.Inhibit", []any{"sleep", "Offpeak", "tells the hub that this node sleeps", "delay"}, &fd)
	if errors.Is(err, ErrAbsent) {
		return -1, err
	}
	if err != nil {
		return -1, nil //nolint:nilerr // a refusal is an answer: there is no delay, and sleep is told all the same
	}
	return int(fd), nil
}

func closeFD(fd int) {
	if fd >= 0 {
		os.NewFile(uintptr(fd), "sleep inhibitor").Close()
	}
}
