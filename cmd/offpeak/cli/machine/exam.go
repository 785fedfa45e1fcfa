package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"offpeak"
	"offpeak/agent"
	"offpeak/agent/books"
	"offpeak/agent/presence"
	"offpeak/agent/state"
	"offpeak/agent/supervisor"
	"offpeak/cmd/offpeak/cli/machine/doctor"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

// How long a hub, and the agent of this machine, have to answer a doctor.
const (
	hubPatience   = 5 * time.Second
	agentPatience = 2 * time.Second
)

// Setup is how the agent of a data folder would be set up, for a doctor to look at.
type Setup struct {
	// Said is what its owner said; the rest is made where reading that failed, too.
	Said doctor.Settings
	// Hubs are addresses to use instead of those of the identity.
	Hubs []string
	// World makes what the agent would be given.
	World func() (agent.Env, error)
	// Fences tries how jobs can be fenced in, in a folder.
	Fences func(ctx context.Context, dir string) (supervisor.Found, error)
	// Egress tries in a folder whether a job's network is closed but for what is
	// allowed.
	Egress func(ctx context.Context, dir string) error
}

// exam is what a doctor looks at on this machine. What several looks need is read once.
type exam struct {
	getenv  func(string) string
	version string
	data    string
	setup   func() (Setup, error)
	running func() (agent.Status, error)
	devices func() doctor.Devices
}

// examine makes what a doctor looks at.
func examine(env world.Env, data string, setUp func(data string) (Setup, error)) (doctor.World, func()) {
	x := &exam{getenv: env.Getenv, version: world.NewBuild(env).Version, data: data}
	ctx, cancel := context.WithTimeout(context.Background(), doctor.Bound)
	x.setup = sync.OnceValues(func() (Setup, error) { return setUp(data) })
	x.running = sync.OnceValues(func() (agent.Status, error) {
		// One that hangs leaves time for looks of the doctor's own.
		ctx, cancel := context.WithTimeout(ctx, agentPatience)
		defer cancel()
		return agent.Tell(ctx, data, agent.OrderStatus, 0)
	})
	x.devices = sync.OnceValue(func() doctor.Devices { return x.measure(ctx) })
	return doctor.World{
		Settings: x.said, Folder: x.folder, Node: x.node, Hub: x.hub, Fences: x.fences, Drivers: x.drivers, Machine: x.inventory,
		Devices: func(context.Context) (doctor.Devices, error) { return x.devices(), nil }, Presence: x.presence, Egress: x.egress, Service: x.service,
	}, cancel
}

func (x *exam) said(context.Context) (doctor.Settings, error) {
	s, err := x.setup()
	s.Said.Root = os.Geteuid() == 0
	return s.Said, err
}

func (x *exam) folder(context.Context) (doctor.Folder, error) {
	path, err := filepath.Abs(x.data)
	if err != nil {
		return doctor.Folder{}, fmt.Errorf("find data folder: %w", err)
	}
	f := doctor.Folder{Path: path}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.Absent = true
		// What will hold it is what counts.
		for err != nil && path != filepath.Dir(path) {
			path = filepath.Dir(path)
			_, err = os.Stat(path)
		}
	case errors.Is(err, fs.ErrPermission):
		f.Foreign = true
		return f, nil
	case err != nil:
		return f, fmt.Errorf("look at data folder: %w", err)
	case !info.IsDir():
		return f, fmt.Errorf("%s is no folder", path)
	default:
		f.Open = info.Mode().Perm()&0o077 != 0
		f.Foreign = foreign(info)
		probe, err := os.CreateTemp(path, "doctor-*")
		if f.Write = err; err == nil {
			_ = probe.Close()
			_ = os.Remove(probe.Name())
		}
	}
	world, err := x.world()
	if err != nil {
		return f, err
	}
	f.Free, err = world.Free(path)
	return f, err
}

func (x *exam) node(context.Context) (doctor.Node, error) {
	info, err := os.Stat(x.data)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return doctor.Node{}, nil
	case err != nil:
		return doctor.Node{}, fmt.Errorf("look at data folder: %w", err)
	case foreign(info):
		// Root could look, and would leave folders there that are not the owner's.
		return doctor.Node{}, errors.New("not looked at: the data folder is another user's")
	}
	f, err := state.Open(x.data, slog.New(slog.DiscardHandler))
	if err != nil {
		return doctor.Node{}, err
	}
	id, _, err := f.Identity()
	n := doctor.Node{Joined: err == nil, ID: id.Node, Name: id.Name, Hubs: id.Hubs, Fingerprint: id.Fingerprint}
	if errors.Is(err, agent.ErrIdentityLost) {
		n.Lost = err
	} else if err != nil && !errors.Is(err, agent.ErrNotEnrolled) {
		return n, err
	}
	if _, err := agent.Policy(x.data); errors.Is(err, agent.ErrSpoilt) {
		n.Rules = err.Error()
	}
	if s, err := x.setup(); err == nil && len(s.Hubs) > 0 {
		n.Hubs = s.Hubs
	}
	st, err := x.running()
	if err == nil {
		n.Running = &doctor.Running{PID: st.PID, Connected: st.Connected, Conflict: st.Conflict, Problem: st.Problem}
	}
	return n, nil
}

// hub asks one hub how it is, the way an agent would.
func (x *exam) hub(ctx context.Context, address, fingerprint string) (h doctor.Hub, err error) {
	client := wire.Client(fingerprint)
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, hubPatience)
	defer cancel()
	if req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil); err == nil {
		if proxy, err := http.ProxyFromEnvironment(req); err == nil && proxy != nil {
			h.Via = proxy.Redacted()
		}
	}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
		if at, ok := c.Conn.RemoteAddr().(*net.TCPAddr); ok {
			h.Family = "IPv6"
			if at.IP.To4() != nil {
				h.Family = "IPv4"
			}
		}
	}})
	d := wire.Direct{Client: client, Base: address, Agent: "offpeak-agent/" + x.version}
	asked := time.Now()
	resp, err := d.Raw(ctx, http.MethodGet, "/health", "", nil, "")
	if err != nil {
		return h, err
	}
	defer resp.Body.Close()
	h.Took = time.Since(asked)
	if at, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		// It was said half way, in whole seconds.
		h.Ahead, h.Told = at.Add(500*time.Millisecond).Sub(asked.Add(h.Took/2)), true
	}
	return h, nil
}

func (x *exam) fences(ctx context.Context) (doctor.Fences, error) {
	dir := x.data
	if info, err := os.Stat(dir); err != nil || foreign(info) {
		tmp, err := os.MkdirTemp("", "offpeak-doctor-*")
		if err != nil {
			return doctor.Fences{}, fmt.Errorf("make folder: %w", err)
		}
		defer os.RemoveAll(tmp)
		dir = tmp
	}
	s, _ := x.setup()
	found, err := s.Fences(ctx, dir)
	return doctor.Fences{Best: found.Fences, Limited: found.Limited, Warnings: found.Warnings}, err
}

func (x *exam) egress(ctx context.Context) error {
	s, err := x.setup()
	if err != nil || s.Egress == nil {
		return nil // what is wrong with the settings has a line of its own
	}
	// A folder of its own: an agent may use the data folder.
	dir, err := os.MkdirTemp("", "offpeak-doctor-*")
	if err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	defer os.RemoveAll(dir)
	return s.Egress(ctx, dir)
}

// world is what an agent would be given. What is wrong with its settings has a line of
// its own.
func (x *exam) world() (agent.Env, error) {
	s, _ := x.setup()
	return s.World()
}

func (x *exam) drivers(context.Context) (out []doctor.Driver) {
	world, err := x.world()
	if err != nil {
		return nil
	}
	for _, d := range world.Drivers {
		out = append(out, doctor.Driver{Name: d.Name(), Err: d.Available()})
	}
	return out
}

func (x *exam) inventory(ctx context.Context) (offpeak.Inventory, error) {
	world, err := x.world()
	if err != nil {
		return offpeak.Inventory{}, err
	}
	return world.Probe(ctx)
}

// measure looks at the GPUs, or asks the agent that does, which knows what its own
// jobs hold.
func (x *exam) measure(ctx context.Context) doctor.Devices {
	if st, err := x.running(); err == nil && !st.Measured.IsZero() {
		return doctor.Devices{List: st.Devices, Warnings: st.DeviceWarnings}
	}
	world, err := x.world()
	if err != nil || world.Measure == nil {
		s, _ := x.setup()
		return doctor.Devices{Withheld: err == nil && s.Said.GPUs == "none"}
	}
	s := world.Measure(ctx, nil)
	return doctor.Devices{List: books.Devices(s), Warnings: s.Warnings}
}

// presence is what the running agent sees, or one look of this process.
func (x *exam) presence(ctx context.Context) (presence.Verdict, error) {
	if st, err := x.running(); err == nil && st.Presence != nil {
		return *st.Presence, nil
	}
	policy := presence.DefaultPolicy()
	if there(x.data) {
		// A damaged one has a line of its own, and the defaults hold.
		if p, err := agent.Policy(x.data); err == nil {
			policy = p
		}
	}
	var sources []presence.Source
	if s, err := x.setup(); err != nil || s.Said.Presence {
		list, _, done := presence.Sources(presence.Options{Getenv: x.getenv})
		defer done()
		gpus := presence.Devices(func(context.Context) ([]presence.Device, error) { return seenDevices(x.devices()), nil })
		sources = slices.Concat(list, []presence.Source{gpus})
	}
	began := time.Now()
	watcher := presence.NewWatcher(presence.Config{
		Policy: policy, Sources: sources, Log: slog.New(slog.DiscardHandler),
		Clock: func() presence.Now { return presence.Now{Boot: time.Since(began), Wall: time.Now()} },
	})
	ctx, cancel := context.WithTimeout(ctx, 3*presence.Bound)
	defer cancel()
	var first presence.Verdict
	told := false
	err := watcher.Run(ctx, func(v presence.Verdict) {
		if !told {
			first, told = v, true
		}
		cancel()
	})
	if err == nil && !told {
		err = errors.New("nothing could be seen in time")
	}
	return first, err
}

// seenDevices are devices as the owner's rules look at them.
func seenDevices(d doctor.Devices) []presence.Device {
	out := make([]presence.Device, len(d.List))
	for i, g := range d.List {
		out[i] = presence.Device{ID: g.ID, Name: g.Model, Others: presence.Read(g.Foreign), Temperature: presence.Lost[float64](errors.New("does not tell its temperature"))}
		if g.Used == nil {
			out[i].Others = presence.Lost[offpeak.Bytes](errors.New("does not tell who holds its memory"))
		}
		if g.Temperature != nil {
			out[i].Temperature = presence.Read(*g.Temperature)
		}
		if g.Use != nil {
			out[i].Use = presence.Read(int(*g.Use))
		}
	}
	return out
}

// service names the files with which this system would start an agent by itself.
func (x *exam) service(context.Context) (out []string, err error) {
	home, _ := os.UserHomeDir()
	for _, pattern := range []string{
		filepath.Join(home, ".config/systemd/user/*offpeak*.service"), "/etc/systemd/system/*offpeak*.service", "/etc/systemd/user/*offpeak*.service",
		filepath.Join(home, "Library/LaunchAgents/*offpeak*.plist"), "/Library/LaunchDaemons/*offpeak*.plist",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("look for services: %w", err)
		}
		// A hub's is not an agent's.
		out = append(out, slices.DeleteFunc(found, func(p string) bool { return strings.Contains(filepath.Base(p), "hub") })...)
	}
	return out, nil
}

func there(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
