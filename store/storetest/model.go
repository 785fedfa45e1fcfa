package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"offpeak"
	"offpeak/store"

	"pgregory.net/rapid"
)

// model drives claims, reports, heartbeats, expiry and cancellation at random,
// beside a picture of what must have become of each job, and asks after each
// run of steps that no invariant is broken.
func model(t *testing.T, g *grid) {
	ctx := context.Background()
	rapid.Check(t, func(rt *rapid.T) {
		var nodes []offpeak.NodeID
		for range 2 {
			nodes = append(nodes, g.enrol(1).ID)
		}
		w := &world{grid: g, jobs: map[offpeak.JobID]*picture{}}
		steps := rapid.IntRange(5, 30).Draw(rt, "steps")
		for range steps {
			w.step(ctx, rt, nodes)
		}
		bad, err := g.Check(ctx)
		if err != nil {
			rt.Fatal(err)
		}
		// Expired leases wait for the monitor, which this test plays itself.
		for _, v := range bad {
			if v.Invariant != "I5" {
				rt.Fatalf("%s %s %s", v.Invariant, v.Object, v.Detail)
			}
		}
		w.compare(rt)
		w.drain(ctx, rt)
	})
}

// picture is what the model knows of a job.
type picture struct {
	state   offpeak.JobState
	attempt offpeak.Attempt
	lease   *offpeak.Lease // the live one
}

type world struct {
	*grid
	order []offpeak.JobID
	jobs  map[offpeak.JobID]*picture
}

func (w *world) apply(rt *rapid.T, c store.Change) {
	p := w.jobs[c.Job.ID]
	if p.state != c.Job.State {
		// Several steps at once are legal one by one; the ends must be.
		if p.state.Terminal() {
			rt.Fatalf("job %s left %s for %s", c.Job.ID, p.state, c.Job.State)
		}
		p.state = c.Job.State
	}
	if p.attempt > c.Job.Attempt {
		rt.Fatalf("job %s went back from attempt %d to %d", c.Job.ID, p.attempt, c.Job.Attempt)
	}
	p.attempt = c.Job.Attempt
	if (c.Queued != nil) != (p.state == offpeak.JobQueued) {
		rt.Fatalf("job %s is %s, Queued = %v", c.Job.ID, p.state, c.Queued)
	}
	if p.lease = c.Lease; !p.state.Live() {
		p.lease = nil
	}
}

func (w *world) step(ctx context.Context, rt *rapid.T, nodes []offpeak.NodeID) {
	kind := rapid.IntRange(0, 6).Draw(rt, "kind")
	if kind == 0 || len(w.order) == 0 {
		j := w.submit(spec())
		w.order = append(w.order, j.ID)
		w.jobs[j.ID] = &picture{state: j.State}
		return
	}
	id := w.order[rapid.IntRange(0, len(w.order)-1).Draw(rt, "job")]
	p := w.jobs[id]
	node := nodes[rapid.IntRange(0, len(nodes)-1).Draw(rt, "node")]
	switch kind {
	case 1, 2: // claim, with or without the GPU
		var devices []offpeak.DeviceID
		if rapid.Bool().Draw(rt, "gpu") {
			devices = append(devices, "GPU-0")
		}
		out, err := w.Claim(ctx, []store.Claim{w.ask(id, p.attempt+1, node, devices...)})
		if err != nil {
			rt.Fatal(err)
		}
		if err := out[0].Err; err != nil {
			if !errors.Is(err, offpeak.ErrConflict) {
				rt.Fatal(err)
			}
			return
		}
		if p.state != offpeak.JobQueued {
			rt.Fatalf("a %s job was claimed", p.state)
		}
		w.apply(rt, out[0].Change)
	case 3: // report
		if p.lease == nil {
			return
		}
		r := w.reportOf(*p.lease, rapid.SampledFrom([]store.ReportKind{store.ReportAccepted, store.ReportRunning, store.ReportFinishing, store.ReportEnded, store.ReportEnded}).Draw(rt, "report"))
		r.Ran = offpeak.Millis(rapid.IntRange(0, 100_000).Draw(rt, "ran"))
		if r.Kind == store.ReportEnded {
			r.Reason = rapid.SampledFrom([]offpeak.EndReason{offpeak.EndCompleted, offpeak.EndExitNonzero, offpeak.EndNodeError, offpeak.EndOwnerReturned, offpeak.EndDeclined, offpeak.EndCancelled}).Draw(rt, "reason")
			r.Started = rapid.Bool().Draw(rt, "started")
		}
		c, err := w.Report(ctx, r)
		if errors.Is(err, offpeak.ErrStaleLease) {
			return // a lapsed offer
		}
		if err != nil {
			rt.Fatal(err)
		}
		w.apply(rt, c)
		if again, err := w.Report(ctx, r); err != nil || again.Job.State != c.Job.State || again.Job.Attempt != c.Job.Attempt {
			rt.Fatalf("the report again = %+v, %v; want %+v", again.Job, err, c.Job)
		}
	case 4: // a heartbeat that holds what it should, or nothing
		b := store.Beat{Node: node, Incarnation: inc, Seq: w.seq(node), Availability: offpeak.NodeAvailable, Grant: timeout}
		if rapid.IntRange(0, 3).Draw(rt, "holds") > 0 {
			for _, q := range w.jobs {
				if q.lease != nil && q.lease.Node == node {
					b.Held = append(b.Held, store.Held{Lease: q.lease.ID, Metered: 1})
				}
			}
		}
		out, err := w.Beat(ctx, []store.Beat{b})
		if err != nil || out[0].Err != nil {
			rt.Fatalf("Beat = %+v, %v", out, err)
		}
		for _, c := range out[0].Changes {
			w.apply(rt, c)
		}
	case 5: // time passes and the monitor runs
		w.clock.Advance(time.Duration(rapid.IntRange(1, 90).Draw(rt, "seconds")) * time.Second)
		out, err := w.Expire(ctx, w.clock.Now(), 100)
		if err != nil {
			rt.Fatal(err)
		}
		for _, c := range out {
			if w.jobs[c.Job.ID] != nil {
				w.apply(rt, c)
			}
		}
	case 6:
		if rapid.IntRange(0, 2).Draw(rt, "really") > 0 {
			return
		}
		c, err := w.Cancel(ctx, w.op(), "", id, "")
		if errors.Is(err, offpeak.ErrConflict) && p.state.Terminal() {
			return
		}
		if err != nil {
			rt.Fatal(err)
		}
		lease := p.lease
		w.apply(rt, c)
		if c.Lease == nil && p.state.Live() {
			p.lease = lease
		}
	}
}

// compare holds the picture against the store.
func (w *world) compare(rt *rapid.T) {
	for id, p := range w.jobs {
		j := w.job(id)
		if j.State != p.state || j.Attempt != p.attempt || (j.Lease != "") != (p.lease != nil) || p.lease != nil && p.lease.ID != j.Lease {
			rt.Fatalf("job %s is %s, attempt %d, lease %q; want %+v", id, j.State, j.Attempt, j.Lease, p)
		}
	}
}

// drain ends what is left, so that runs do not add up.
func (w *world) drain(ctx context.Context, rt *rapid.T) {
	for _, id := range w.order {
		if _, err := w.Cancel(ctx, w.op(), "", id, ""); err != nil && !errors.Is(err, offpeak.ErrConflict) {
			rt.Fatal(err)
		}
	}
	w.clock.Advance(10 * timeout)
	if _, err := w.Expire(ctx, w.clock.Now(), 1000); err != nil {
		rt.Fatal(err)
	}
	for _, id := range w.order {
		if j := w.job(id); !j.State.Terminal() {
			rt.Fatalf("job %s is %s after all was cancelled", id, j.State)
		}
	}
	if bad, err := w.Check(ctx); err != nil || len(bad) != 0 {
		rt.Fatalf("Check = %+v, %v", bad, err)
	}
}
