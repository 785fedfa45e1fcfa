package cli

import (
	"context"
	crand "crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"offpeak"
	"offpeak/blob/place"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/hub"
	"offpeak/hub/api"
	"offpeak/internal/inflight"
	"offpeak/internal/local"
	"offpeak/internal/steady"
	"offpeak/store"
	"offpeak/wire"
)

// hubOptions is what the flags of the hub command say.
type hubOptions struct {
	listen, data, config, db, blobs string
	paymentsKey, depositsKey        string
	heartbeat, timeout, offer, tick time.Duration
	quarantine, fence               time.Duration
	keepJobs, keepLogs, keepEvents  time.Duration
	keepOperations                  time.Duration
	advertise                       []string
	rate                            float64
	noLocalFile, tls, blobsMoved    bool
	traceVerbs                      string
	logging                         logging
	market                          marketOptions
	queue                           queueOptions
}

// drain is how long requests may take to finish once a hub is told to stop.
const drain = 10 * time.Second

func newHub(env Env) *cobra.Command {
	var o hubOptions
	cmd := &cobra.Command{
		Use:   "hub",
		Short: "Run a hub: match jobs to nodes and keep their state",
		Long: `Run a hub. Its state lies in one folder (--data); or, for several hubs of one
grid, in a PostgreSQL database that all of them name (--db), with their blobs in
one place that all of them reach (--blobs). On loopback, agents and
commands of the same user find it by themselves. On any other address it serves
TLS with a key of its own, which join tokens and "offpeak login" pin.

Every flag can also stand in the environment (OFFPEAK_LOG_LEVEL is --log-level)
and in a YAML file (--config); flags win over the environment, which wins over
the file.`,
		Example: `  offpeak hub
  offpeak hub --listen 0.0.0.0:7070 --advertise https://hub.example.org:7070
  OFFPEAK_DB=postgres://offpeak:secret@db.example.org/offpeak offpeak hub --listen 0.0.0.0:7070`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fallback := filepath.Join(local.Home(env.Getenv), "hub.yaml")
			if o.config == "" {
				o.config = env.Getenv("OFFPEAK_CONFIG")
			}
			if err := configure(cmd.Flags(), o.config, fallback, env.Getenv); err != nil {
				return err
			}
			if err := o.validate(); err != nil {
				return err
			}
			if err := o.market.read(); err != nil {
				return err
			}
			if err := o.checkDB(env.Getenv); err != nil {
				return err
			}
			return o.run(cmd.Context(), env)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.listen, "listen", "127.0.0.1:7070", "address to listen on; port 0 takes a free one")
	f.StringVar(&o.data, "data", filepath.Join(local.Home(env.Getenv), "hub"), "folder that holds the hub's state")
	f.StringVar(&o.db, "db", "", "PostgreSQL `URL` of the grid's database, instead of a file in the data folder; with a password it belongs into OFFPEAK_DB or the file of settings")
	f.StringVar(&o.blobs, "blobs", "", "`place` of inputs, outputs and checkpoints, if not the data folder: the path of a folder, or s3://bucket/prefix")
	f.BoolVar(&o.blobsMoved, "blobs-moved", false, "all blobs are at --blobs, which is this grid's place for them from now on, and no other's; no other hub may be at work")
	f.StringVar(&o.config, "config", "", "`file` of settings in YAML (default hub.yaml beside the data folder, if there is one)")
	f.DurationVar(&o.heartbeat, "heartbeat", 5*time.Second, "interval of heartbeats that agents are told")
	f.DurationVar(&o.timeout, "timeout", time.Minute, "silence of a node after which its leases expire")
	f.DurationVar(&o.offer, "offer", 15*time.Second, "how long an offer waits for its agent")
	f.DurationVar(&o.tick, "tick", time.Second, "how often leases and nodes are checked")
	f.DurationVar(&o.quarantine, "quarantine", time.Minute, "how long a node gets no work after three attempts in a row died there by its fault; twice as long each further time, up to 1h")
	f.DurationVar(&o.fence, "fence", time.Minute, "how long a job is kept off a node where an attempt of it failed; twice as long each further time there, up to 15m")
	const day = 24 * time.Hour
	f.DurationVar(&o.keepJobs, "keep-jobs", 30*day, "how long ended jobs are kept; 0 for ever")
	f.DurationVar(&o.keepLogs, "keep-logs", 14*day, "how long logs of ended jobs are kept; 0 for ever")
	f.DurationVar(&o.keepEvents, "keep-events", 7*day, "how long events are kept; 0 for ever")
	f.DurationVar(&o.keepOperations, "keep-operations", 7*day, "how long operation ids are remembered; 0 for ever")
	f.StringSliceVar(&o.advertise, "advertise", nil, "`addresses` that join tokens name, for example https://hub.example.org:7070")
	f.Float64Var(&o.rate, "rate", 1000, "requests a second that one token may make")
	f.BoolVar(&o.noLocalFile, "no-local-file", false, "don't write the file through which this user's agents and commands find the hub")
	f.StringVar(&o.paymentsKey, "payments-key", "", "`file` of the private key that signs payouts (default payments.key in the data folder, made when first needed); hubs on one database need the same one")
	f.StringVar(&o.depositsKey, "deposits-key", "", "`file` of the public key of who signs deposits for the grid (default: nobody is trusted, and none are imported)")
	f.StringVar(&o.traceVerbs, "trace-verbs", "", "`file` that says which of the store's verbs are under way; for tests that kill hubs")
	_ = f.MarkHidden("trace-verbs")
	f.BoolVar(&o.tls, "tls", false, "serve TLS on loopback too")
	o.market.flags(f)
	o.queue.flags(f)
	o.logging.flags(f)
	return cmd
}

func (o *hubOptions) validate() error {
	if o.heartbeat < 20*time.Millisecond {
		return badInput("--heartbeat: %v: is at least 20ms", o.heartbeat)
	}
	if o.timeout < 3*o.heartbeat {
		return badInput("--timeout: %v: is at least three heartbeats (%v)", o.timeout, 3*o.heartbeat)
	}
	for _, d := range []struct {
		flag string
		v    time.Duration
	}{{"offer", o.offer}, {"tick", o.tick}, {"quarantine", o.quarantine}, {"fence", o.fence}} {
		if d.v <= 0 {
			return badInput("--%s: %v: is more than 0s", d.flag, d.v)
		}
	}
	for _, d := range []struct {
		flag string
		v    time.Duration
	}{{"keep-jobs", o.keepJobs}, {"keep-logs", o.keepLogs}, {"keep-events", o.keepEvents}, {"keep-operations", o.keepOperations}} {
		if d.v < 0 {
			return badInput("--%s: %v: is not negative; 0 keeps for ever", d.flag, d.v)
		}
	}
	if !(o.rate > 0) {
		return badInput("--rate: %v: is more than 0", o.rate)
	}
	if err := o.market.validate(); err != nil {
		return err
	}
	if err := o.queue.validate(); err != nil {
		return err
	}
	if _, _, err := net.SplitHostPort(o.listen); err != nil {
		return badInput("--listen: %q: is host:port, for example 127.0.0.1:7070", o.listen)
	}
	if _, err := place.Parse(o.blobs); err != nil {
		return badInput("--blobs: %w", err)
	}
	for _, a := range o.advertise {
		scheme, rest, ok := strings.Cut(a, "://")
		if !ok || rest == "" || (scheme != "https" && scheme != "http") {
			return badInput("--advertise: %q: is an address with its scheme, for example https://hub.example.org:7070", a)
		}
	}
	return nil
}

// run serves until the process is told to stop.
func (o *hubOptions) run(ctx context.Context, env Env) error {
	log, err := o.logging.logger(env.Stderr)
	if err != nil {
		return err
	}
	ctx, restore := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer restore()
	// Told once, the hub stops in good order, from wherever it is; told again, it
	// goes at once.
	context.AfterFunc(ctx, restore)

	if err := o.checkPayments(); err != nil {
		return err
	}
	if err := os.MkdirAll(o.data, 0o700); err != nil {
		return fmt.Errorf("make data folder: %w; choose another with --data", err)
	}
	began := time.Now()
	clock := steady.New(time.Now, func() time.Duration { return time.Since(began) })
	id, err := hub.NewID(clock.Now(), crand.Reader)
	if err != nil {
		return err
	}
	db, err := o.openStore(ctx, id, clock, log)
	if err != nil {
		return err
	}
	defer func() {
		if err := db.Close(); err != nil {
			log.Error("store did not close", "err", err)
		}
	}()
	blobs, err := openPlace(ctx, o.blobs, o.data, clock.Now)
	if err != nil {
		return diskFull(err)
	}
	defer blobs.Close()
	if err := o.checkBlobs(ctx, db, blobs); err != nil {
		return err
	}
	ln, err := (&net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}).Listen(ctx, "tcp", o.listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("listen on %s: the port is in use: stop what listens there, or choose another with --listen", o.listen)
	}
	if err != nil {
		return fmt.Errorf("listen on %s: %w; choose another address with --listen", o.listen, err)
	}
	defer ln.Close()
	s := &service{id: id, options: o, env: env, log: log, now: clock.Now, store: db, blobs: blobs, restoreSignals: restore}
	if o.traceVerbs != "" {
		traced, err := inflight.Watch(db, o.traceVerbs)
		if err != nil {
			return err
		}
		defer traced.Unwatch()
		s.store = traced
	}
	if err := s.address(ln.Addr()); err != nil {
		return err
	}
	if s.tls != nil {
		ln = tls.NewListener(ln, s.tls)
	}
	err = s.serve(ctx, ln)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil // told to stop before it had begun
	}
	return diskFull(err)
}

// diskFull adds the next step to an error of a full disk.
func diskFull(err error) error {
	if isDiskFull(err) {
		return fmt.Errorf("%w; the disk is full: free space or move the hub with --data, then start it again", err)
	}
	return err
}

func isDiskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// service is one run of a hub.
type service struct {
	id          offpeak.HubID
	options     *hubOptions
	env         Env
	log         *slog.Logger
	now         func() time.Time
	store       store.Store
	blobs       *place.Place
	tls         *tls.Config // nil on loopback
	url         string
	fingerprint string
	hubs        []string
	// restoreSignals brings the default back, so that a second signal ends the
	// process at once. It has run before "stopping" is logged.
	restoreSignals func()
}

// address says how the hub is reached: plain HTTP on loopback unless
// TLS was asked for, TLS elsewhere.
func (s *service) address(addr net.Addr) error {
	host, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return fmt.Errorf("read listening address: %w", err)
	}
	scheme := "http"
	if s.options.tls || !wire.Loopback(host) {
		scheme = "https"
		if s.tls, s.fingerprint, err = serverTLS(s.options.data, time.Now()); err != nil {
			return diskFull(err)
		}
	}
	s.url = scheme + "://" + net.JoinHostPort(host, port)
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		s.url = scheme + "://" + net.JoinHostPort("127.0.0.1", port)
	}
	if s.hubs = s.options.advertise; len(s.hubs) == 0 {
		s.hubs = s.reachable(scheme, host, port)
	}
	return nil
}

// reachable lists the addresses of a hub that nobody named.
func (s *service) reachable(scheme, host, port string) []string {
	if ip := net.ParseIP(host); ip == nil || !ip.IsUnspecified() {
		return []string{scheme + "://" + net.JoinHostPort(host, port)}
	}
	var out []string
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		s.log.Warn("addresses of this machine are not known: join tokens name loopback only, see --advertise", "err", err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			out = append(out, scheme+"://"+net.JoinHostPort(n.IP.String(), port))
		}
	}
	if len(out) == 0 {
		out = []string{s.url}
	}
	return out
}

// serve runs hub and server until ctx is done or one of them fails.
func (s *service) serve(ctx context.Context, ln net.Listener) error {
	o, version := s.options, world.NewBuild(s.env).Version
	h := hub.New(hub.Config{
		Interval: o.heartbeat, Timeout: o.timeout, Offer: o.offer, Tick: o.tick, Quarantine: o.quarantine, Fence: o.fence,
		Retention: store.Retention{Jobs: keep(o.keepJobs), Logs: keep(o.keepLogs), Events: keep(o.keepEvents), Operations: keep(o.keepOperations)},
		Hubs:      s.hubs, Fingerprint: s.fingerprint, Folder: o.data, Version: version, Blobs: o.blobsIn(s.blobs), BlobsAt: o.blobs,
		Trade: o.market.trade(), Holds: o.market.ledgerRules(), Queue: o.queue.config,
	}, hub.Env{
		ID: s.id, Store: s.store, Blobs: s.blobs.Store, Payments: o.payments(), Log: s.log, Now: s.now,
		Rand: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), Random: crand.Reader,
	})
	if err := s.join(ctx, h); err != nil {
		return err
	}
	secret, err := h.Access().Bootstrap(ctx)
	if err != nil {
		return fmt.Errorf("make the first account: %w", err)
	}
	// Before anything is served: whoever finds the hub that was here before gone,
	// and this one in its place, finds the new token too.
	here, err := s.introduce(ctx, h)
	if err != nil {
		return err
	}
	streams, closeStreams := context.WithCancel(context.WithoutCancel(ctx))
	defer closeStreams()
	server := api.Server(api.New(h, api.Options{Log: s.log, Version: version, Streams: streams, Rate: o.rate, Burst: max(1, int(4*o.rate))}), s.log)

	// The hub outlives the server: requests that finish need its loops.
	hubCtx, stopHub := context.WithCancel(context.WithoutCancel(ctx))
	defer stopHub()
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := h.Run(hubCtx); err != nil {
			return fmt.Errorf("run hub: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		defer stopHub()
		s.announce(secret, here)
		<-groupCtx.Done()
		s.restoreSignals()
		s.log.Info("stopping")
		closeStreams()
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
		defer cancel()
		if cut := server.Shutdown(within); cut != nil {
			s.log.Warn("requests were cut off", "err", errors.Join(cut, server.Close()))
		}
		return nil
	})
	err = group.Wait()
	if !o.noLocalFile {
		err = errors.Join(err, local.Remove(local.Path(s.env.Getenv), os.Getpid()))
	}
	return err
}

// keep translates a flag, where 0 is for ever, to the hub's settings, where 0
// is the default.
func keep(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// introduce writes the local file and says whether it did: here is then logged
// in to this hub.
func (s *service) introduce(ctx context.Context, h *hub.Hub) (here bool, err error) {
	// A hub that was killed leaves its file behind, one that answers keeps it:
	// the agents and commands of this user are on its grid.
	other, taken := s.neighbour(ctx)
	if taken && !s.options.noLocalFile {
		s.log.Warn("another hub of yours serves already: agents and commands on this machine go on finding that one; log in to this one by its address", "other", other)
	}
	if s.options.noLocalFile || taken {
		return false, nil
	}
	token, err := h.Access().LocalToken(ctx, s.options.place())
	if err == nil {
		err = local.Write(local.Path(s.env.Getenv), wire.Local{Hubs: []string{s.url}, Token: token, Fingerprint: s.fingerprint, PID: os.Getpid()})
	}
	if errors.Is(err, offpeak.ErrStorage) || isDiskFull(err) {
		// The file of a hub that was killed is still there, and its token still good.
		s.log.Warn("the disk is full: this machine's commands go on with the local file there is", "err", err)
		return false, nil
	}
	return err == nil, err
}

// announce tells people where the hub is.
func (s *service) announce(secret string, here bool) {
	if secret != "" {
		fmt.Fprint(s.env.Stderr, s.welcome(secret, here))
	}
	fmt.Fprintln(s.env.Stdout, "listening on "+s.url)
	s.log.Info("hub serves", "address", s.url, "data", s.options.data)
}

// neighbour says whether the local file names another hub of this user that
// answers to what stands there, and where.
func (s *service) neighbour(ctx context.Context) (address string, serves bool) {
	l, err := local.Read(local.Path(s.env.Getenv))
	if err != nil || l.PID == os.Getpid() || len(l.Hubs) == 0 || l.Hubs[0] == s.url {
		return "", false
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	client := wire.Client(l.Fingerprint)
	defer client.CloseIdleConnections()
	_, err = (&wire.Direct{Client: client, Base: l.Hubs[0], Token: l.Token, Agent: "offpeak-hub"}).Whoami(ctx)
	return l.Hubs[0], err == nil
}

// welcome is what the first start of a hub shows, once; here says that this
// user's commands on this machine find it by themselves.
func (s *service) welcome(secret string, here bool) string {
	text := []string{
		"This hub is new. Its admin token, shown this once:",
		"",
		"  " + secret,
		"",
		"Keep it safe: it may do everything on every account.",
	}
	if here {
		text = append(text, "", "On this machine you are logged in already. Next:", "  offpeak agent run", "  offpeak run -- echo hello")
	}
	switch {
	case s.fingerprint != "":
		text = append(text, "", "From another machine:", "  offpeak login "+s.hubs[0]+" \\", "    --fingerprint "+s.fingerprint)
	case !here:
		text = append(text, "", "Next, log in with it:", "  offpeak login "+s.url)
	}
	width := 0
	for _, l := range text {
		width = max(width, len(l))
	}
	var b strings.Builder
	edge := "+" + strings.Repeat("-", width+2) + "+\n"
	b.WriteString(edge)
	for _, l := range text {
		fmt.Fprintf(&b, "| %-*s |\n", width, l)
	}
	b.WriteString(edge)
	return b.String()
}
