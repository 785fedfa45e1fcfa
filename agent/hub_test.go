package agent

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"offpeak"
	"offpeak/blob"
	"offpeak/wire"
)

// fault is what the network does to one call.
type fault int

const (
	delivered  fault = iota
	lostAsk          // the hub never sees it
	lostAnswer       // the hub does it, the agent never knows
)

// fakeHub speaks wire as a hub does, keeps its state in maps, and loses calls
// as told.
type fakeHub struct {
	t      testing.TB
	server *httptest.Server
	mux    *http.ServeMux

	mu       sync.Mutex
	faults   func(path string) fault
	key      ed25519.PublicKey
	node     offpeak.NodeID
	gen      int64
	incarn   offpeak.Incarnation
	token    string
	removed  bool
	conflict bool
	revision int64
	leases   map[offpeak.LeaseID]*fakeLease
	streams  map[chan wire.Sync]bool
	beats    []wire.Heartbeat
	lastSeq  int64
	waiting  map[offpeak.LeaseID]chan struct{}
	blobs    map[offpeak.Hash][]byte
	trees    map[offpeak.Hash]bool
	calls    map[string]int
	left     bool
	// surveys are the inventories that came, readings the words on devices.
	surveys  []offpeak.Inventory
	readings [][]offpeak.Reading
	// logged is called when log bytes came.
	logged func(stream string, data []byte)
	// crashes says that agents may lose what they have accepted.
	crashes  bool
	interval time.Duration
	timeout  time.Duration
}

type fakeLease struct {
	desired wire.Desired
	live    bool
	seen    map[string]wire.ReportResult
	kinds   []string
	end     wire.Report
	logs    map[string][]byte
	checks  []wire.NewCheckpoint
}

// ends returns a channel that is closed when a lease, offered yet or not, ends.
func (h *fakeHub) ends(id offpeak.LeaseID) <-chan struct{} {
	c := make(chan struct{})
	h.with(func() { h.waiting[id] = c })
	return c
}

func newFakeHub(t testing.TB) *fakeHub {
	h := &fakeHub{
		t: t, leases: map[offpeak.LeaseID]*fakeLease{}, waiting: map[offpeak.LeaseID]chan struct{}{}, streams: map[chan wire.Sync]bool{}, calls: map[string]int{},
		blobs: map[offpeak.Hash][]byte{}, trees: map[offpeak.Hash]bool{}, interval: 50 * time.Millisecond, timeout: 2 * time.Second,
	}
	mux := http.NewServeMux()
	h.route(mux, "POST /v1/node/enrol", h.enrol)
	h.route(mux, "POST /v1/node/challenge", func(*http.Request) (any, error) { return wire.Challenge{Challenge: "sign this"}, nil })
	h.route(mux, "POST /v1/node/session", h.session)
	h.route(mux, "POST /v1/node/heartbeat", h.auth(h.heartbeat))
	h.route(mux, "POST /v1/node/reports", h.auth(h.reports))
	h.route(mux, "PUT /v1/node/inventory", h.auth(h.survey))
	h.route(mux, "PUT /v1/node/readings", h.auth(h.read))
	h.route(mux, "GET /v1/node/earnings", h.auth(func(*http.Request) (any, error) { return wire.Earnings{Today: 1, Week: 2, Total: 3}, nil }))
	h.route(mux, "POST /v1/node/leave", h.auth(func(*http.Request) (any, error) { h.left = true; return nil, nil }))
	h.route(mux, "POST /v1/node/leases/{lease}/logs", h.auth(h.appendLog))
	h.route(mux, "POST /v1/node/leases/{lease}/checkpoints", h.auth(h.checkpoint))
	h.route(mux, "POST /v1/node/leases/{lease}/blobs/missing", h.auth(h.missing))
	h.route(mux, "PUT /v1/node/leases/{lease}/blobs/{hash}", h.auth(h.putBlob))
	h.route(mux, "POST /v1/node/leases/{lease}/trees", h.auth(h.tree))
	mux.HandleFunc("GET /v1/node/leases/{lease}/blobs/{hash}", h.getBlob)
	mux.HandleFunc("GET /v1/node/stream", h.stream)
	h.mux = mux
	h.server = h.another()
	return h
}

func (h *fakeHub) survey(r *http.Request) (any, error) {
	var in offpeak.Inventory
	err := json.NewDecoder(r.Body).Decode(&in)
	h.surveys = append(h.surveys, in)
	return nil, err
}

func (h *fakeHub) read(r *http.Request) (any, error) {
	var in wire.Readings
	err := json.NewDecoder(r.Body).Decode(&in)
	h.readings = append(h.readings, in.Readings)
	return nil, err
}

// another is one more address of the same hub: hubs share one store.
func (h *fakeHub) another() *httptest.Server {
	s := httptest.NewServer(h.mux)
	h.t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s
}

func (h *fakeHub) route(mux *http.ServeMux, pattern string, f func(*http.Request) (any, error)) {
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		path := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		h.calls[path]++
		what := delivered
		if h.faults != nil {
			what = h.faults(path)
		}
		if what == lostAsk {
			h.mu.Unlock()
			panic(http.ErrAbortHandler)
		}
		out, err := f(r)
		h.mu.Unlock()
		if what == lostAnswer {
			panic(http.ErrAbortHandler)
		}
		if err != nil {
			fail(w, err)
			return
		}
		_ = json.NewEncoder(w).Encode(out)
	})
}

func fail(w http.ResponseWriter, err error) {
	p := wire.ProblemOf(err)
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p)
}

func (h *fakeHub) auth(f func(*http.Request) (any, error)) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		switch {
		case h.removed:
			return nil, offpeak.ErrUnknownNode
		case r.Header.Get("Authorization") != "Bearer "+h.token || h.token == "":
			return nil, offpeak.ErrStaleSession
		}
		return f(r)
	}
}

func read[T any](r *http.Request) (v T, err error) {
	err = json.NewDecoder(r.Body).Decode(&v)
	return v, err
}

func (h *fakeHub) enrol(r *http.Request) (any, error) {
	in, err := read[wire.Enrol](r)
	if err != nil {
		return nil, err
	}
	if !ed25519.Verify(in.Key, wire.EnrolMessage("tok_join1"), in.Proof) {
		return nil, offpeak.ErrUnauthenticated
	}
	h.key, h.node = in.Key, "node_1"
	return wire.Enrolled{Node: h.node, Account: "acct_1", Name: in.Name, Hubs: []string{h.server.URL}, Generation: h.gen}, nil
}

func (h *fakeHub) session(r *http.Request) (any, error) {
	in, err := read[wire.OpenSession](r)
	switch {
	case err != nil:
		return nil, err
	case h.removed:
		return nil, offpeak.ErrUnknownNode
	case h.conflict:
		return nil, offpeak.ErrIdentityConflict
	case !ed25519.Verify(h.key, wire.SessionMessage(in.Challenge, in.Node, in.Incarnation, in.Generation), in.Signature):
		return nil, offpeak.ErrUnauthenticated
	case in.Generation == h.gen:
		h.gen++
	case in.Generation == h.gen-1 && (in.Previous == h.incarn || in.Incarnation == h.incarn):
	default:
		return nil, offpeak.ErrIdentityConflict
	}
	if h.incarn != in.Incarnation {
		h.lastSeq = 0
	}
	h.incarn = in.Incarnation
	h.token = fmt.Sprintf("session-%d-%s", h.gen, h.incarn)
	return wire.Session{Token: h.token, Generation: h.gen, Name: "desk", Refresh: offpeak.Duration(time.Minute)}, nil
}

func (h *fakeHub) syncLocked() wire.Sync {
	s := wire.Sync{Revision: h.revision, Interval: offpeak.Duration(h.interval), Leases: []wire.Desired{}}
	for _, l := range h.leases {
		if l.live {
			d := l.desired
			if d.State != offpeak.LeaseOffered {
				d.Work = nil
			}
			s.Leases = append(s.Leases, d)
		}
	}
	slices.SortFunc(s.Leases, func(a, b wire.Desired) int { return strings.Compare(string(a.Lease), string(b.Lease)) })
	return s
}

func (h *fakeHub) heartbeat(r *http.Request) (any, error) {
	in, err := read[wire.Heartbeat](r)
	if err != nil {
		return nil, err
	}
	h.beats = append(h.beats, in)
	if in.Incarnation != h.incarn {
		return nil, offpeak.ErrStaleSession
	}
	if in.Seq > h.lastSeq {
		h.lastSeq = in.Seq
		for id, l := range h.leases {
			held := slices.ContainsFunc(in.Held, func(x wire.HeldLease) bool { return x.Lease == id })
			if l.live && l.desired.State != offpeak.LeaseOffered && !held && acceptedBefore(l, in) {
				if !h.crashes {
					h.t.Errorf("heartbeat %d does not name the accepted lease %s", in.Seq, id)
				}
				h.endLocked(l, wire.Report{Reason: offpeak.EndNodeRestarted})
			}
		}
	}
	s := h.syncLocked()
	s.Timeout = offpeak.Duration(h.timeout)
	return s, nil
}

// acceptedBefore says that a heartbeat was composed after the lease's
// acceptance, so that it must name the lease.
func acceptedBefore(l *fakeLease, in wire.Heartbeat) bool {
	for key := range l.seen {
		incarnation, seq, _ := strings.Cut(key, "/")
		if n, _ := strconv.ParseInt(seq, 10, 64); incarnation != string(in.Incarnation) || n < in.Seq {
			return true
		}
	}
	return false
}

func (h *fakeHub) reports(r *http.Request) (any, error) {
	in, err := read[wire.Reports](r)
	if err != nil {
		return nil, err
	}
	var out wire.ReportResults
	for _, rep := range in.Reports {
		out.Results = append(out.Results, h.report(rep))
	}
	h.changedLocked()
	return out, nil
}

func (h *fakeHub) report(r wire.Report) wire.ReportResult {
	l := h.leases[r.Lease]
	key := fmt.Sprintf("%s/%d", r.Incarnation, r.Seq)
	if l != nil {
		if before, ok := l.seen[key]; ok {
			return before
		}
	}
	if l == nil || !l.live {
		return wire.ReportResult{Problem: wire.ProblemOf(&offpeak.StaleLeaseError{Lease: r.Lease})}
	}
	for _, p := range r.Logs {
		if err := l.append(p.Stream, p.Offset, p.Data); err != nil {
			return wire.ReportResult{Problem: wire.ProblemOf(err)}
		}
	}
	for stream, end := range r.LogEnd {
		if have := int64(len(l.logs[stream])); have < end {
			return wire.ReportResult{Problem: wire.ProblemOf(&offpeak.LogGapError{Want: have, Got: end})}
		}
	}
	l.kinds = append(l.kinds, r.Kind)
	switch r.Kind {
	case kindAccepted:
		l.desired.State = offpeak.LeasePreparing
	case kindRunning:
		l.desired.State = offpeak.LeaseRunning
	case kindFinishing:
		l.desired.State = offpeak.LeaseFinishing
	case kindEnded:
		h.endLocked(l, r)
	}
	res := wire.ReportResult{State: l.desired.State}
	l.seen[key] = res
	return res
}

func (h *fakeHub) endLocked(l *fakeLease, r wire.Report) {
	l.live, l.end = false, r
	if c := h.waiting[r.Lease]; c != nil {
		close(c)
		delete(h.waiting, r.Lease)
	}
	end, known := offpeak.EndOf(r.Reason)
	if !known {
		h.t.Errorf("reason %q stands in no table", r.Reason)
	}
	l.desired.State = end.Lease
}

func (l *fakeLease) append(stream string, offset int64, data []byte) error {
	have := int64(len(l.logs[stream]))
	if offset > have {
		return &offpeak.LogGapError{Want: have, Got: offset}
	}
	if cut := have - offset; cut < int64(len(data)) {
		l.logs[stream] = append(l.logs[stream], data[cut:]...)
	}
	return nil
}

func (h *fakeHub) leaseOf(r *http.Request) (*fakeLease, error) {
	l := h.leases[offpeak.LeaseID(r.PathValue("lease"))]
	if l == nil || !l.live {
		return nil, &offpeak.StaleLeaseError{Lease: offpeak.LeaseID(r.PathValue("lease"))}
	}
	return l, nil
}

func (h *fakeHub) appendLog(r *http.Request) (any, error) {
	l, err := h.leaseOf(r)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	offset, _ := strconv.ParseInt(r.URL.Query().Get("offset"), 10, 64)
	stream := r.URL.Query().Get("stream")
	if err := l.append(stream, offset, data); err != nil {
		return nil, err
	}
	if h.logged != nil {
		h.logged(stream, data)
	}
	return wire.LogEnd{End: int64(len(l.logs[stream]))}, nil
}

func (h *fakeHub) checkpoint(r *http.Request) (any, error) {
	l, err := h.leaseOf(r)
	if err != nil {
		return nil, err
	}
	in, err := read[wire.NewCheckpoint](r)
	if err != nil {
		return nil, err
	}
	if !h.trees[in.Tree] {
		return nil, offpeak.ErrBlobMissing
	}
	l.checks = append(l.checks, in)
	return offpeak.Checkpoint{ID: int64(len(l.checks)), Name: in.Name, Tree: in.Tree}, nil
}

func (h *fakeHub) missing(r *http.Request) (any, error) {
	in, err := read[wire.Hashes](r)
	if err != nil {
		return nil, err
	}
	return wire.Hashes{Hashes: slices.DeleteFunc(in.Hashes, func(x offpeak.Hash) bool { _, ok := h.blobs[x]; return ok })}, nil
}

func (h *fakeHub) putBlob(r *http.Request) (any, error) {
	data, err := io.ReadAll(r.Body)
	hash := offpeak.Hash(r.PathValue("hash"))
	if err == nil && blob.Sum(data) != hash {
		err = offpeak.ErrHashMismatch
	}
	if err == nil {
		h.blobs[hash] = data
	}
	return nil, err
}

func (h *fakeHub) getBlob(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	h.calls["download"]++
	data, ok := h.blobs[offpeak.Hash(r.PathValue("hash"))]
	h.mu.Unlock()
	if !ok {
		fail(w, offpeak.ErrNotFound)
		return
	}
	_, _ = w.Write(data)
}

func (h *fakeHub) tree(r *http.Request) (any, error) {
	in, err := read[wire.Tree](r)
	if err == nil {
		h.trees[in.Hash] = true
	}
	return nil, err
}

func (h *fakeHub) stream(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	if _, err := h.auth(func(*http.Request) (any, error) { return nil, nil })(r); err != nil {
		h.mu.Unlock()
		fail(w, err)
		return
	}
	ch := make(chan wire.Sync, 64)
	h.streams[ch] = true
	ch <- h.syncLocked()
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		delete(h.streams, ch)
		h.mu.Unlock()
	}()
	for {
		select {
		case s := <-ch:
			_ = json.NewEncoder(w).Encode(s)
			w.(http.Flusher).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

// changedLocked raises the revision and pushes.
func (h *fakeHub) changedLocked() {
	h.revision++
	s := h.syncLocked()
	for ch := range h.streams {
		select {
		case ch <- s:
		default:
		}
	}
}

func (h *fakeHub) with(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

// store keeps a tree of files at the hub, as a client would upload it.
func (h *fakeHub) store(files map[string]string) offpeak.Hash {
	h.t.Helper()
	dir := h.t.TempDir()
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			h.t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		h.t.Fatal(err)
	}
	defer root.Close()
	packed, err := blob.Pack(h.t.Context(), root, []string{"*"}, blob.PackOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	tree, err := blob.Upload(h.t.Context(), ownBlobs{h}, packed, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	return tree
}

// ownBlobs are the hub's blobs without a network.
type ownBlobs struct{ h *fakeHub }

func (b ownBlobs) Missing(_ context.Context, hashes []offpeak.Hash) ([]offpeak.Hash, error) {
	return hashes, nil
}

func (b ownBlobs) Upload(_ context.Context, hash offpeak.Hash, data []byte) error {
	b.h.with(func() { b.h.blobs[hash] = slices.Clone(data) })
	return nil
}

func (b ownBlobs) Commit(_ context.Context, tree offpeak.Hash) error {
	b.h.with(func() { b.h.trees[tree] = true })
	return nil
}

func (b ownBlobs) Download(_ context.Context, hash offpeak.Hash) (data []byte, err error) {
	b.h.with(func() { data = b.h.blobs[hash] })
	return data, nil
}

// files lists a tree that is stored.
func (h *fakeHub) files(tree offpeak.Hash) (out []string) {
	h.t.Helper()
	if tree == "" {
		return nil
	}
	m, err := blob.Fetch(h.t.Context(), ownBlobs{h}, tree)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, e := range m.Entries {
		out = append(out, e.Path)
	}
	return out
}

// offer places a lease on the node.
func (h *fakeHub) offer(id offpeak.LeaseID, work wire.Work) {
	h.with(func() {
		h.leases[id] = &fakeLease{
			live: true, seen: map[string]wire.ReportResult{}, logs: map[string][]byte{},
			desired: wire.Desired{Lease: id, Job: "job_" + offpeak.JobID(id), Attempt: 1, State: offpeak.LeaseOffered, Work: &work},
		}
		h.changedLocked()
	})
}

// stop asks for a lease's end; one that nobody has accepted ends at once.
func (h *fakeHub) stop(id offpeak.LeaseID, reason offpeak.EndReason) {
	h.with(func() {
		l := h.leases[id]
		if l.desired.Stop = reason; l.live && l.desired.State == offpeak.LeaseOffered {
			h.endLocked(l, wire.Report{Reason: reason})
		}
		h.changedLocked()
	})
}

// ended waits for a lease's end and returns it.
func (h *fakeHub) ended(id offpeak.LeaseID) fakeLease {
	h.t.Helper()
	var out fakeLease
	h.wait("the end of "+string(id), func() bool { out = *h.leases[id]; return !out.live })
	return out
}

// wait waits until a condition on the hub's state holds.
func (h *fakeHub) wait(what string, ok func() bool) {
	h.t.Helper()
	eventually(h.t, what, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return ok()
	})
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

var errNone = errors.New("no such supervisor")
