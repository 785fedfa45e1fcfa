package link

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"offpeak"
	"offpeak/wire"
)

// hub is one address: it opens sessions as told and counts.
type hub struct {
	server *httptest.Server

	mu       sync.Mutex
	sessions int
	calls    int
	stale    int // this many calls find their session stale
	status   int // answered to every call if not 0
	hang     chan struct{}
}

func newHub(t *testing.T) *hub {
	h := &hub{}
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }
	mux.HandleFunc("POST /v1/node/challenge", func(w http.ResponseWriter, _ *http.Request) {
		if !h.down(w) {
			answer(w, wire.Challenge{Challenge: "sign this"})
		}
	})
	mux.HandleFunc("POST /v1/node/session", func(w http.ResponseWriter, _ *http.Request) {
		h.mu.Lock()
		h.sessions++
		h.mu.Unlock()
		answer(w, wire.Session{Token: "good", Generation: 1, Refresh: offpeak.Duration(time.Minute)})
	})
	mux.HandleFunc("POST /v1/node/leave", func(w http.ResponseWriter, _ *http.Request) {
		if h.down(w) {
			return
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.calls++
		if h.stale > 0 {
			h.stale--
			p := wire.ProblemOf(offpeak.ErrStaleSession)
			w.WriteHeader(p.Status)
			answer(w, p)
			return
		}
		answer(w, nil)
	})
	h.server = httptest.NewServer(mux)
	t.Cleanup(h.server.Close)
	return h
}

func (h *hub) down(w http.ResponseWriter) bool {
	h.mu.Lock()
	status, hang := h.status, h.hang
	h.mu.Unlock()
	if hang != nil {
		<-hang
	}
	if status != 0 {
		w.WriteHeader(status)
	}
	return status != 0 || hang != nil
}

func (h *hub) count() (sessions, calls int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sessions, h.calls
}

func newLink(t *testing.T, bound time.Duration, hubs ...*hub) *Link {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Key: key, Client: &http.Client{Transport: &http.Transport{}}, Bound: bound, Incarnation: "one",
		Boot: func() time.Duration { return time.Second }, Log: slog.New(slog.DiscardHandler), Identity: Identity{Node: "node_1"},
		Keep: func(Identity) error { return nil }, Opened: func() {}, Conflicted: func(bool) {},
	}
	for _, h := range hubs {
		cfg.Hubs = append(cfg.Hubs, h.server.URL)
	}
	l := New(cfg)
	t.Cleanup(l.Close)
	return l
}

func call(t *testing.T, l *Link) error {
	return l.Call(t.Context(), func(ctx context.Context, d *wire.Direct) error { return d.Leave(ctx) })
}

// until calls until one is answered and returns how many were not.
func until(t *testing.T, l *Link) (failed int) {
	t.Helper()
	for failed = 0; failed < 10; failed++ {
		err := call(t, l)
		if err == nil {
			return failed
		}
		if !errors.Is(err, offpeak.ErrUnavailable) {
			t.Fatalf("call = %v", err)
		}
	}
	t.Fatal("no hub answers")
	return failed
}

func TestNextHubAnswers(t *testing.T) {
	for name, harm := range map[string]func(h *hub){
		"dead":    func(h *hub) { h.server.CloseClientConnections(); h.server.Close() },
		"failing": func(h *hub) { h.mu.Lock(); defer h.mu.Unlock(); h.status = http.StatusServiceUnavailable },
		"hanging": func(h *hub) { h.mu.Lock(); defer h.mu.Unlock(); h.hang = make(chan struct{}) },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newHub(t), newHub(t)
			l := newLink(t, 200*time.Millisecond, a, b)
			if n := until(t, l); n != 0 {
				t.Fatalf("%d calls got no answer with both hubs there", n)
			}
			harm(a)
			t.Cleanup(func() {
				if a.hang != nil {
					close(a.hang)
				}
			})
			if n := until(t, l); n != 1 {
				t.Errorf("%d calls got no answer, want the one that found out", n)
			}
			if n := until(t, l); n != 0 {
				t.Error("the link went back to the hub that does not answer")
			}
			// Hubs share one store: the session is good at the other one as well.
			if sessions, calls := b.count(); sessions != 0 || calls != 2 {
				t.Errorf("the second hub opened %d sessions and took %d calls", sessions, calls)
			}
		})
	}
}

func TestSessionIsOpenedAtWhicheverHubIsThere(t *testing.T) {
	a, b := newHub(t), newHub(t)
	a.server.Close()
	l := newLink(t, time.Second, a, b)
	if n := until(t, l); n != 1 {
		t.Errorf("%d calls got no answer, want 1", n)
	}
}

func TestStaleSessionIsOpenedAnewOnce(t *testing.T) {
	h := newHub(t)
	l := newLink(t, time.Second, h)
	h.stale = 1
	if err := call(t, l); err != nil {
		t.Fatal(err)
	}
	if sessions, _ := h.count(); sessions != 2 {
		t.Errorf("%d sessions, want 2", sessions)
	}
	h.stale = 2
	if err := call(t, l); !errors.Is(err, offpeak.ErrStaleSession) {
		t.Errorf("call = %v: a hub that refuses every session must not be asked for ever", err)
	}
}

func TestStampsGrow(t *testing.T) {
	l := newLink(t, time.Second, newHub(t))
	if who, n := l.Stamp(); who != "one" || n != 1 {
		t.Errorf("%s %d", who, n)
	}
	if _, n := l.Stamp(); n != 2 {
		t.Errorf("%d", n)
	}
}

func nap(ctx context.Context, _ int) error {
	select {
	case <-time.After(time.Second):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestOutbox: what is posted while a call is under way goes together and in
// order; an unanswered call is repeated; one report that the hub won't have
// does not hold up those beside it.
func TestOutbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := NewOutbox()
		ctx, cancel := context.WithCancel(t.Context())
		var batches [][]int64
		answers := make(chan error)
		send := func(_ context.Context, reports []wire.Report) ([]wire.ReportResult, error) {
			var seqs []int64
			for _, r := range reports {
				seqs = append(seqs, r.Seq)
			}
			batches = append(batches, seqs)
			if err := <-answers; err != nil {
				return nil, err
			}
			return make([]wire.ReportResult, len(reports)), nil
		}
		done := make(chan error)
		go func() { done <- o.Run(ctx, send, nap) }()
		var results []<-chan error
		for seq := range int64(4) {
			results = append(results, o.Post(t.Context(), wire.Report{Seq: seq}))
			synctest.Wait()
		}
		gone, forget := context.WithCancel(t.Context())
		given := o.Post(gone, wire.Report{Seq: 4})
		forget()
		answers <- offpeak.ErrUnavailable // for 0: comes again, with the others
		answers <- &offpeak.FieldError{Field: "x", Rule: "is right"}
		// Now each alone; 2 is the one at fault.
		answers <- nil
		answers <- nil
		answers <- offpeak.ErrStaleLease
		answers <- nil
		for i, r := range results {
			if err := <-r; (i == 2) != errors.Is(err, offpeak.ErrStaleLease) || i != 2 && err != nil {
				t.Errorf("report %d = %v", i, err)
			}
		}
		if err := <-given; !errors.Is(err, context.Canceled) {
			t.Errorf("a report nobody waits for = %v", err)
		}
		want := [][]int64{{0}, {0, 1, 2, 3}, {0}, {1}, {2}, {3}}
		if !slices.EqualFunc(batches, want, slices.Equal) {
			t.Errorf("sent %v, want %v", batches, want)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("run = %v", err)
		}
	})
}

// TestReportWhoseStoreWentAway: a hub that took the call but could not do one of its
// reports leaves that one's outcome unknown. It is said again, the others are not.
func TestReportWhoseStoreWentAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := NewOutbox()
		ctx, cancel := context.WithCancel(t.Context())
		var batches [][]int64
		away := map[int64]error{1: offpeak.ErrUnavailable, 2: offpeak.ErrStorage, 3: offpeak.ErrStaleLease}
		send := func(_ context.Context, reports []wire.Report) ([]wire.ReportResult, error) {
			out := make([]wire.ReportResult, len(reports))
			var seqs []int64
			for i, r := range reports {
				seqs = append(seqs, r.Seq)
				if err := away[r.Seq]; err != nil {
					out[i].Problem = wire.ProblemOf(err)
				}
			}
			batches = append(batches, seqs)
			delete(away, 1)
			if len(batches) == 2 {
				delete(away, 2)
			}
			return out, nil
		}
		var results []<-chan error
		for seq := range int64(4) {
			results = append(results, o.Post(t.Context(), wire.Report{Seq: seq}))
		}
		done := make(chan error)
		go func() { done <- o.Run(ctx, send, nap) }()
		for i, r := range results {
			if err := <-r; (i == 3) != errors.Is(err, offpeak.ErrStaleLease) || i != 3 && err != nil {
				t.Errorf("report %d = %v", i, err)
			}
		}
		if want := [][]int64{{0, 1, 2, 3}, {1, 2}, {2}}; !slices.EqualFunc(batches, want, slices.Equal) {
			t.Errorf("sent %v, want %v", batches, want)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run = %v", err)
		}
	})
}
