package api

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"offpeak"
	"offpeak/store"
	"offpeak/wire"
)

// next reads Syncs from a stream until one holds what the test waits for.
func nextSync(t *testing.T, r *bufio.Reader, until func(wire.Sync) bool) wire.Sync {
	t.Helper()
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			t.Fatalf("read stream: %v", err)
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var s wire.Sync
		if err := json.Unmarshal(line, &s); err != nil {
			t.Fatalf("read stream: %q: %v", line, err)
		}
		if until(s) {
			return s
		}
	}
}

// The way of one job over the wire: submitted, pushed to a node, run there with
// its log followed, ended, seen by everyone who waited.
func TestTheWayOfAJob(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{})
	ctx := g.ctx()
	_, m := g.account("acme")
	submitter, viewer := m[offpeak.RoleSubmitter], m[offpeak.RoleViewer]
	node := g.enrol(m[offpeak.RoleOwner], "n1")
	node.beat(t, ctx)

	events, err := viewer.Events(ctx, "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	seen := newEventReader(events)
	seen.connected(t)

	body, err := node.Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	stream := bufio.NewReader(body)
	nextSync(t, stream, func(s wire.Sync) bool { return len(s.Leases) == 0 })

	job, err := submitter.Submit(ctx, g.op(), spec("a"))
	if err != nil {
		t.Fatal(err)
	}
	pushed := nextSync(t, stream, func(s wire.Sync) bool { return len(s.Leases) == 1 })
	lease := pushed.Leases[0]
	if lease.Job != job.ID || lease.Attempt != 1 || lease.Work == nil || lease.Work.Task.Command[1] != "a" {
		t.Fatalf("pushed %+v", lease)
	}
	if w, err := node.Work(ctx, lease.Lease); err != nil || w.Work == nil || w.Job != job.ID {
		t.Errorf("work: %+v, %v", w, err)
	}

	node.report(t, ctx, wire.Report{Lease: lease.Lease, Attempt: 1, Kind: "accepted"})
	node.report(t, ctx, wire.Report{Lease: lease.Lease, Attempt: 1, Kind: "running", Started: true})

	// One follower of bytes and one of records, both there before the bytes are.
	follow, err := viewer.Logs(ctx, job.ID, 0, "stdout", 0, true)
	if err != nil {
		t.Fatal(err)
	}
	defer follow.Close()
	records, err := viewer.FollowLog(ctx, job.ID, "", true)
	if err != nil {
		t.Fatal(err)
	}
	defer records.Close()
	if end, err := node.AppendLog(ctx, lease.Lease, 1, "stdout", 0, []byte("hello ")); err != nil || end != 6 {
		t.Fatalf("append: %d, %v", end, err)
	}
	first := make([]byte, 6)
	if _, err := io.ReadFull(follow, first); err != nil || string(first) != "hello " {
		t.Fatalf("followed %q, %v before the job had ended", first, err)
	}
	if end, err := node.AppendLog(ctx, lease.Lease, 1, "stdout", 3, []byte("lo world\n")); err != nil || end != 12 {
		t.Errorf("an append that overlaps: %d, %v, want 12", end, err)
	}
	gap, ok := errors.AsType[*offpeak.LogGapError](second(node.AppendLog(ctx, lease.Lease, 1, "stdout", 99, []byte("x"))))
	if !ok || gap.Want != 12 {
		t.Errorf("a gap: %+v", gap)
	}

	// What the node stores under the lease is the account's; what it may read
	// under it is the job's input and checkpoints, and this is neither.
	made := []byte("weights")
	sum := sha256.Sum256(made)
	hash := offpeak.Hash(hex.EncodeToString(sum[:]))
	under := wire.Blobs{Direct: node.Direct, Lease: lease.Lease}
	if err := under.Upload(ctx, hash, made); err != nil {
		t.Errorf("upload under the lease: %v", err)
	}
	if got, err := (wire.Blobs{Direct: viewer}).Download(ctx, hash); err != nil || !bytes.Equal(got, made) {
		t.Errorf("the account reads what its node stored: %q, %v", got, err)
	}
	if _, err := under.Download(ctx, hash); !errors.Is(err, offpeak.ErrNotFound) {
		t.Errorf("the node reads what is no part of its job: %v", err)
	}

	waited := make(chan offpeak.Job, 1)
	go func() {
		j, err := viewer.WaitJob(ctx, job.ID, 15*time.Second)
		if err != nil {
			t.Errorf("wait: %v", err)
		}
		waited <- j
	}()
	code := 0
	node.report(t, ctx, wire.Report{Lease: lease.Lease, Attempt: 1, Kind: "ended", Started: true, Reason: offpeak.EndCompleted, ExitCode: &code, LogEnd: map[string]int64{"stdout": 12}})
	if j := <-waited; j.State != offpeak.JobSucceeded {
		t.Errorf("waited for %+v", j)
	}
	rest, err := io.ReadAll(follow)
	if err != nil || string(rest) != "world\n" {
		t.Errorf("the rest of the log: %q, %v", rest, err)
	}
	var bytesSeen []byte
	for dec := json.NewDecoder(records); ; {
		var r wire.LogRecord
		if err := dec.Decode(&r); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		bytesSeen = append(bytesSeen, r.Data...)
	}
	if string(bytesSeen) != "hello world\n" {
		t.Errorf("the records hold %q", bytesSeen)
	}
	// The node knows what it reported itself, so its stream is silent about it.
	if s := node.beat(t, ctx); len(s.Leases) != 0 {
		t.Errorf("after the end the node should hold %+v", s.Leases)
	}

	resp, err := viewer.Raw(ctx, http.MethodGet, "/jobs/"+string(job.ID)+"/logs", "", nil, "")
	if err != nil {
		t.Fatal(err)
	}
	whole, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if string(whole) != "hello world\n" || !strings.HasPrefix(resp.Header.Get("Content-Disposition"), "attachment") || resp.Header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("the stored log: %q with %v", whole, resp.Header)
	}
	if l, err := viewer.Attempts(ctx, job.ID); err != nil || len(l.Items) != 1 || l.Items[0].State != offpeak.LeaseSucceeded {
		t.Errorf("attempts: %+v, %v", l, err)
	}
	seen.until(t, func(e offpeak.Event) bool { return e.Type == "job.succeeded" && e.Job == job.ID })
}

func second[T any](_ T, err error) error { return err }

// eventReader reads a stream of events.
type eventReader struct {
	*bufio.Reader
	lastID string
}

func newEventReader(r io.Reader) *eventReader { return &eventReader{Reader: bufio.NewReader(r)} }

// connected waits until the hub says that the stream stands.
func (r *eventReader) connected(t *testing.T) {
	t.Helper()
	if line, err := r.ReadString('\n'); err != nil || !strings.HasPrefix(line, ":") {
		t.Fatalf("first line %q, %v", line, err)
	}
}

// until reads events until one is it, and returns it.
func (r *eventReader) until(t *testing.T, it func(offpeak.Event) bool) offpeak.Event {
	t.Helper()
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("read events: %v", err)
		}
		if id, ok := strings.CutPrefix(line, "id: "); ok {
			r.lastID = strings.TrimSpace(id)
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var e offpeak.Event
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatalf("event %q: %v", data, err)
		}
		if it(e) {
			return e
		}
	}
}

// A reader that comes back with the last id it saw misses nothing and gets
// nothing twice.
func TestEventsGoOn(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{})
	ctx := g.ctx()
	var jobs []offpeak.JobID
	for range 5 {
		j, err := g.admin.Submit(ctx, g.op(), spec())
		if err != nil {
			t.Fatal(err)
		}
		jobs = append(jobs, j.ID)
	}
	queued := func(e offpeak.Event) bool { return e.Type == "job.queued" }
	var got []offpeak.JobID
	last := "0"
	for len(got) < len(jobs) {
		// Each connection reads two and breaks off.
		body, err := g.admin.Events(ctx, last, "")
		if err != nil {
			t.Fatal(err)
		}
		r := newEventReader(body)
		for range min(2, len(jobs)-len(got)) {
			got = append(got, r.until(t, queued).Job)
		}
		last = r.lastID
		body.Close()
	}
	if !slices.Equal(got, jobs) {
		t.Errorf("queued %v, seen %v", jobs, got)
	}

	// The header that browsers send does the same.
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.url+"/v1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+g.admin.Token)
	req.Header.Set("Last-Event-ID", last)
	resp, err := g.admin.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	newest, err := g.admin.Submit(ctx, g.op(), spec())
	if err != nil {
		t.Fatal(err)
	}
	if e := newEventReader(resp.Body).until(t, queued); e.Job != newest.ID {
		t.Errorf("after Last-Event-ID: %s, want %s", e.Job, newest.ID)
	}

	// An id that no event had yet is of another store: it is told so at once.
	body, err := g.admin.Events(ctx, "99999999999", "")
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	ahead := newEventReader(body)
	ahead.until(t, func(e offpeak.Event) bool { return e.Type == "" }) // a resync has no data
	after, err := g.admin.Submit(ctx, g.op(), spec())
	if err != nil {
		t.Fatal(err)
	}
	if e := ahead.until(t, queued); e.Job != after.ID {
		t.Errorf("after a resync: %s, want %s", e.Job, after.ID)
	}

	// One job's events only.
	body, err = g.admin.Events(ctx, "0", jobs[3])
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if e := newEventReader(body).until(t, func(offpeak.Event) bool { return true }); e.Job != jobs[3] {
		t.Errorf("an event of %s among those of %s", e.Job, jobs[3])
	}
}

// A stream of what is new says where it begins before anything is new, so that a
// reader who is cut off before the first event misses nothing.
func TestEventsSayWhereTheyBegin(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{})
	ctx := g.ctx()
	if _, err := g.admin.Submit(ctx, g.op(), spec()); err != nil {
		t.Fatal(err)
	}
	body, err := g.admin.Events(ctx, "", "")
	if err != nil {
		t.Fatal(err)
	}
	r := newEventReader(body)
	r.connected(t)
	line, err := r.ReadString('\n')
	id, ok := strings.CutPrefix(line, "id: ")
	if blank, _ := r.ReadString('\n'); err != nil || !ok || blank != "\n" {
		t.Fatalf("after the greeting: %q, %q, %v", line, blank, err)
	}
	body.Close()
	between, err := g.admin.Submit(ctx, g.op(), spec())
	if err != nil {
		t.Fatal(err)
	}
	if body, err = g.admin.Events(ctx, strings.TrimSpace(id), ""); err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	// The hub has news of its own as it starts.
	if e := newEventReader(body).until(t, func(e offpeak.Event) bool { return e.Job != "" }); e.Job != between.ID {
		t.Errorf("the first job's event after the cut is %s of %s, want one of %s", e.Type, e.Job, between.ID)
	}
}

// A reader whose place was lost to retention is told so, and goes on.
func TestEventsResync(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{})
	ctx := g.ctx()
	for range 3 {
		if _, err := g.admin.Submit(ctx, g.op(), spec()); err != nil {
			t.Fatal(err)
		}
	}
	for {
		n, err := g.hub.Store().Prune(ctx, store.Retention{Events: time.Nanosecond}, 1000)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			break
		}
	}
	body, err := g.admin.Events(ctx, "1", "")
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	r := newEventReader(body)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if line == "event: resync\n" {
			break
		}
	}
	j, err := g.admin.Submit(ctx, g.op(), spec())
	if err != nil {
		t.Fatal(err)
	}
	r.until(t, func(e offpeak.Event) bool { return e.Type == "job.queued" && e.Job == j.ID })
}

// A list walked page by page is the whole list, once.
func TestPages(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{})
	ctx := g.ctx()
	want := map[offpeak.JobID]bool{}
	for range 7 {
		j, err := g.admin.Submit(ctx, g.op(), spec())
		if err != nil {
			t.Fatal(err)
		}
		want[j.ID] = true
	}
	got := map[offpeak.JobID]bool{}
	pages := 0
	for cursor := ""; ; pages++ {
		l, err := g.admin.Jobs(ctx, map[string][]string{"limit": {"3"}, "cursor": {cursor}})
		if err != nil || len(l.Items) > 3 {
			t.Fatal(len(l.Items), err)
		}
		for _, j := range l.Items {
			if got[j.ID] {
				t.Errorf("%s came twice", j.ID)
			}
			got[j.ID] = true
		}
		if cursor = l.Next; cursor == "" {
			break
		}
	}
	if len(got) != len(want) || pages != 2 {
		t.Errorf("%d of %d jobs in %d pages", len(got), len(want), pages+1)
	}
	if _, err := g.admin.Jobs(ctx, map[string][]string{"cursor": {"made up"}}); !errors.Is(err, offpeak.ErrInvalid) {
		t.Errorf("a cursor that is none: %v", err)
	}
}

func TestBlobs(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{})
	ctx := g.ctx()
	_, ours := g.account("acme")
	_, theirs := g.account("rival")
	data := bytes.Repeat([]byte("offpeak"), 1<<17)
	sum := sha256.Sum256(data)
	hash := offpeak.Hash(hex.EncodeToString(sum[:]))
	mine := wire.Blobs{Direct: ours[offpeak.RoleSubmitter]}
	if missing, err := mine.Missing(ctx, []offpeak.Hash{hash}); err != nil || len(missing) != 1 {
		t.Fatalf("missing: %v, %v", missing, err)
	}
	for range 2 {
		if err := mine.Upload(ctx, hash, data); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := mine.Download(ctx, hash); err != nil || !bytes.Equal(got, data) {
		t.Errorf("download: %d bytes, %v", len(got), err)
	}
	if missing, err := mine.Missing(ctx, []offpeak.Hash{hash}); err != nil || len(missing) != 0 {
		t.Errorf("missing: %v, %v", missing, err)
	}
	spy := wire.Blobs{Direct: theirs[offpeak.RoleSubmitter]}
	if _, err := spy.Download(ctx, hash); !errors.Is(err, offpeak.ErrNotFound) {
		t.Errorf("another account reads it: %v", err)
	}
	if missing, err := spy.Missing(ctx, []offpeak.Hash{hash}); err != nil || len(missing) != 1 {
		t.Errorf("another account learns that it is there: %v, %v", missing, err)
	}
	if err := mine.Commit(ctx, hash); !errors.Is(err, offpeak.ErrInvalid) {
		t.Errorf("bytes that are no manifest were taken for a tree: %v", err)
	}
}

// A node acts on itself and its own leases only, and an ended session ends its streams.
func TestNodesAreApart(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{Ping: 20 * time.Millisecond})
	ctx := g.ctx()
	one := g.enrol(g.admin, "one")
	one.beat(t, ctx)
	body, err := one.Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	stream := bufio.NewReader(body)
	if _, err := g.admin.Submit(ctx, g.op(), spec()); err != nil {
		t.Fatal(err)
	}
	lease := nextSync(t, stream, func(s wire.Sync) bool { return len(s.Leases) == 1 }).Leases[0]
	two := g.enrol(g.admin, "two")
	for name, err := range map[string]error{
		"work":   second(two.Work(ctx, lease.Lease)),
		"log":    second(two.AppendLog(ctx, lease.Lease, 1, "stdout", 0, []byte("x"))),
		"blobs":  second(wire.Blobs{Direct: two.Direct, Lease: lease.Lease}.Missing(ctx, nil)),
		"upload": wire.Blobs{Direct: two.Direct, Lease: lease.Lease}.Upload(ctx, offpeak.Hash(strings.Repeat("a", 64)), nil),
		"read":   second(wire.Blobs{Direct: two.Direct, Lease: lease.Lease}.Download(ctx, offpeak.Hash(strings.Repeat("a", 64)))),
	} {
		if !errors.Is(err, offpeak.ErrStaleLease) && !errors.Is(err, offpeak.ErrNotFound) {
			t.Errorf("%s of another node's lease: %v", name, err)
		}
	}
	results, err := two.Report(ctx, []wire.Report{{Lease: lease.Lease, Attempt: 1, Incarnation: two.incarnation, Seq: 1, Kind: "accepted"}})
	if err != nil || results[0].Problem == nil || !errors.Is(results[0].Problem, offpeak.ErrStaleLease) {
		t.Errorf("a report on another node's lease: %+v, %v", results, err)
	}
	// An idle stream says that it is alive.
	for {
		line, err := stream.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if line == "\n" {
			break
		}
	}
	if err := one.Leave(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, stream); errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the stream of a node that left goes on: %v", err)
	}
	if _, err := one.Heartbeat(ctx, wire.Heartbeat{Incarnation: one.incarnation, Seq: 99, Availability: offpeak.NodeAvailable}); !errors.Is(err, offpeak.ErrUnauthenticated) && !errors.Is(err, offpeak.ErrUnknownNode) {
		t.Errorf("a heartbeat of a node that left: %v", err)
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{})
	ctx := g.ctx()
	if _, err := g.admin.Submit(ctx, g.op(), spec()); err != nil {
		t.Fatal(err)
	}
	resp, err := g.admin.Raw(ctx, http.MethodGet, "/metrics", "", nil, "")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	for _, line := range []string{
		`offpeak_http_requests_total{code="201",route="POST /v1/jobs"} 1`,
		`offpeak_jobs_submitted_total 1`,
		`offpeak_http_request_seconds_count{route="POST /v1/jobs"} 1`,
	} {
		if !bytes.Contains(text, []byte(line+"\n")) {
			t.Errorf("metrics lack %s", line)
		}
	}
}

// Streams end when the hub goes; a followed log breaks off, so that its reader
// does not take that for the end of the log.
func TestStreamsEndWithTheHub(t *testing.T) {
	t.Parallel()
	closing, closeStreams := context.WithCancel(context.Background())
	defer closeStreams()
	g := newGrid(t, Options{Streams: closing})
	ctx := g.ctx()
	node := g.enrol(g.admin, "n1")
	job, err := g.admin.Submit(ctx, g.op(), spec())
	if err != nil {
		t.Fatal(err)
	}
	events, err := g.admin.Events(ctx, "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	stream, err := node.Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	log, err := g.admin.FollowLog(ctx, job.ID, "", true)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	closeStreams()
	if _, err := io.Copy(io.Discard, events); err != nil {
		t.Errorf("events: %v", err)
	}
	if _, err := io.Copy(io.Discard, stream); err != nil {
		t.Errorf("stream: %v", err)
	}
	if _, err := io.Copy(io.Discard, log); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a log that is not at its end: %v, want it to break off", err)
	}
}
