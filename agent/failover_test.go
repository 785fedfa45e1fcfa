package agent

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"offpeak"
)

// TestFailOverKeepsLeases: when the hub in use hangs or dies, the agent is heard
// at another within two heartbeats, and its lease goes on.
func TestFailOverKeepsLeases(t *testing.T) {
	const interval = 500 * time.Millisecond
	for name, harm := range map[string]func(t *testing.T, front *gate){
		"dies":  func(_ *testing.T, front *gate) { front.close() },
		"hangs": func(_ *testing.T, front *gate) { front.hang() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.script("work", untilNotice)
			w.hub.with(func() { w.hub.interval, w.hub.timeout = interval, 20*interval })
			front := newGate(t, w.hub.mux)
			refuses, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			refuses.Close()
			w.cfg.Hubs = []string{front.server.URL, "http://" + refuses.Addr().String(), w.hub.another().URL}
			w.join()
			w.run()
			w.hub.offer("lease_1", work("work"))
			w.hub.wait("running", func() bool { return w.hub.leases["lease_1"].desired.State == offpeak.LeaseRunning })
			before := 0
			w.hub.with(func() { before = len(w.hub.beats) })
			harm(t, front)
			began := time.Now()
			w.hub.wait("a heartbeat elsewhere", func() bool { return len(w.hub.beats) > before })
			// One may be due just now, and one must have given up; slack for a busy machine.
			if took := time.Since(began); took > 3*interval+time.Second {
				t.Errorf("heard after %s, with heartbeats of %s", took, interval)
			}
			w.hub.stop("lease_1", offpeak.EndOutbid)
			if got := w.hub.ended("lease_1"); got.end.Reason != offpeak.EndOutbid || string(got.logs["stdout"]) != "working\ngoing: outbid\n" {
				t.Errorf("end = %+v, log %q", got.end, got.logs["stdout"])
			}
		})
	}
}

// gate is an address of a hub that can die or stop answering.
type gate struct {
	server *httptest.Server
	ctx    context.Context
	stop   context.CancelFunc
	over   chan struct{}
}

func newGate(t *testing.T, to http.Handler) *gate {
	g := &gate{over: make(chan struct{})}
	g.ctx, g.stop = context.WithCancel(context.Background())
	g.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.ctx.Err() != nil {
			<-g.over
			return
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		to.ServeHTTP(w, r.WithContext(ctx))
	}))
	t.Cleanup(func() { close(g.over); g.close() })
	return g
}

func (g *gate) close() { g.server.CloseClientConnections(); g.server.Listener.Close() }

func (g *gate) hang() { g.stop() }
