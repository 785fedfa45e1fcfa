package cli

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

	"github.com/spf13/pflag"

	"offpeak"
	"offpeak/agent"
	"offpeak/agent/books"
	"offpeak/agent/presence"
	"offpeak/agent/state"
	"offpeak/agent/supervisor"
	"offpeak/cmd/offpeak/cli/machine/doctor"
	"offpeak/internal/local"
	"offpeak/wire"
)

// hubPatience is how long a hub has to answer a doctor.
const hubPatience = 5 * time.Second

// exam is what a doctor looks at on this machine. What several looks need is read once.
type exam struct {
	env      Env
	data     string
	settings func() (*agentOptions, error)
	running  func() (agent.Status, error)
	devices  func() doctor.Devices
	found    func() (supervisor.Found, error)
}

// examine makes what a doctor looks at.
func examine(env Env) func(data string) (doctor.World, func()) {
	return func(data string) (doctor.World, func()) {
		x := &exam{env: env, data: data}
		ctx, cancel := context.WithTimeout(context.Background(), doctor.Bound)
		x.settings = sync.OnceValues(x.readSettings)
		x.running = sync.OnceValues(func() (agent.Status, error) { return agent.Tell(ctx, data, agent.OrderStatus, 0) })
		x.devices = sync.OnceValue(func() doctor.Devices { return x.measure(ctx) })
		x.found = sync.OnceValues(func() (supervisor.Found, error) { return x.findFences(ctx) })
		w := doctor.World{
			Settings: x.said, Folder: x.folder, Node: x.node, Hub: x.hub, Fences: x.fences, Drivers: x.drivers, Machine: x.inventory,
			Devices: func(context.Context) (doctor.Devices, error) { return x.devices(), nil }, Presence: x.presence, Service: x.service,
		}
		return w, cancel
	}
}

// silent is the log of looks that say what they found themselves.
func silent() *slog.Logger { return slog.New(slog.DiscardHandler) }

// readSettings reads what the agent would be started with, as far as files and the
// environment say it.
func (x *exam) readSettings() (*agentOptions, error) {
	o := &agentOptions{data: x.data}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.String("data", x.data, "")
	o.runFlags(flags)
	err := configure(flags, x.env.Getenv("OFFPEAK_CONFIG"), filepath.Join(local.Home(x.env.Getenv), "agent.yaml"), x.env.Getenv)
	if kept := filepath.Join(x.data, agent.SettingsFile); err == nil && exists(kept) {
		err = configure(flags, kept, "", func(string) string { return "" })
	}
	if err == nil {
		err = o.machine.validate()
	}
	return o, err
}

func (x *exam) said(context.Context) (doctor.Settings, error) {
	o, err := x.settings()
	return doctor.Settings{Root: os.Geteuid() == 0, NoLimits: o.noLimits, Presence: o.presence, Accept: o.machine.accept, GPUs: o.machine.gpus}, err
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
	f.Free, err = free(path)
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
	f, err := state.Open(x.data, silent())
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
	o, err := x.settings()
	if err == nil && len(o.hubs) > 0 {
		n.Hubs = o.hubs
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
	d := wire.Direct{Client: client, Base: address, Agent: "offpeak-agent/" + build(x.env.Version).Version}
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

func (x *exam) findFences(ctx context.Context) (supervisor.Found, error) {
	dir := x.data
	if info, err := os.Stat(dir); err != nil || foreign(info) {
		tmp, err := os.MkdirTemp("", "offpeak-doctor-*")
		if err != nil {
			return supervisor.Found{}, fmt.Errorf("make folder: %w", err)
		}
		defer os.RemoveAll(tmp)
		dir = tmp
	}
	return findFences(ctx, agent.Config{Data: dir}, silent())
}

func (x *exam) fences(context.Context) (doctor.Fences, error) {
	found, err := x.found()
	return doctor.Fences{Best: found.Fences, Limited: found.Limited, Warnings: found.Warnings}, err
}

// world is what an agent would be given.
func (x *exam) world(found supervisor.Found) (agent.Env, *agentOptions, error) {
	o, err := x.settings()
	if err != nil {
		// What is wrong with them has a line of its own.
		o = &agentOptions{presence: true, machine: machine{gpus: "all", accept: "own"}}
	}
	dir := x.data
	for !exists(dir) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
	}
	env, err := agentEnv(agent.Config{Data: dir, Version: build(x.env.Version).Version}, o.machine, found, silent())
	return env, o, err
}

func (x *exam) drivers(context.Context) (out []doctor.Driver) {
	world, _, err := x.world(supervisor.Found{})
	if err != nil {
		return nil
	}
	for _, d := range world.Drivers {
		out = append(out, doctor.Driver{Name: d.Name(), Err: d.Available()})
	}
	return out
}

func (x *exam) inventory(ctx context.Context) (offpeak.Inventory, error) {
	// Fences have lines of their own.
	world, _, err := x.world(supervisor.Found{})
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
	world, o, err := x.world(supervisor.Found{})
	if err != nil || world.Measure == nil {
		return doctor.Devices{Withheld: err == nil && o.machine.gpus == "none"}
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
	if exists(x.data) {
		// A damaged one has a line of its own, and the defaults hold.
		if p, err := agent.Policy(x.data); err == nil {
			policy = p
		}
	}
	var sources []presence.Source
	if o, err := x.settings(); err != nil || o.presence {
		list, _, done := presence.Sources(presence.Options{Getenv: x.env.Getenv})
		defer done()
		gpus := presence.Devices(func(context.Context) ([]presence.Device, error) { return seenDevices(x.devices()), nil })
		sources = slices.Concat(list, []presence.Source{gpus})
	}
	began := time.Now()
	watcher := presence.NewWatcher(presence.Config{
		Policy: policy, Sources: sources, Log: silent(),
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
