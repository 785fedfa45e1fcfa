package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"testing"
	"time"

	"offpeak"
	"offpeak/wire"
)

// bare is what the API's hot routes are measured against: a plain handler that
// decodes and answers the same JSON, and one that holds the same stream.
func bare(answer wire.Sync) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/node/heartbeat", func(w http.ResponseWriter, r *http.Request) {
		var in wire.Heartbeat
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	})
	mux.HandleFunc("GET /v1/node/stream", func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(answer)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	return mux
}

func serveBare(t testing.TB, h http.Handler) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(ln) }()
	t.Cleanup(func() { _ = s.Close(); <-done })
	return "http://" + ln.Addr().String()
}

// sink is a writer that keeps nothing, so that only the handler is measured.
type sink struct{ header http.Header }

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(p []byte) (int, error) { return len(p), nil }
func (s *sink) WriteHeader(int)             {}

func (s *sink) SetReadDeadline(time.Time) error { return nil }

func beatRequest(token string, incarnation offpeak.Incarnation, seq int) *http.Request {
	body, _ := json.Marshal(wire.Heartbeat{Incarnation: incarnation, Seq: int64(seq), Availability: offpeak.NodeAvailable, SinceAck: offpeak.Duration(5 * time.Second)})
	r, _ := http.NewRequestWithContext(context.Background(), http.MethodPost, "/v1/node/heartbeat", bytes.NewReader(body))
	r.RequestURI = "/v1/node/heartbeat"
	r.RemoteAddr = "127.0.0.1:9"
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set(wire.HeaderProtocol, "1")
	r.Header.Set("Content-Type", "application/json")
	return r
}

func BenchmarkHeartbeat(b *testing.B) {
	g := newGrid(b, Options{NodeRate: 1e9, NodeBurst: 1 << 30})
	node := g.enrol(g.admin, "n1")
	answer := node.beat(b, g.ctx())
	over := func(b *testing.B, url string) {
		c := wire.Client("")
		defer c.CloseIdleConnections()
		d := &wire.Direct{Client: c, Base: url, Token: node.Token}
		for b.Loop() {
			node.seq++
			if _, err := d.Heartbeat(b.Context(), wire.Heartbeat{Incarnation: node.incarnation, Seq: node.seq, Availability: offpeak.NodeAvailable, SinceAck: offpeak.Duration(5 * time.Second)}); err != nil {
				b.Fatal(err)
			}
		}
	}
	h := bare(answer)
	b.Run("wire/bare", func(b *testing.B) { over(b, serveBare(b, h)) })
	b.Run("wire/hub", func(b *testing.B) { over(b, g.url) })
	handle := func(b *testing.B, h http.Handler) {
		b.ReportAllocs()
		for b.Loop() {
			node.seq++
			b.StopTimer()
			r, w := beatRequest(node.Token, node.incarnation, int(node.seq)), &sink{header: http.Header{}}
			b.StartTimer()
			h.ServeHTTP(w, r)
		}
	}
	b.Run("handler/bare", func(b *testing.B) { handle(b, h) })
	b.Run("handler/hub", func(b *testing.B) { handle(b, g.handler) })
}
