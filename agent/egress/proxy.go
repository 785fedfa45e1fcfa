// Package egress is the one way from a job to the network: an HTTP proxy in the
// agent, on a Unix socket for each lease, that lets through what the job has asked
// for and the machine's owner allows, and nothing that is not public.
//
// A job has a network namespace without a way out (agent/driver/relay), so all that
// it can do is to ask here: CONNECT host:port, or a plain request for http://host/.
// A name is resolved here and not by the job. An address is checked three times: as
// it was resolved, in the moment in which the kernel is about to connect to it, and
// by how far away it is, since what answers one hop away is the owner's own router,
// whatever its address looks like. Redirects need no rule: whoever follows one asks
// again. An answer of a resolver that mixes public and closed addresses is a trick
// and is refused whole.
//
// It owns the sockets, the connections and their count of bytes. It must know
// nothing of hubs and of what runs. A Proxy may be used from any goroutine; each
// Gate has one for its socket and up to three for each connection. It is tested by a
// corpus of tricks with a resolver of its own, by fuzzing what is read, and in
// namespaces that are a home with a router, another machine and an internet.
package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"offpeak"
)

// Bounds of a proxy.
const (
	// maxConns is how many connections a job may have at once, maxAll all jobs.
	maxConns = 128
	maxAll   = 512
	// maxHosts is how many destinations of a job are told apart in its report.
	maxHosts = 64
	// maxAddrs is how many addresses of a name are tried.
	maxAddrs = 4
	// maxEnded is how many reports of jobs that have ended are kept.
	maxEnded = 20
	// maxHead bounds the head of a request.
	maxHead = 16 << 10
)

// Times are the durations of a proxy.
type Times struct {
	// Head bounds the wait for a request, Resolve that for a name, Dial that for all
	// of a destination's addresses, Hop that for an answer from one hop away.
	Head, Resolve, Dial, Hop time.Duration
	// Idle is how long a connection on which nothing happens is kept.
	Idle time.Duration
}

func (t Times) withDefaults() Times {
	or := func(d *time.Duration, fallback time.Duration) {
		if *d <= 0 {
			*d = fallback
		}
	}
	or(&t.Head, 10*time.Second)
	or(&t.Resolve, 5*time.Second)
	or(&t.Dial, 15*time.Second)
	or(&t.Hop, 300*time.Millisecond)
	or(&t.Idle, 5*time.Minute)
	return t
}

// Config is what a proxy is given.
type Config struct {
	// Folder is where the sockets are made; others must not get in.
	Folder string
	// Hosts are what the owner allows, as offpeak.Egress has them.
	Hosts []string
	// Rate is shared by all jobs and both directions; nil is no bound.
	Rate *rate.Limiter
	// Total is how many bytes a job may move in both directions; 0 is no bound.
	Total offpeak.Bytes
	Times Times
	// Resolve finds a name's addresses. Nil asks the machine's resolver.
	Resolve func(ctx context.Context, name string) ([]netip.Addr, error)
	// Nearby are the networks of this machine, which are closed whatever their
	// addresses look like. Nil looks at the machine's interfaces.
	Nearby func() ([]netip.Prefix, error)
	Log    *slog.Logger
	// Now is the wall clock, for reports.
	Now func() time.Time
}

// Proxy is a node's egress. A nil one lets nothing through.
type Proxy struct {
	cfg  Config
	hops hops

	// mu guards what follows.
	mu    sync.Mutex
	gates map[offpeak.LeaseID]*Gate
	open  int
	ended []Ended
}

// Ended is what a job that is gone has reached.
type Ended struct {
	Lease   offpeak.LeaseID `json:"lease"`
	Job     offpeak.JobID   `json:"job"`
	Reached []Reached       `json:"reached"`
}

// New makes a proxy.
func New(cfg Config) (*Proxy, error) {
	cfg.Times = cfg.Times.withDefaults()
	if cfg.Resolve == nil {
		cfg.Resolve = resolver(&net.Resolver{PreferGo: true})
	}
	if cfg.Nearby == nil {
		cfg.Nearby = nearby
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Rate != nil && cfg.Rate.Limit() != rate.Inf && cfg.Rate.Burst() < Burst {
		return nil, fmt.Errorf("the bound on jobs' egress needs a burst of %d bytes", Burst)
	}
	if err := os.MkdirAll(cfg.Folder, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of jobs' proxies: %w", err)
	}
	return &Proxy{cfg: cfg, gates: map[offpeak.LeaseID]*Gate{}}, nil
}

// Clear removes the sockets of all leases but those that are still held.
func (p *Proxy) Clear(held []offpeak.LeaseID) error {
	if p == nil {
		return nil
	}
	entries, err := os.ReadDir(p.cfg.Folder)
	if err != nil {
		return fmt.Errorf("clear jobs' proxies: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if !slices.Contains(held, offpeak.LeaseID(e.Name())) {
			errs = append(errs, os.RemoveAll(filepath.Join(p.cfg.Folder, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// Gate is the proxy of one lease.
type Gate struct {
	p     *Proxy
	lease offpeak.LeaseID
	job   offpeak.JobID
	allow []string
	dir   string
	l     net.Listener
	ctx   context.Context
	stop  context.CancelFunc
	work  sync.WaitGroup

	// mu guards what follows.
	mu    sync.Mutex
	conns int
	moved offpeak.Bytes
	seen  map[string]*Reached
	order []string
}

// socketName is the socket in the folder of a lease.
const socketName = "proxy"

// ErrNotAllowed says that the machine's owner does not allow what a job wants.
var ErrNotAllowed = errors.New("the owner of this machine does not let jobs reach that")

// Begin begins to serve a lease whose job may reach what is in allow, and returns its
// socket, as driver.Task wants it; "" where that is nothing. It returns an
// ErrNotAllowed where the owner does not want that (any more): a nil Proxy allows
// nothing. An agent that adopts a running job begins again, at the same path.
func (p *Proxy) Begin(lease offpeak.LeaseID, job offpeak.JobID, allow []string) (string, error) {
	switch {
	case len(allow) == 0:
		return "", nil
	case p == nil:
		return "", ErrNotAllowed
	}
	g, err := p.Open(lease, job, allow)
	if err != nil {
		return "", err
	}
	return g.Path(), nil
}

// End ends what was begun, if anything was. kept says that the job goes on without
// this agent, so that the socket's place is left to the next.
func (p *Proxy) End(lease offpeak.LeaseID, kept bool) {
	g := p.gate(lease)
	switch {
	case g == nil:
	case kept:
		g.end()
	default:
		g.Close()
	}
}

func (p *Proxy) gate(lease offpeak.LeaseID) *Gate {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gates[lease]
}

// Reached is what the job of a lease may reach, and what it has.
func (p *Proxy) Reached(lease offpeak.LeaseID) (allowed []string, reached []Reached) {
	g := p.gate(lease)
	if g == nil {
		return nil, nil
	}
	return slices.Clone(g.allow), g.Reached()
}

// Open is Begin for those who have something to do with the gate themselves; allow
// may be empty.
func (p *Proxy) Open(lease offpeak.LeaseID, job offpeak.JobID, allow []string) (*Gate, error) {
	own := offpeak.Egress{Hosts: p.cfg.Hosts, Drivers: []string{""}}
	for _, a := range allow {
		if _, err := offpeak.ParseDestination(a); err != nil {
			return nil, fmt.Errorf("open egress: %w", err)
		}
	}
	if !own.Takes("", allow) {
		return nil, ErrNotAllowed
	}
	g := &Gate{p: p, lease: lease, job: job, allow: slices.Clone(allow), dir: filepath.Join(p.cfg.Folder, string(lease)), seen: map[string]*Reached{}}
	var err error
	if g.l, err = listen(g.dir); err != nil {
		return nil, fmt.Errorf("open egress: %w", err)
	}
	g.ctx, g.stop = context.WithCancel(context.Background())
	p.mu.Lock()
	p.gates[lease] = g
	p.mu.Unlock()
	g.work.Go(g.accept)
	return g, nil
}

// listen makes the socket of a lease. Its folder is what drivers show to a job, so
// that a socket that a later agent makes in there is seen too; which user a job has
// in its sandbox is the driver's affair, and who gets at the folder is decided above
// it. A socket's path has room for 107 bytes, so it is named through its folder.
func listen(dir string) (net.Listener, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, socketName)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	short := path
	if d, err := os.Open(dir); err == nil {
		defer d.Close()
		if through := fmt.Sprintf("/proc/self/fd/%d", d.Fd()); len(path) > 100 && exists(through) {
			short = filepath.Join(through, socketName)
		}
	}
	l, err := net.Listen("unix", short)
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	for name, mode := range map[string]fs.FileMode{path: 0o666, dir: 0o755} {
		if err := os.Chmod(name, mode); err != nil {
			l.Close()
			return nil, err
		}
	}
	return l, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Path is the socket.
func (g *Gate) Path() string { return filepath.Join(g.dir, socketName) }

// Close ends all connections and removes the socket.
func (g *Gate) Close() {
	g.end()
	reached := g.Reached()
	if len(reached) > 0 {
		g.p.mu.Lock()
		g.p.ended = append(g.p.ended, Ended{g.lease, g.job, reached})
		g.p.ended = g.p.ended[max(0, len(g.p.ended)-maxEnded):]
		g.p.mu.Unlock()
	}
	_ = os.RemoveAll(g.dir)
	for _, r := range reached {
		g.p.cfg.Log.Info("a job's egress", "job", g.job, "lease", g.lease, "host", r.Host, "connections", r.Connections,
			"sent", r.Sent, "received", r.Received, "refused", r.Refused, "why", r.Why)
	}
}

func (g *Gate) end() {
	g.stop()
	g.l.Close()
	g.work.Wait()
	g.p.mu.Lock()
	if g.p.gates[g.lease] == g {
		delete(g.p.gates, g.lease)
	}
	g.p.mu.Unlock()
}

const full = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n" +
	"offpeak: this job, or all jobs of this machine, have as many connections as they may; close some\n"

func (g *Gate) accept() {
	for {
		c, err := g.l.Accept()
		if errors.Is(err, net.ErrClosed) || g.ctx.Err() != nil {
			if err == nil {
				c.Close()
			}
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // out of descriptors
			continue
		}
		if !g.enter() {
			// Not waited for: there may be very many.
			_ = c.SetWriteDeadline(time.Now().Add(time.Second))
			_, _ = io.WriteString(c, full)
			c.Close()
			continue
		}
		g.work.Go(func() {
			defer g.leave()
			defer c.Close()
			defer context.AfterFunc(g.ctx, func() { c.Close() })()
			g.serve(c)
		})
	}
}

// enter counts a connection, unless there are too many.
func (g *Gate) enter() bool {
	g.p.mu.Lock()
	defer g.p.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.conns >= maxConns || g.p.open >= maxAll {
		return false
	}
	g.conns++
	g.p.open++
	return true
}

func (g *Gate) leave() {
	g.p.mu.Lock()
	defer g.p.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conns--
	g.p.open--
}

// Ended are what the last jobs that are gone have reached, oldest first.
func (p *Proxy) Ended() []Ended {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.ended)
}
