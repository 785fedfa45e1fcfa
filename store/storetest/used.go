package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"offpeak"
	"offpeak/store"
)

// An account's leases hold no more GPUs at once than its quota allows, also where
// several are claimed together, and one that ends makes room.
func quotaOfGPUs(t *testing.T, g *grid) {
	ctx := context.Background()
	if _, err := g.SetQuota(ctx, g.op(), g.account, offpeak.Quota{GPUs: 2}); err != nil {
		t.Fatal(err)
	}
	n := g.enrol(4)
	one, two, three, cpu := g.submit(spec()), g.submit(spec()), g.submit(spec()), g.submit(spec())
	l := g.claim(one.ID, 1, n.ID, "GPU-0")
	out, err := g.Claim(ctx, []store.Claim{g.ask(two.ID, 1, n.ID, "GPU-1"), g.ask(three.ID, 1, n.ID, "GPU-2"), g.ask(cpu.ID, 1, n.ID)})
	if err != nil || out[0].Err != nil || out[2].Err != nil {
		t.Fatalf("Claim = %+v, %v", out, err)
	}
	refused(t, "Claim of a third GPU", out[1].Err, offpeak.ErrQuota)
	if q, ok := errors.AsType[*offpeak.QuotaError](out[1].Err); !ok || q.Bound != "gpus" || q.Most != 2 || q.Have != 2 || q.More != 1 {
		t.Errorf("refused with %+v, want the bound gpus, 2 of 2", q)
	}
	g.accept(l)
	g.ended(l, offpeak.EndCompleted, 0)
	g.claim(three.ID, 1, n.ID, "GPU-2")
	if a, err := g.Account(ctx, g.account); err != nil || a.Quota.GPUs != 2 {
		t.Errorf("Account = %+v, %v", a, err)
	}
}

func used(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(4)
	began := g.clock.Now()
	old := g.claim(g.submit(spec()).ID, 1, n.ID)
	g.accept(old)
	g.ended(old, offpeak.EndCompleted, 0)
	g.clock.Advance(48 * time.Hour)
	g.beat(n.ID)
	from := g.clock.Now()
	a := g.claim(g.submit(spec()).ID, 1, n.ID, "GPU-0", "GPU-1")
	b := g.claim(g.submit(spec()).ID, 1, n.ID, "GPU-2")
	g.accept(a)
	g.accept(b)
	g.ended(a, offpeak.EndCompleted, 0)
	g.ended(b, offpeak.EndCompleted, 0)
	g.claim(g.submit(spec()).ID, 1, n.ID) // lives, and counts as the fleet shows it
	list, err := g.Used(ctx, began.Add(24*time.Hour))
	if err != nil || len(list) != 1 {
		t.Fatalf("Used = %+v, %v; want one", list, err)
	}
	u := list[0]
	if u.Account != g.account || u.CPU != 2000 || u.GPUs != 3 || u.From.Before(from) || u.To.Before(u.From) || u.To.After(g.clock.Now()) {
		t.Errorf("Used = %+v, want 2 cores and 3 GPUs from %s on", u, from)
	}
	list, err = g.Used(ctx, began.Add(-time.Hour))
	slices.SortFunc(list, func(a, b store.Used) int { return a.From.Compare(b.From) })
	if err != nil || len(list) != 2 || list[0].CPU != 1000 || list[0].GPUs != 0 {
		t.Errorf("Used since before = %+v, %v; want two", list, err)
	}
	_, err = g.Submit(ctx, g.op(), store.NewJob{ID: "job_x", Account: g.account, Spec: spec()})
	if err != nil {
		t.Fatal(err)
	}
	// A job that waits says for how long it may hold a node.
	for q, err := range g.Queue(ctx) {
		if want := spec().Limits.Lasts(); err != nil || q.Lasts != want {
			t.Errorf("Queue = %+v, %v; want it to last %s", q, err, want)
		}
	}
	if _, err := g.SetQuota(ctx, g.op(), g.account, offpeak.Quota{Queued: 1}); err != nil {
		t.Fatal(err)
	}
	_, err = g.Submit(ctx, g.op(), store.NewJob{ID: "job_y", Account: g.account, Spec: spec()})
	if refused(t, "Submit over the quota", err, offpeak.ErrQuota); err == nil || !strings.Contains(err.Error(), "queued_jobs") {
		t.Errorf("refused with %v, want the rule named", err)
	}
}

// What is queued says by which policy it is placed, however it came into the queue
// and however it is read.
func policies(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(4)
	named := func(p offpeak.Policy) offpeak.Spec {
		sp := spec()
		sp.Policy = p
		return sp
	}
	want := map[offpeak.JobID]offpeak.Policy{}
	for _, p := range []offpeak.Policy{"", offpeak.PolicyCheapest, offpeak.PolicyBalanced, offpeak.PolicyFastest} {
		want[g.submit(named(p)).ID] = p
	}
	f, err := g.SubmitGroup(ctx, g.op(), store.NewGroup{
		ID: "grp_p", Account: g.account, Spec: named(offpeak.PolicyBalanced), Array: offpeak.Array{Indexes: offpeak.Indexes{{First: 0, Last: 1}}},
	})
	if err != nil || len(f.Queued) != 2 {
		t.Fatalf("SubmitGroup = %+v, %v", f, err)
	}
	for _, q := range f.Queued {
		if want[q.Job] = offpeak.PolicyBalanced; q.Policy != offpeak.PolicyBalanced {
			t.Errorf("SubmitGroup queued %+v", q)
		}
	}
	// One comes back to the queue.
	back := g.submit(named(offpeak.PolicyFastest))
	want[back.ID] = offpeak.PolicyFastest
	l := g.claim(back.ID, 1, n.ID)
	g.accept(l)
	if c := g.ended(l, offpeak.EndNodeError, 0); c.Queued == nil || c.Queued.Policy != offpeak.PolicyFastest {
		t.Errorf("an attempt that ended left %+v", c.Queued)
	}
	seen := 0
	for q, err := range g.Queue(ctx) {
		if p, known := want[q.Job]; err != nil || !known || q.Policy != p {
			t.Errorf("Queue = %+v, %v; want the policy %q", q, err, p)
		}
		seen++
	}
	list, err := g.Waiting(ctx, slices.Collect(maps.Keys(want)))
	if err != nil || seen != len(want) || len(list) != len(want) {
		t.Errorf("%d queued and %d waiting, %v; want %d", seen, len(list), err, len(want))
	}
	for _, q := range list {
		if q.Policy != want[q.Job] {
			t.Errorf("Waiting = %+v, want the policy %q", q, want[q.Job])
		}
	}
	// The event says it, for a replay.
	events, err := g.Events(ctx, "", 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		var d struct {
			Policy offpeak.Policy `json:"policy"`
		}
		if e.Type == "job.queued" && e.Attempt == 0 && (json.Unmarshal(e.Data, &d) != nil || d.Policy != want[e.Job]) {
			t.Errorf("event of job %s: %s, want the policy %q", e.Job, e.Data, want[e.Job])
		}
	}
}
