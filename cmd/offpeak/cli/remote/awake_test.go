package remote

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"offpeak"
	"offpeak/wire"
)

// asleep is the address of a hub that takes connections and never answers.
func asleep(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return "http://" + l.Addr().String()
}

// soon is long before a call is given up for its own silence.
const soon = 30 * time.Second

// A mutation goes from a hub that is frozen to the next one, under the same
// operation id, and the next call begins there.
func TestCallLeavesAHubThatIsAsleep(t *testing.T) {
	t.Parallel()
	var ops []string
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/health" {
			ops = append(ops, r.Header.Get(wire.HeaderOperation))
		}
		_ = json.NewEncoder(w).Encode(offpeak.Job{ID: "job_1"})
	})
	h, op := dial(t, asleep(t), s.URL), NewOp()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	for range 2 {
		job, err := Ask(ctx, h, Mutating, func(ctx context.Context, d *wire.Direct) (offpeak.Job, error) {
			return d.Submit(ctx, op, offpeak.Spec{})
		})
		if err != nil || job.ID != "job_1" {
			t.Fatalf("got %v, %v", job.ID, err)
		}
	}
	if len(ops) != 2 || ops[0] != string(op) || h.current != 1 {
		t.Errorf("operations %v, address %d is in use", ops, h.current)
	}
}

// A hub that is awake may take its time over a call.
func TestCallWaitsForAHubThatIsAwake(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{})
	var calls atomic.Int64
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/health" {
			close(asked) // once: the call ends with it
			return
		}
		calls.Add(1)
		<-asked
		_, _ = w.Write([]byte(`{}`))
	})
	if _, err := Ask(t.Context(), dial(t, s.URL, asleep(t)), Reading, func(ctx context.Context, d *wire.Direct) (wire.Whoami, error) { return d.Whoami(ctx) }); err != nil || calls.Load() != 1 {
		t.Errorf("%v after %d calls", err, calls.Load())
	}
}

// A log goes on at the next hub, where it was, when its hub freezes.
func TestFollowLeavesAHubThatFellAsleep(t *testing.T) {
	t.Parallel()
	record := func(w http.ResponseWriter, n int64) {
		_ = json.NewEncoder(w).Encode(wire.LogRecord{Attempt: 1, N: n, Stream: "stdout", Data: []byte{'0' + byte(n)}})
		w.(http.Flusher).Flush()
	}
	var frozen atomic.Bool
	first := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/log") {
			record(w, 1)
			frozen.Store(true)
		}
		if frozen.Load() {
			<-r.Context().Done()
		}
	})
	next := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/log") {
			_ = json.NewEncoder(w).Encode(offpeak.Job{State: offpeak.JobSucceeded})
			return
		}
		if after := r.URL.Query().Get("after"); after == "1.1" {
			record(w, 2)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	var got string
	err := dial(t, first.URL, next.URL).FollowLog(ctx, "job_1", true, func(rec wire.LogRecord) error {
		got += string(rec.Data)
		return nil
	})
	if err != nil || got != "12" {
		t.Errorf("got %q, %v", got, err)
	}
}

// Where all hubs are asleep, that is what is said.
func TestAllAsleep(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	_, err := Ask(ctx, dial(t, asleep(t), asleep(t)), Patience(1), func(ctx context.Context, d *wire.Direct) (wire.Whoami, error) { return d.Whoami(ctx) })
	if a := new(AsleepError); !errors.As(err, &a) || !errors.Is(err, offpeak.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}
