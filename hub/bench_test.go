package hub_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"offpeak"
	"offpeak/hub"
	"offpeak/wire"
)

// discard is a response writer that costs nothing.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(int)             {}

// BenchmarkHeartbeat compares quiet heartbeats with a bare handler that decodes
// and answers the same JSON.
func BenchmarkHeartbeat(b *testing.B) {
	body := `{"incarnation":"inc-0123456789abcdef","seq":1,"availability":"available"}`
	serve := func(b *testing.B, h http.HandlerFunc) {
		b.ReportAllocs()
		for b.Loop() {
			r := httptest.NewRequest(http.MethodPost, "/v1/node/heartbeat", strings.NewReader(body))
			h(discard{http.Header{}}, r)
		}
	}
	b.Run("bare", func(b *testing.B) {
		serve(b, func(w http.ResponseWriter, r *http.Request) {
			var in wire.Heartbeat
			_ = json.NewDecoder(r.Body).Decode(&in)
			_ = json.NewEncoder(w).Encode(wire.Sync{Revision: 1, Interval: 5e9, Timeout: 6e10, Leases: []wire.Desired{}})
		})
	})
	b.Run("hub", func(b *testing.B) {
		g := newGrid(b, hub.Config{})
		a := g.join("one")
		serve(b, func(w http.ResponseWriter, r *http.Request) {
			var in wire.Heartbeat
			_ = json.NewDecoder(r.Body).Decode(&in)
			t, err := g.hub.Access().Authenticate(r.Context(), a.session)
			if err != nil {
				b.Fatal(err)
			}
			a.seq++
			in.Incarnation, in.Seq = a.inc, a.seq
			s, err := g.hub.Heartbeat(r.Context(), t.Node, in)
			if err != nil {
				b.Fatal(err)
			}
			_ = json.NewEncoder(w).Encode(s)
		})
	})
}

// BenchmarkSubmitToOffer is one job from its submission to its node's watcher.
func BenchmarkSubmitToOffer(b *testing.B) {
	g := newGrid(b, hub.Config{})
	a := g.join("one")
	for b.Loop() {
		g.submit(small())
		d := a.offered()
		a.accept(d)
		a.end(d, offpeak.EndCompleted)
	}
}
