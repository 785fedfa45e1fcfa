package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"offpeak"
	"offpeak/wire"
)

// dial returns a Hub over the addresses that loses no time.
func dial(t *testing.T, urls ...string) *Hub {
	t.Helper()
	h, err := New(Config{Target: Target{Hubs: urls, Token: "secret"}, Pause: time.Millisecond, Idle: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// sever breaks the connection off without an answer, or in the middle of one.
func sever() { panic(http.ErrAbortHandler) }

func serve(t *testing.T, f http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return s
}

// A mutation whose answer was lost is sent again under the same operation id,
// so a hub that remembers it does the thing once.
func TestMutationKeepsItsOperationID(t *testing.T) {
	var mu sync.Mutex
	done, tries := map[string]offpeak.Job{}, 0
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		tries++
		op := r.Header.Get(wire.HeaderOperation)
		job, known := done[op]
		if !known {
			job = offpeak.Job{ID: offpeak.JobID(fmt.Sprintf("job_%d", len(done)+1))}
			done[op] = job
			sever()
		}
		_ = json.NewEncoder(w).Encode(job)
	})
	h, op := dial(t, s.URL), NewOp()
	job, err := Ask(t.Context(), h, Mutating, func(ctx context.Context, d *wire.Direct) (offpeak.Job, error) {
		return d.Submit(ctx, op, offpeak.Spec{})
	})
	if err != nil || job.ID != "job_1" {
		t.Fatalf("got %v, %v", job.ID, err)
	}
	if len(done) != 1 || tries != 2 || !op.Valid() {
		t.Errorf("%d operations in %d tries, op %q", len(done), tries, op)
	}
}

func TestCallReturnsAnswersAtOnce(t *testing.T) {
	tries := 0
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		tries++
		w.WriteHeader(http.StatusConflict)
		_, _ = w.Write([]byte(`{"code":"conflict","title":"Conflict"}`))
	})
	err := dial(t, s.URL).Call(t.Context(), Mutating, func(ctx context.Context, d *wire.Direct) error {
		return d.RemoveNode(ctx, "op", "node_1")
	})
	if !errors.Is(err, offpeak.ErrConflict) || tries != 1 {
		t.Errorf("got %v after %d tries", err, tries)
	}
}

func TestCallGivesUp(t *testing.T) {
	s := serve(t, func(http.ResponseWriter, *http.Request) { sever() })
	err := dial(t, s.URL).Call(t.Context(), Patience(20*time.Millisecond), func(ctx context.Context, d *wire.Direct) error {
		_, err := d.Whoami(ctx)
		return err
	})
	if !errors.Is(err, offpeak.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

func TestCallFailsOver(t *testing.T) {
	dead := httptest.NewServer(nil)
	dead.Close()
	calls := 0
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		calls++
		_, _ = w.Write([]byte(`{"hub_version":"2"}`))
	})
	h := dial(t, dead.URL, s.URL)
	for range 2 {
		who, err := Ask(t.Context(), h, Patience(time.Nanosecond), func(ctx context.Context, d *wire.Direct) (wire.Whoami, error) { return d.Whoami(ctx) })
		if err != nil || who.Version != "2" {
			t.Fatalf("got %v, %v", who, err)
		}
	}
	if h.current != 1 || calls != 2 {
		t.Errorf("address %d is in use after %d calls: it should stay with the one that answers", h.current, calls)
	}
}

// A hub that was started again knows another token: it is asked for, once for
// each time that the one there is is refused.
func TestTokenIsRenewed(t *testing.T) {
	var good atomic.Value
	good.Store("first")
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+good.Load().(string) {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"code":"unauthenticated","title":"Unauthenticated"}`))
			return
		}
		_, _ = w.Write([]byte(`{"hub_version":"2"}`))
	})
	found, asked := "", 0
	h, err := New(Config{Target: Target{Hubs: []string{s.URL}, Token: "first"}, Pause: time.Millisecond, Renew: func() string { asked++; return found }})
	if err != nil {
		t.Fatal(err)
	}
	who := func() error {
		return h.Call(t.Context(), Reading, func(ctx context.Context, d *wire.Direct) error {
			_, err := d.Whoami(ctx)
			return err
		})
	}
	for _, c := range []struct {
		good, found string
		asked       int
		want        error
	}{
		{"first", "", 0, nil},
		{"second", "", 1, offpeak.ErrUnauthenticated},
		{"second", "first", 2, offpeak.ErrUnauthenticated},
		{"second", "second", 3, nil},
		{"second", "", 3, nil},
		{"third", "fourth", 4, offpeak.ErrUnauthenticated},
	} {
		good.Store(c.good)
		found = c.found
		if err := who(); !errors.Is(err, c.want) || asked != c.asked {
			t.Errorf("the hub knows %s, %q is found: %v, asked %d times", c.good, c.found, err, asked)
		}
	}
}

// A hub with another key than the pinned one is another hub: no patience makes
// it the right one, so this is said at once.
func TestWrongKeyIsNoOutage(t *testing.T) {
	var tries atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a request reached the wrong hub") }))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			tries.Add(1)
		}
	}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	for name, pin := range map[string]string{"pinned": strings.Repeat("0", 64), "not pinned": ""} {
		t.Run(name, func(t *testing.T) {
			tries.Store(0)
			h, err := New(Config{Target: Target{Hubs: []string{s.URL}, Fingerprint: pin}, Pause: time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			for call, err := range map[string]error{
				"call":   h.Call(t.Context(), Following, func(ctx context.Context, d *wire.Direct) error { return second(d.Whoami(ctx)) }),
				"blob":   Blobs{h}.Commit(t.Context(), "tree"),
				"events": h.Events(t.Context(), "", "", nil, func(offpeak.Event) error { return nil }),
			} {
				if _, ok := errors.AsType[*wire.UntrustedError](err); !ok {
					t.Errorf("%s: got %v", call, err)
				}
			}
			if tries.Load() != 3 {
				t.Errorf("%d tries for three calls", tries.Load())
			}
		})
	}
}

func second[T any](_ T, err error) error { return err }

// What happens between a cut and the next connection is not lost, even when the
// cut came before the first event: the hub says at once where the stream begins.
func TestEventsResumeBeforeTheFirst(t *testing.T) {
	var asked []string
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Query().Get("after"))
		if len(asked) == 1 {
			fmt.Fprint(w, ": connected\nid: 6\n\n")
			w.(http.Flusher).Flush()
			sever()
		}
		fmt.Fprint(w, ": connected\nid: 6\n\nid: 7\ndata: {\"cursor\":7}\n\n")
	})
	enough := errors.New("enough")
	err := dial(t, s.URL).Events(t.Context(), "", "", nil, func(offpeak.Event) error { return enough })
	if want := []string{"", "6"}; !errors.Is(err, enough) || !slices.Equal(asked, want) {
		t.Errorf("asked after %q, want %q; %v", asked, want, err)
	}
}

// Events that were seen before a cut are asked for from after the last one.
func TestEventsResume(t *testing.T) {
	var asked []string
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Query().Get("after"))
		send := func(text string) { fmt.Fprint(w, text); w.(http.Flusher).Flush() }
		switch len(asked) {
		case 1:
			send(": connected\n\nid: 7\ndata: {\"cursor\":7,\"type\":\"job.queued\"}\n\nid: 8\ndata: {\"cursor\":8,\"ty")
			sever()
		case 2:
			send("id: 8\ndata: {\"cursor\":8,\"type\":\"lease.offered\"}\n\n")
			send("id: 20\nevent: resync\ndata: {}\n\n")
		default:
			send("id: 21\ndata: {\"cursor\":21,\"type\":\"job.succeeded\"}\n\n")
		}
	})
	var got []int64
	enough, opened := errors.New("enough"), 0
	err := dial(t, s.URL).Events(t.Context(), "", "job_1", func() { opened++ }, func(e offpeak.Event) error {
		got = append(got, e.Cursor)
		if e.Type == "job.succeeded" {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Fatal(err)
	}
	if want := []int64{7, 8, 21}; !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
	if want := []string{"", "7", "20"}; !slices.Equal(asked, want) || opened != 4 {
		t.Errorf("asked after %v, want %v; %d openings", asked, want, opened)
	}
}

func TestFollowLogLosesAndDoublesNothing(t *testing.T) {
	records := []wire.LogRecord{
		{Attempt: 1, N: 1, Stream: "stdout", Data: []byte("one\n")},
		{Attempt: 1, N: 2, Stream: "stderr", Data: []byte{0, 255, '\n'}},
		{Attempt: 2, N: 1, Stream: "stdout", Data: []byte("three\n")},
	}
	logs, states := 0, 0
	var asked []string
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/log") {
			states++
			state := offpeak.JobRunning
			if states > 1 {
				state = offpeak.JobSucceeded
			}
			_ = json.NewEncoder(w).Encode(offpeak.Job{State: state})
			return
		}
		after := r.URL.Query().Get("after")
		asked = append(asked, after)
		from := map[string]int{"": 0, "1.1": 1, "1.2": 2, "2.1": 3}[after]
		logs++
		for i, rec := range records[from:] {
			line, _ := json.Marshal(rec)
			if logs == 1 && i == 1 {
				_, _ = w.Write(line[:len(line)/2])
				w.(http.Flusher).Flush()
				sever()
			}
			_, _ = w.Write(append(line, '\n'))
			w.(http.Flusher).Flush()
			if logs == 2 {
				return // a hub that shuts down in good order
			}
		}
	})
	var got []wire.LogRecord
	err := dial(t, s.URL).FollowLog(t.Context(), "job_1", true, func(r wire.LogRecord) error { got = append(got, r); return nil })
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 || !bytes.Equal(got[1].Data, records[1].Data) || string(got[2].Data) != "three\n" {
		t.Errorf("got %v", got)
	}
	if want := []string{"", "1.1", "1.2", "2.1"}; !slices.Equal(asked, want) {
		t.Errorf("asked after %v, want %v", asked, want)
	}
}

func TestCopyLogGoesOnAtTheByte(t *testing.T) {
	const log = "a log that is cut in the middle"
	cuts := 0
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/logs") {
			_ = json.NewEncoder(w).Encode(offpeak.Job{Attempt: 3})
			return
		}
		q := r.URL.Query()
		if q.Get("attempt") != "3" {
			t.Errorf("asked for attempt %s", q.Get("attempt"))
		}
		var from int
		_, _ = fmt.Sscan(q.Get("offset"), &from)
		if cuts++; cuts < 3 {
			_, _ = w.Write([]byte(log[from : from+5]))
			w.(http.Flusher).Flush()
			sever()
		}
		_, _ = w.Write([]byte(log[from:]))
	})
	var out bytes.Buffer
	if err := dial(t, s.URL).CopyLog(t.Context(), &out, "job_1", 0, "stdout", 2, false); err != nil {
		t.Fatal(err)
	}
	if out.String() != log[2:] {
		t.Errorf("got %q", out.String())
	}
}

// A log may be silent for as long as its job likes; that is no trouble.
func TestSilentLogIsOpenedAnewWithoutANote(t *testing.T) {
	opened := make(chan struct{}, 16)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		opened <- struct{}{}
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	h, err := New(Config{Target: Target{Hubs: []string{s.URL}}, Pause: time.Millisecond, Quiet: time.Nanosecond, Idle: 10 * time.Millisecond,
		Note: func(line string) { t.Errorf("note: %s", line) }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- h.FollowLog(ctx, "job_1", true, func(wire.LogRecord) error { return nil })
	}()
	for range 3 {
		<-opened
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestBadAddresses(t *testing.T) {
	for _, base := range []string{"", "hub", "ftp://hub", "http://hub.example:7070", "https://me@hub.example", "https://hub.example/path", "https://hub.example?x=1", "http://127.0.0.1.example"} {
		if _, err := New(Config{Target: Target{Hubs: []string{base}}}); !errors.Is(err, offpeak.ErrInvalid) {
			t.Errorf("%q: %v", base, err)
		}
	}
	for _, base := range []string{"http://127.0.0.1:7070", "http://[::1]:7070", "http://localhost:1", "https://hub.example/"} {
		if _, err := New(Config{Target: Target{Hubs: []string{base}}}); err != nil {
			t.Errorf("%q: %v", base, err)
		}
	}
}

func TestFingerprint(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) }))
	defer s.Close()
	good := wire.Fingerprint(s.Certificate())
	colons := "SHA256:" + strings.ToUpper(good[:2]) + ":" + good[2:]
	for pin, want := range map[string]bool{good: true, colons: true, strings.Repeat("0", 64): false} {
		h, err := New(Config{Target: Target{Hubs: []string{s.URL}, Fingerprint: pin}, Pause: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		err = h.Call(t.Context(), Patience(time.Nanosecond), func(ctx context.Context, d *wire.Direct) error {
			_, err := d.Whoami(ctx)
			return err
		})
		if (err == nil) != want {
			t.Errorf("pin %s: %v", pin, err)
		}
	}
	if _, err := ParseFingerprint("abc"); !errors.Is(err, offpeak.ErrInvalid) {
		t.Errorf("short fingerprint: %v", err)
	}
}

func TestContextsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "contexts.yaml")
	c, err := LoadContexts(path)
	if err != nil || len(c.Contexts) != 0 {
		t.Fatalf("a missing file is %v, %v", c, err)
	}
	lab := Target{Name: "lab", Hubs: []string{"https://a", "https://b"}, Token: "t: #1", Fingerprint: "ff"}
	c.Put(Target{Name: "lab"})
	c.Put(lab)
	c.Current = "lab"
	if err := c.Save(path); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	again, err := LoadContexts(path)
	if err != nil || len(again.Contexts) != 1 {
		t.Fatalf("read back %v, %v", again, err)
	}
	if got, ok := again.Find("lab"); !ok || got.Token != lab.Token || !slices.Equal(got.Hubs, lab.Hubs) {
		t.Errorf("read back %v", got)
	}
	if !again.Remove("lab") || again.Remove("lab") || again.Current != "" {
		t.Errorf("after removing: %v", again)
	}
	if err := os.WriteFile(path, []byte("contexts: []\nnonsense: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadContexts(path); err == nil {
		t.Error("an unknown field was taken")
	}
}
