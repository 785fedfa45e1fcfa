package hub_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"offpeak"
	"offpeak/hub"
	"offpeak/placement"
	"offpeak/wire"
)

func TestLogsAreFollowedExactlyToTheEnd(t *testing.T) {
	bubble(t, hub.Config{Fence: -1}, func(t *testing.T, g *grid) {
		a := g.join("one")
		spec := small()
		spec.Retry = &offpeak.RetryPolicy{User: 1}
		id := g.submit(spec)
		type result struct {
			bytes   []byte
			records []wire.LogRecord
			err     error
		}
		stream, all := make(chan result, 1), make(chan result, 1)
		go func() {
			var r result
			for b, err := range g.hub.Data().ReadLog(t.Context(), g.account, id, 0, "stdout", 0, true) {
				r.bytes, r.err = append(r.bytes, b...), err
			}
			stream <- r
		}()
		go func() {
			var r result
			for rec, err := range g.hub.Data().FollowLog(t.Context(), g.account, id, "", true) {
				if r.err = err; err == nil {
					r.records = append(r.records, rec)
				}
			}
			all <- r
		}()
		d := a.offered()
		a.accept(d)
		a.run(d)
		var want []byte
		put := func(stream string, offset int64, data []byte) {
			t.Helper()
			end, err := g.hub.AppendLog(t.Context(), a.id, d.Lease, d.Attempt, stream, offset, data)
			must(t, err)
			if end != offset+int64(len(data)) {
				t.Fatalf("the log ends at %d", end)
			}
		}
		put("stdout", 0, []byte("first\n"))
		put("stderr", 0, []byte("oops\n"))
		want = append(want, "first\n"...)
		long := bytes.Repeat([]byte("0123456789abcdef"), 100<<10/16) // becomes a blob
		put("stdout", int64(len(want)), long)
		want = append(want, long...)
		put("stdout", int64(len(want)-8), append([]byte("89abcdef"), "more\n"...)) // a retry overlaps
		want = append(want, "more\n"...)
		_, err := g.hub.AppendLog(t.Context(), a.id, d.Lease, d.Attempt, "stdout", int64(len(want))+1, []byte("x"))
		var gap *offpeak.LogGapError
		if !errors.As(err, &gap) || gap.Want != int64(len(want)) {
			t.Fatalf("a gap was answered with %v", err)
		}
		_, err = a.report(d, "ended", func(r *wire.Report) {
			code := 3
			r.Reason, r.ExitCode, r.Started = offpeak.EndExitNonzero, &code, true
			r.Logs = []wire.LogPiece{{Stream: "stdout", Offset: int64(len(want)), Data: []byte("last\n")}}
			r.LogEnd = map[string]int64{"stdout": int64(len(want)) + 5, "stderr": 5}
		})
		must(t, err)
		want = append(want, "last\n"...)
		if r := <-stream; r.err != nil || !bytes.Equal(r.bytes, want) {
			t.Fatalf("followed %d bytes, want %d (%v)", len(r.bytes), len(want), r.err)
		}
		// The job goes on with another attempt, and so does who follows the job.
		time.Sleep(3 * time.Second)
		d = a.offered()
		a.accept(d)
		a.run(d)
		put("stdout", 0, []byte("again\n"))
		a.end(d, offpeak.EndCompleted)
		r := <-all
		if r.err != nil {
			t.Fatal(r.err)
		}
		var got []byte
		for _, rec := range r.records {
			if rec.Attempt == 1 && rec.Stream == "stdout" {
				got = append(got, rec.Data...)
			}
		}
		if last := r.records[len(r.records)-1]; !bytes.Equal(got, want) || last.Attempt != 2 || string(last.Data) != "again\n" {
			t.Fatalf("followed %d bytes of attempt 1, want %d; the last record is %+v", len(got), len(want), last)
		}
		// Going on after a record yields what follows it.
		first := r.records[0]
		n := 0
		for _, err := range g.hub.Data().FollowLog(t.Context(), g.account, id, fmt.Sprintf("%d.%d", first.Attempt, first.N), false) {
			must(t, err)
			n++
		}
		if n != len(r.records)-1 {
			t.Fatalf("%d records after the first, want %d", n, len(r.records)-1)
		}
		var part []byte
		for b, err := range g.hub.Data().ReadLog(t.Context(), g.account, id, 1, "stdout", int64(len(want)-7), false) {
			must(t, err)
			part = append(part, b...)
		}
		if string(part) != "e\nlast\n" {
			t.Fatalf("the end of the log is %q", part)
		}
	})
}

func TestEvents(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		events := g.hub.Events(ctx, g.account, -1, "")
		a := g.join("one")
		id := g.submit(small())
		d := a.offered()
		a.accept(d)
		a.run(d)
		a.end(d, offpeak.EndCompleted)
		var types []string
		var cursors []int64
		for e, err := range events {
			must(t, err)
			types, cursors = append(types, e.Type), append(cursors, e.Cursor)
			if e.Type == "job.succeeded" {
				break
			}
		}
		for i, want := range []string{"job.queued", "job.leased", "job.running", "job.succeeded"} {
			if !strings.Contains(strings.Join(types, " "), want) {
				t.Fatalf("event %d, %s, is not among %v", i, want, types)
			}
		}
		// Going on from a cursor yields the same events, from memory or, after a
		// restart, from the store.
		read := func() (got []int64) {
			for e, err := range g.hub.Events(ctx, g.account, cursors[0], "") {
				must(t, err)
				if got = append(got, e.Cursor); e.Type == "job.succeeded" {
					break
				}
			}
			return got
		}
		synctest.Wait()
		if got := read(); fmt.Sprint(got) != fmt.Sprint(cursors[1:]) {
			t.Fatalf("from memory %v, want %v", got, cursors[1:])
		}
		g.stop()
		g.start()
		if got := read(); fmt.Sprint(got) != fmt.Sprint(cursors[1:]) {
			t.Fatalf("from the store %v, want %v", got, cursors[1:])
		}
		// Another account sees none of it, and everyone's listening ends with ctx.
		quiet := make(chan int, 2)
		for _, account := range []offpeak.AccountID{"acct_other", g.account} {
			go func() {
				n := 0
				for range g.hub.Events(ctx, account, cursors[len(cursors)-1], id) {
					n++
				}
				quiet <- n
			}()
		}
		synctest.Wait()
		cancel()
		if n := <-quiet + <-quiet; n != 0 {
			t.Fatalf("%d events reached who should see none", n)
		}
	})
}

// A node that holds nothing and says nothing new costs no write but one in a
// while, and is counted as heard all the same.
func TestQuietBeatsAreAnsweredFromMemory(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.join("one")
		a.keep(5 * time.Minute)
		synctest.Wait()
		n := g.node(a.id)
		if n.Liveness != offpeak.NodeOnline || time.Since(*n.LastHeard) > 25*time.Second {
			t.Fatalf("the node is %s, heard %s ago", n.Liveness, time.Since(*n.LastHeard))
		}
		if beats := g.metric("offpeak_heartbeats_total"); beats < 60 {
			t.Fatalf("%v beats", beats)
		}
		count := g.histogram("offpeak_heartbeat_batch_size")
		if count > 3 {
			t.Fatalf("%d of the beats went through the store", count)
		}
		// News goes through at once.
		in := a.heartbeat()
		in.Availability, in.Why = offpeak.NodeInUse, offpeak.EndOwnerReturned
		_, err := g.hub.Heartbeat(t.Context(), a.id, in)
		must(t, err)
		if n := g.node(a.id); n.Availability != offpeak.NodeInUse || n.Why != offpeak.EndOwnerReturned {
			t.Fatalf("the node is %s (%s)", n.Availability, n.Why)
		}
		id := g.submit(small())
		synctest.Wait()
		if j := g.job(id); j.State != offpeak.JobQueued {
			t.Fatalf("a node in use was given a job: %s", j.State)
		}
		a.beat()
		synctest.Wait()
		if s := a.beat(); len(s.Leases) != 1 || s.Leases[0].Work == nil || s.Leases[0].Offer <= 0 {
			t.Fatalf("the offer came with %+v", s.Leases)
		}
	})
}

func (g *grid) histogram(name string) uint64 {
	g.t.Helper()
	families, err := g.hub.Metrics().Gather()
	must(g.t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetHistogram().GetSampleCount()
		}
	}
	g.t.Fatalf("no metric %s", name)
	return 0
}

func TestExplain(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		id := g.submit(small())
		explain := func() wire.Explanation {
			t.Helper()
			e, err := g.hub.Explain(t.Context(), g.account, id)
			must(t, err)
			return e
		}
		if e := explain(); !strings.Contains(e.Summary, "No node has joined yet") {
			t.Fatalf("without nodes: %s", e.Summary)
		}
		must(t, func() error { _, err := g.hub.Cancel(t.Context(), g.op(), g.account, id); return err }())
		g.join("one")
		big := small()
		big.Requirements.GPUs = []offpeak.GPURequest{{VRAM: 24 * offpeak.GiB}}
		id = g.submit(big)
		e := explain()
		if len(e.Causes) != 1 || e.Causes[0].Code != offpeak.FitVRAM || len(e.Nodes) != 1 || e.Nodes[0].Name != "one" {
			t.Fatalf("explained with %+v", e)
		}
		if _, err := g.hub.Explain(t.Context(), "acct_other", id); !errors.Is(err, offpeak.ErrNotFound) {
			t.Fatalf("for another account: %v", err)
		}
	})
}

// The explanation says how many nodes must fit before secondary metrics count.
func TestExplanationSaysWhileSecondaryMetricsSleep(t *testing.T) {
	for baseline, want := range map[int]int{1: 0, 2: 2} {
		weights := placement.DefaultWeights()
		weights.Baseline = baseline
		t.Run(strconv.Itoa(baseline), func(t *testing.T) {
			bubble(t, hub.Config{Weights: weights, Fence: -1}, func(t *testing.T, g *grid) {
				spec := small()
				spec.Retry = &offpeak.RetryPolicy{User: 1}
				a := g.join("one")
				id := g.submit(spec)
				d := a.offered()
				a.accept(d)
				a.run(d)
				a.end(d, offpeak.EndExitNonzero) // it pauses, with one node that fits it
				e, err := g.hub.Explain(t.Context(), g.account, id)
				must(t, err)
				if e.State != offpeak.JobQueued || len(e.Nodes) != 1 || !e.Nodes[0].Fits || e.Asleep != want {
					t.Errorf("with a baseline of %d: %+v", baseline, e)
				}
			})
		})
	}
}

func TestBadSubmissionsNameTheField(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		bad := small()
		bad.Task.Driver = "docker"
		_, err := g.hub.Submit(t.Context(), g.op(), g.account, bad)
		var field *offpeak.FieldError
		if !errors.As(err, &field) || field.Field != "task.driver" {
			t.Fatalf("got %v", err)
		}
		op := g.op()
		op.ID = ""
		if _, err := g.hub.Submit(t.Context(), op, g.account, small()); !errors.Is(err, offpeak.ErrInvalid) {
			t.Fatalf("without an operation id: %v", err)
		}
		// The same operation makes one job.
		op = g.op()
		one, err := g.hub.Submit(t.Context(), op, g.account, small())
		must(t, err)
		two, err := g.hub.Submit(t.Context(), op, g.account, small())
		must(t, err)
		if one.ID != two.ID {
			t.Fatalf("one operation made %s and %s", one.ID, two.ID)
		}
		if _, err := g.hub.Retry(t.Context(), g.op(), g.account, one.ID); !errors.Is(err, offpeak.ErrConflict) {
			t.Fatalf("retry of a queued job: %v", err)
		}
	})
}
