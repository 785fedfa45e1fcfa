// Package api is the hub's HTTP face: everything a person, a program or a node
// can ask of a hub, under /v1, described by an OpenAPI 3.1 document that the
// hub serves itself.
//
// It owns who may call what (the roles stand beside each route, in one table),
// the bounds of what is read, the form of errors, and the streams. It decides
// nothing about jobs, nodes or money: it calls the hub,
// its rooms and the store. All that it keeps
// between requests is how fast each caller has been asking.
//
// Every route passes one gate, in this order: protocol version, address that
// failed too often, token, role, rate, operation id, body. Only then does its
// handler run. Routes of people are typed for huma, which checks their
// parameters; routes that carry the fleet's load are plain handlers. Both kinds
// stand in the table and in the document.
//
// Handlers run on net/http's goroutines and start none but those of streams,
// which they wait for. The tests drive it with wire.Direct over loopback, walk
// over the table with every role, and send it what it must refuse.
package api

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"offpeak"
	"offpeak/hub"
	"offpeak/hub/access"
	"offpeak/hub/data"
)

// Options is what an operator may set. Zero fields take the defaults.
type Options struct {
	// Log takes what the hub can't tell the caller. Default: nowhere.
	Log *slog.Logger
	// Version is shown by whoami, health and the document.
	Version string
	// Streams ends all open streams when it is done. Default: never.
	Streams context.Context
	// Rate and Burst bound the requests a second of one token. Default 1000
	// and 4000.
	Rate  float64
	Burst int
	// NodeRate and NodeBurst bound those of one node. Default 200 and 2000.
	NodeRate  float64
	NodeBurst int
	// FailureRate and FailureBurst bound the failed authentications of one
	// address. Default 2 a second and 60.
	FailureRate  float64
	FailureBurst int
	// Ping is the longest silence of a stream. Default 15s.
	Ping time.Duration
	// Now is the clock of rate limits and of tokens' ends in open streams.
	Now func() time.Time
}

func (o Options) withDefaults() Options {
	or := func(v *float64, d float64) {
		if *v <= 0 {
			*v = d
		}
	}
	orInt := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	or(&o.Rate, 1000)
	orInt(&o.Burst, 4000)
	or(&o.NodeRate, 200)
	orInt(&o.NodeBurst, 2000)
	or(&o.FailureRate, 2)
	orInt(&o.FailureBurst, 60)
	if o.Ping <= 0 {
		o.Ping = 15 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Streams == nil {
		o.Streams = context.Background()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

type api struct {
	hub    *hub.Hub
	access *access.Control
	data   *data.Vault
	opts   Options
	log    *slog.Logger
	// authenticate is access.Control's.
	authenticate func(ctx context.Context, bearer string) (offpeak.Token, error)

	tokens, nodes, failures *limiter
	metrics                 *metrics
	headers                 []header
	document                document
}

// New makes the handler of everything under /v1. Every other path is not found.
func New(h *hub.Hub, opts Options) http.Handler {
	handler, _ := build(h, opts)
	return handler
}

// build is New that also returns what it built, for the tests inside.
func build(h *hub.Hub, opts Options) (http.Handler, *api) {
	opts = opts.withDefaults()
	a := &api{
		hub:          h,
		access:       h.Access(),
		data:         h.Data(),
		opts:         opts,
		log:          opts.Log,
		authenticate: h.Access().Authenticate,
		tokens:       newLimiter(opts.Rate, opts.Burst),
		nodes:        newLimiter(opts.NodeRate, opts.NodeBurst),
		failures:     newLimiter(opts.FailureRate, opts.FailureBurst),
		headers:      securityHeaders(),
	}
	a.metrics = newMetrics(h)

	routes := a.routes()
	gates := &gates{api: a, mux: http.NewServeMux(), routes: make(map[string]*route, len(routes))}
	config := a.config()
	typed := humago.New(gates, config)
	for i := range routes {
		rt := &routes[i]
		gates.routes[rt.method+" "+rt.path] = rt
		rt.seen = a.metrics.route(rt)
		op := rt.operation()
		if rt.mount != nil {
			rt.mount(a, typed, op)
		} else {
			gates.mux.Handle(rt.method+" "+rt.path, a.gate(rt, rt.serve))
			describeAnswer(typed, rt, &op)
			typed.OpenAPI().AddOperation(&op)
		}
		describeBody(typed, rt)
	}
	a.document = a.finish(typed)
	gates.mux.Handle("/", a.gate(&route{method: "*", path: "/", roles: everyone(), seen: a.metrics.route(&route{path: "unknown"})}, gates.unknown))
	return gates.mux, a
}

// gates is the mux that huma registers on: it puts every route that huma makes
// behind the gate that the table holds for it.
type gates struct {
	api    *api
	mux    *http.ServeMux
	routes map[string]*route
}

func (g *gates) HandleFunc(pattern string, handler func(http.ResponseWriter, *http.Request)) {
	rt, ok := g.routes[pattern]
	if !ok {
		panic("api: " + pattern + " is not in the table of routes")
	}
	g.mux.Handle(pattern, g.api.gate(rt, func(w http.ResponseWriter, r *http.Request, c *caller) error {
		handler(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, c)))
		return nil
	}))
}

func (g *gates) ServeHTTP(w http.ResponseWriter, r *http.Request) { g.mux.ServeHTTP(w, r) }

// unknown answers what no route matches: another method of a path is told which
// methods it has.
func (g *gates) unknown(w http.ResponseWriter, r *http.Request, _ *caller) error {
	var allowed []string
	for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete} {
		probe := &http.Request{Method: m, URL: r.URL, Host: r.Host}
		if _, pattern := g.mux.Handler(probe); pattern != "" && pattern != "/" {
			allowed = append(allowed, m)
		}
	}
	if len(allowed) > 0 {
		return notAllowed(w, r.Method, allowed)
	}
	return noRoute(r.URL.Path)
}

// Server makes the server that a hub listens with. Headers and bodies must
// arrive within bounds; handlers of streams lift the bound on answers.
func Server(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		WriteTimeout:      2 * time.Minute,
		IdleTimeout:       3 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		Protocols:         http1(),
	}
}

func http1() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	return p
}

func (a *api) config() huma.Config {
	c := huma.DefaultConfig("Offpeak", a.opts.Version)
	c.Info.Description = "A compute grid for idle consumer hardware. Errors are RFC 9457 problems with a stable code and what to do next."
	c.OpenAPIPath, c.DocsPath, c.SchemasPath = "", "", ""
	c.CreateHooks = nil
	c.RejectUnknownQueryParameters = true
	c.Formats = map[string]huma.Format{"application/json": jsonFormat(), "json": jsonFormat()}
	c.Transformers = []huma.Transformer{a.transform}
	c.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		"bearer": {Type: "http", Scheme: "bearer", Description: "A token from offpeak token create, a node's session, or a join token."},
	}
	aliasSchemas(c.Components.Schemas)
	return c
}

func jsonFormat() huma.Format {
	return huma.Format{Marshal: huma.DefaultJSONFormat.Marshal, Unmarshal: func([]byte, any) error {
		return io.ErrUnexpectedEOF // bodies are read by the gate, never by huma
	}}
}
