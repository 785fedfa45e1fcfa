package storetest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"offpeak"
	"offpeak/ledger"
	"offpeak/store"
)

func priceOf(gpu, cpu offpeak.Price) *offpeak.Ask { return &offpeak.Ask{GPU: gpu, CPU: cpu} }

// due returns how the ask of one node stands.
func (g *grid) due(node offpeak.NodeID) store.DueAsk {
	g.Helper()
	list, err := g.DueAsks(context.Background(), 0, node)
	if err != nil || len(list) != 1 {
		g.Fatalf("DueAsks = %+v, %v", list, err)
	}
	return list[0]
}

// asks has a node ask something from now on.
func (g *grid) asks(node offpeak.NodeID, ask *offpeak.Ask) {
	g.Helper()
	moved, err := g.MoveAsks(context.Background(), []store.AskMove{{Node: node, Revision: g.due(node).Revision, Ask: ask}})
	if err != nil || len(moved) > 1 {
		g.Fatalf("MoveAsks = %v, %v", moved, err)
	}
}

func (g *grid) setPlan(account offpeak.AccountID, node offpeak.NodeID, plan string) []offpeak.NodeID {
	g.Helper()
	ids, err := g.SetPlan(context.Background(), g.op(), account, node, json.RawMessage(plan), time.Time{})
	if err != nil {
		g.Fatalf("SetPlan: %v", err)
	}
	return ids
}

// A node goes by its own plan, else by its account's; what it asked holds until
// somebody has read the plan.
func plans(t *testing.T, g *grid) {
	ctx := context.Background()
	a, b := g.enrol(0), g.enrol(0)
	if d := g.due(a.ID); len(d.Plan) != 0 || !d.Due.IsZero() || d.Node.Ask == nil || *d.Node.Ask != (offpeak.Ask{}) {
		t.Errorf("a node without a plan: %+v", d)
	}
	if ids := g.setPlan(g.account, "", `{"n":1}`); !equal(ids, []offpeak.NodeID{a.ID, b.ID}) {
		t.Errorf("the account's plan concerns %v", ids)
	}
	if ids := g.setPlan("", a.ID, `{"n":2}`); !equal(ids, []offpeak.NodeID{a.ID}) {
		t.Errorf("the node's plan concerns %v", ids)
	}
	if ids := g.setPlan(g.account, "", `{"n":3}`); !equal(ids, []offpeak.NodeID{b.ID}) {
		t.Errorf("the account's next plan concerns %v", ids)
	}
	late := g.enrol(0)
	if d := g.due(late.ID); string(d.Plan) != `{"n":3}` || d.Node.Ask != nil || !d.Due.Equal(g.clock.Now()) {
		t.Errorf("a node that enrols under a plan: %+v", d)
	}
	if err := refusedClaim(t, g, g.ask(g.submit(spec()).ID, 1, late.ID), "on a node that asks nothing"); !errors.Is(err, offpeak.ErrConflict) {
		t.Errorf("refused with %v", err)
	}
	if d := g.due(a.ID); string(d.Plan) != `{"n":2}` || d.Node.Ask == nil {
		t.Errorf("the node with a plan of its own: %+v", d)
	}
	if p, err := g.Plan(ctx, g.account, ""); err != nil || string(p.Plan) != `{"n":3}` || !p.SetAt.Equal(g.clock.Now()) {
		t.Errorf("Plan = %+v, %v", p, err)
	}
	if _, err := g.Plan(ctx, g.account, b.ID); !errors.Is(err, offpeak.ErrNotFound) {
		t.Errorf("the plan of a node without one: %v", err)
	}
	list, err := g.DueAsks(ctx, 2)
	if err != nil || len(list) != 2 {
		t.Errorf("DueAsks of 2 = %+v, %v", list, err)
	}
	if list, err = g.DueAsks(ctx, 10); err != nil || len(list) != 3 {
		t.Errorf("DueAsks = %+v, %v", list, err)
	}
	g.setPlan(g.account, a.ID, "")
	if d := g.due(a.ID); string(d.Plan) != `{"n":3}` {
		t.Errorf("after its own plan was taken back: %+v", d)
	}
	op := g.op()
	if _, err := g.SetPlan(ctx, op, g.account, b.ID, json.RawMessage(`{}`), time.Time{}); err != nil {
		t.Fatal(err)
	}
	was := g.due(b.ID).Revision
	if ids, err := g.SetPlan(ctx, op, g.account, b.ID, json.RawMessage(`{}`), time.Time{}); err != nil || !equal(ids, []offpeak.NodeID{b.ID}) || g.due(b.ID).Revision != was {
		t.Errorf("the same operation again = %v, %v", ids, err)
	}
	// A plan that ends is as well said again when it is over; a new one is refused then.
	op = g.op()
	until := g.clock.Now().Add(time.Minute)
	ends := func(op store.Op) error {
		_, err := g.SetPlan(ctx, op, g.account, b.ID, json.RawMessage(`{}`), until)
		return err
	}
	if err := ends(op); err != nil {
		t.Errorf("a plan that ends: %v", err)
	}
	g.clock.Advance(time.Minute)
	if err := ends(op); err != nil {
		t.Errorf("the same operation when it is over: %v", err)
	}
	var field *offpeak.FieldError
	if err := ends(g.op()); !errors.As(err, &field) || field.Field != "until" {
		t.Errorf("a plan that is over: %v, want it refused", err)
	}
	for what, refused := range map[string]struct {
		account offpeak.AccountID
		node    offpeak.NodeID
		plan    string
		want    error
	}{
		"another account's node": {g.other(), a.ID, `{}`, offpeak.ErrNotFound},
		"no such account":        {"acct_none", "", `{}`, offpeak.ErrNotFound},
		"what is no UTF-8":       {g.account, a.ID, "\"\xff\"", offpeak.ErrInvalid},
		"what is no JSON":        {g.account, a.ID, `{`, offpeak.ErrInvalid},
		"a long plan":            {g.account, a.ID, `"` + strings.Repeat("x", 64<<10) + `"`, offpeak.ErrInvalid},
	} {
		if _, err := g.SetPlan(ctx, g.op(), refused.account, refused.node, json.RawMessage(refused.plan), time.Time{}); !errors.Is(err, refused.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if d := g.due(a.ID); string(d.Plan) != `{"n":3}` {
		t.Errorf("after plans that were refused: %+v", d)
	}
	// The account's is taken back: what is asked holds until somebody looks.
	g.asks(a.ID, priceOf(1, 2))
	if ids := g.setPlan(g.account, "", ""); !equal(ids, []offpeak.NodeID{a.ID, late.ID}) {
		t.Errorf("without the account's plan: %v", ids)
	}
	if d := g.due(a.ID); len(d.Plan) != 0 || !d.Due.Equal(g.clock.Now()) || d.Node.Ask == nil || *d.Node.Ask != (offpeak.Ask{GPU: 1, CPU: 2}) {
		t.Errorf("without any plan: %+v", d)
	}
	if d := g.due(b.ID); string(d.Plan) != `{}` {
		t.Errorf("with a plan of its own alone: %+v", d)
	}
	// A node that is removed is due no more, and leaves no plan.
	if _, err := g.RemoveNode(ctx, g.op(), g.account, b.ID); err != nil {
		t.Fatal(err)
	}
	list, err = g.DueAsks(ctx, 10, b.ID, late.ID)
	if err != nil {
		t.Fatal(err)
	}
	var looked []offpeak.NodeID
	for _, d := range list {
		looked = append(looked, d.Node.ID)
	}
	if !equal(looked, []offpeak.NodeID{a.ID, late.ID, late.ID}) {
		t.Errorf("due and named: %v", looked)
	}
	if _, err := g.Plan(ctx, "", b.ID); !errors.Is(err, offpeak.ErrNotFound) {
		t.Errorf("the plan of a removed node: %v", err)
	}
}

func refusedClaim(t *testing.T, g *grid, c store.Claim, what string) error {
	t.Helper()
	out, err := g.Claim(context.Background(), []store.Claim{c})
	if err != nil || len(out) != 1 || out[0].Err == nil {
		t.Errorf("a claim %s = %+v, %v", what, out, err)
		return nil
	}
	return out[0].Err
}

// Of many who move an ask one is heard, and what changed is kept.
func movedAsks(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(0)
	d := g.due(n.ID)
	var mu sync.Mutex
	heard := 0
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			moved, err := g.MoveAsks(ctx, []store.AskMove{{Node: n.ID, Revision: d.Revision, Ask: priceOf(offpeak.Price(i+1), 1), Due: g.clock.Now().Add(time.Hour)}})
			mu.Lock()
			defer mu.Unlock()
			if heard += len(moved); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if heard != 1 {
		t.Errorf("%d of 8 were heard", heard)
	}
	if list, err := g.DueAsks(ctx, 10); err != nil || len(list) != 0 {
		t.Errorf("due before its time: %+v, %v", list, err)
	}
	g.clock.Advance(time.Hour)
	if list, err := g.DueAsks(ctx, 10); err != nil || len(list) != 1 || list[0].Node.ID != n.ID {
		t.Errorf("due: %+v, %v", list, err)
	}
	// A plan that is set meanwhile is not overrun.
	was := g.due(n.ID).Revision
	g.setPlan(g.account, n.ID, `{}`)
	if moved, err := g.MoveAsks(ctx, []store.AskMove{{Node: n.ID, Revision: was, Ask: priceOf(9, 9)}, {Node: "node_none", Ask: priceOf(1, 1)}}); err != nil || len(moved) != 0 {
		t.Errorf("moved by who read another plan: %v, %v", moved, err)
	}
	first := *g.node(n.ID).Ask
	g.asks(n.ID, &first) // nothing new
	g.asks(n.ID, nil)
	g.asks(n.ID, priceOf(5, 6))
	want := []*offpeak.Ask{priceOf(5, 6), nil, &first, priceOf(0, 0)}
	var got []*offpeak.Ask
	for cursor := ""; ; {
		page, next, err := g.AskHistory(ctx, g.account, n.ID, store.Page{Cursor: cursor, Limit: 2})
		if err != nil || len(page) != 2 {
			t.Fatal(page, err)
		}
		for _, c := range page {
			got = append(got, c.Ask)
		}
		if cursor = next; cursor == "" {
			break
		}
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, _, err := g.AskHistory(ctx, g.other(), n.ID, store.Page{Limit: 1}); !errors.Is(err, offpeak.ErrNotFound) {
		t.Errorf("another account's history: %v", err)
	}
	if _, err := g.MoveAsks(ctx, []store.AskMove{{Node: n.ID, Revision: g.due(n.ID).Revision, Ask: priceOf(-1, 0)}}); !errors.Is(err, offpeak.ErrInvalid) {
		t.Errorf("an ask below nothing: %v", err)
	}
	var told []string
	ev, err := g.Events(ctx, g.account, 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range ev {
		if e.Type == "node.ask" {
			told = append(told, string(e.Data))
		}
	}
	if len(told) != 3 || told[1] != `{"ask":null}` || told[2] != `{"ask":{"gpu":5,"cpu":6}}` {
		t.Errorf("events: %q", told)
	}
	g.clock.Advance(time.Hour)
	if _, err := g.Prune(ctx, store.Retention{Asks: time.Minute}, 100); err != nil {
		t.Fatal(err)
	}
	if page, _, err := g.AskHistory(ctx, "", n.ID, store.Page{Limit: 10}); err != nil || len(page) != 1 || page[0].Ask == nil || page[0].Ask.GPU != 5 {
		t.Errorf("after pruning: %+v, %v", page, err)
	}
}

// running claims a job with requirements at a price and starts it.
func (g *grid) running(sp offpeak.Spec, node offpeak.NodeID, price offpeak.Price, devices ...offpeak.DeviceID) offpeak.Lease {
	g.Helper()
	return g.again(g.submit(sp).ID, 1, node, price, devices...)
}

func (g *grid) again(job offpeak.JobID, attempt offpeak.Attempt, node offpeak.NodeID, price offpeak.Price, devices ...offpeak.DeviceID) offpeak.Lease {
	g.Helper()
	c := g.ask(job, attempt, node, devices...)
	c.Price = price
	out, err := g.Claim(context.Background(), []store.Claim{c})
	if err != nil || out[0].Err != nil {
		g.Fatalf("Claim = %+v, %v", out, err)
	}
	l := *out[0].Lease
	g.accept(l)
	return *g.report(g.reportOf(l, store.ReportRunning)).Lease
}

// runs lets a lease run on in steps of half a minute.
func (g *grid) runs(l offpeak.Lease, from offpeak.Millis, d time.Duration) offpeak.Millis {
	g.Helper()
	for range int(d / (30 * time.Second)) {
		g.clock.Advance(30 * time.Second)
		from += 30_000
		g.beat(l.Node, store.Held{Lease: l.ID, Metered: from})
	}
	return from
}

func (g *grid) bills() store.Billed {
	g.Helper()
	out, more, err := g.Bill(context.Background(), 10)
	if err != nil || more {
		g.Fatal(more, err)
	}
	return out
}

const hourly = 3600 * offpeak.Price(offpeak.Credit) // a credit a second

// hour lets a lease run through what is left of its term, billed every minute.
func (g *grid) hour(l offpeak.Lease, ran offpeak.Millis) (offpeak.Millis, store.Billed) {
	g.Helper()
	for range 70 {
		ran = g.runs(l, ran, time.Minute)
		if b := g.bills(); len(b.Gone)+len(b.Renewed) > 0 {
			return ran, b
		}
	}
	g.Fatal("the term does not end")
	return 0, store.Billed{}
}

// At the end of a term the price is what is asked then, for each device, within the
// job's limit.
func renewals(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(2)
	limit := 6 * hourly
	sp := spec()
	sp.Requirements.MaxPrice = &limit
	sp.Requirements.GPUs = []offpeak.GPURequest{{}, {}}
	dear := g.ask(g.submit(sp).ID, 1, n.ID, "GPU-0", "GPU-1")
	dear.Price = limit + 1
	if err := refusedClaim(t, g, dear, "above the job's limit"); !errors.Is(err, offpeak.ErrConflict) {
		t.Errorf("refused with %v", err)
	}
	l := g.running(sp, n.ID, 2*hourly, "GPU-0", "GPU-1")
	g.asks(n.ID, priceOf(2*hourly, 0))
	ran, billed := g.hour(l, 0)
	if len(billed.Gone) != 0 || len(billed.Renewed) != 1 {
		t.Fatalf("at the first term's end: %+v", billed)
	}
	r := billed.Renewed[0]
	if r.Lease != l.ID || r.Node != n.ID || len(r.Devices) != 2 || r.Paid.Price != 2*hourly || r.Price != 4*hourly || r.Metered < 3_600_000 || r.Metered > 3_700_000 {
		t.Errorf("renewed: %+v", r)
	}
	if got := g.lease(l.Job, l.ID); got.Price != 4*hourly {
		t.Errorf("the lease has %s", got.Price)
	}
	// Above the limit it is asked to go, and pays what it had.
	g.asks(n.ID, priceOf(4*hourly, 0))
	before := ran
	if ran, billed = g.hour(l, ran); len(billed.Renewed) != 0 || len(billed.Gone) != 1 || billed.Gone[0].Lease.Stop != offpeak.EndTermEnded {
		t.Fatalf("above the limit: %+v", billed)
	}
	end := g.ended(l, offpeak.EndTermEnded, ran)
	if end.Paid == nil || end.Paid.Price != 4*hourly || end.Paid.Metered != ran-r.Metered || end.Queued == nil {
		t.Errorf("the end: %+v, paid %+v, after %d", end.Queued, end.Paid, before)
	}
	lines, err := g.Receipts(ctx, "", l.Job)
	if err != nil || len(lines) != 2 || lines[0].Term.Price != 2*hourly || lines[1].Term.Price != 4*hourly {
		t.Errorf("receipts: %+v, %v", lines, err)
	}
	// Nothing asked is not for nothing.
	l = g.running(spec(), n.ID, hourly)
	g.asks(n.ID, nil)
	if _, billed = g.hour(l, 0); len(billed.Gone) != 1 || billed.Gone[0].Lease.Stop != offpeak.EndTermEnded {
		t.Errorf("where nothing is asked any more: %+v", billed)
	}
}

// A lease gives way once, and says to whom.
func outbid(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(0)
	c := g.claim(g.submit(spec()).ID, 1, n.ID)
	to := offpeak.Outbid{Job: g.submit(spec()).ID, Price: 7}
	if _, err := g.Outbid(ctx, c.ID, to); !errors.Is(err, offpeak.ErrConflict) {
		t.Errorf("a lease that does not run: %v", err)
	}
	g.accept(c)
	g.report(g.reportOf(c, store.ReportRunning))
	out, err := g.Outbid(ctx, c.ID, to)
	if err != nil {
		t.Fatal(err)
	}
	if l := out.Lease; l.Stop != offpeak.EndOutbid || l.Outbid == nil || *l.Outbid != to || out.Node != n.ID || out.Job.OutbidAt == nil {
		t.Errorf("Outbid = %+v", out)
	}
	told := 0
	ev, err := g.Events(ctx, g.account, 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range ev {
		if e.Type == "lease.stopping" && e.Lease == c.ID && e.Reason == offpeak.EndOutbid && string(e.Data) == fmt.Sprintf(`{"job":%q,"price":7}`, to.Job) {
			told++
		}
	}
	if told != 1 {
		t.Errorf("told %d times: %+v", told, ev)
	}
	for _, to := range []offpeak.Outbid{{Price: 1}, {Job: "job_other", Price: -1}, {Job: "job_other", Price: offpeak.MaxPrice + 1}} {
		if _, err := g.Outbid(ctx, c.ID, to); !errors.Is(err, offpeak.ErrInvalid) {
			t.Errorf("outbid by %+v: %v", to, err)
		}
	}
	if l := g.lease(c.Job, c.ID); l.Outbid == nil || *l.Outbid != to {
		t.Errorf("read again: %+v", l)
	}
	if j := g.job(c.Job); j.OutbidAt == nil || !j.OutbidAt.Equal(g.clock.Now()) {
		t.Errorf("its job: %+v", j.OutbidAt)
	}
	if _, err := g.Outbid(ctx, c.ID, offpeak.Outbid{Job: "job_other", Price: 9}); !errors.Is(err, offpeak.ErrConflict) {
		t.Errorf("twice: %v", err)
	}
	if _, err := g.Outbid(ctx, "lease_none", to); !errors.Is(err, offpeak.ErrNotFound) {
		t.Errorf("a lease that is not there: %v", err)
	}
	g.clock.Advance(time.Second)
	if end := g.ended(c, offpeak.EndOutbid, 1000); end.Queued == nil {
		t.Errorf("it does not come back: %+v", end.Job)
	}
	if _, err := g.Outbid(ctx, c.ID, to); !errors.Is(err, offpeak.ErrStaleLease) {
		t.Errorf("one that has ended: %v", err)
	}
}

// All attempts of a job together cost no more than its budget, and a job whose
// budget is spent ends.
func budget(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(0)
	sp := spec()
	most := 900 * offpeak.Credit
	sp.Limits.Budget = &most
	j := g.submit(sp)
	// Ten minutes are held, five are kept.
	l := g.again(j.ID, 1, n.ID, hourly)
	ran := g.runs(l, 0, 5*time.Minute)
	end := g.ended(l, offpeak.EndTermEnded, ran)
	if end.Queued == nil || end.Paid == nil || end.Paid.Metered != 300_000 {
		t.Fatalf("the first attempt: %+v, %+v", end.Job, end.Paid)
	}
	// What is left are ten minutes.
	g.clock.Advance(time.Minute)
	l = g.again(j.ID, 2, n.ID, hourly)
	ran = 0
	var gone []store.Change
	for len(gone) == 0 && ran < 1_200_000 {
		ran = g.runs(l, ran, 30*time.Second)
		gone = g.bills().Gone
	}
	if len(gone) != 1 || gone[0].Lease.Stop != offpeak.EndBudgetSpent || ran > 600_000 {
		t.Fatalf("after %d ms: %+v", ran, gone)
	}
	// The node is lost meanwhile: that alone would queue the job again.
	ran = g.runs(l, ran, time.Duration(600_000-ran)*time.Millisecond)
	end = g.ended(l, offpeak.EndTermEnded, ran)
	if end.Job.State != offpeak.JobFailed || end.Job.Reason != offpeak.EndBudgetSpent || end.Queued != nil {
		t.Errorf("in the end: %+v", end.Job)
	}
	lines, err := g.Receipts(ctx, "", j.ID)
	if err != nil {
		t.Fatal(err)
	}
	sum := offpeak.MicroCredits(0)
	for _, line := range lines {
		sum += line.Charged
	}
	if sum != most {
		t.Errorf("charged %s of %s", sum, most)
	}
	// A claim that the budget does not cover is told from one that the balance
	// does not.
	little := offpeak.Credit
	sp.Limits.Budget = &little
	c := g.ask(g.submit(sp).ID, 1, n.ID)
	c.Price = hourly
	funds, ok := errors.AsType[*ledger.FundsError](refusedClaim(t, g, c, "above the budget"))
	if !ok || !funds.Budget || funds.Have != little {
		t.Errorf("refused with %+v", funds)
	}
}

// What many add comes to what one would have added.
func candles(t *testing.T, g *grid) {
	ctx := context.Background()
	start := g.clock.Now().Truncate(time.Hour)
	card := func(model string) offpeak.Segment {
		return offpeak.Segment{Kind: offpeak.Kind{Vendor: "nvidia", Model: model, VRAM: offpeak.GiB}, Region: "eu"}
	}
	candle := func(s offpeak.Segment, r offpeak.Resolution, hour int, price offpeak.Price) offpeak.Candle {
		at := start.Add(time.Duration(hour) * time.Hour)
		return offpeak.Candle{Segment: s, Resolution: r, Start: at, Open: price, High: price, Low: price, Close: price,
			OpenedAt: at.Add(time.Duration(price) * time.Second), ClosedAt: at.Add(time.Duration(price) * time.Second), Trades: 1, Metered: 1000}
	}
	var mu sync.Mutex
	want := map[string]offpeak.Candle{}
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			var add []offpeak.Candle
			for _, s := range []offpeak.Segment{card("RTX Ü 4090"), card("×2 RTX_100%"), {}} {
				for hour := range 3 {
					add = append(add, candle(s, offpeak.Hours, hour, offpeak.Price(1+(i*7+hour)%5)))
				}
				add = append(add, candle(s, offpeak.Minutes, 0, offpeak.Price(i+1)))
			}
			if i%2 == 0 {
				slices.Reverse(add)
			}
			if err := g.AddCandles(ctx, add); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, c := range add {
				k := fmt.Sprint(c.Segment, c.Resolution, c.Start.Unix())
				if have, ok := want[k]; ok {
					c = have.Join(c)
				}
				want[k] = c
			}
		})
	}
	all.Wait()
	list := func(f store.CandleFilter, limit int) (out []offpeak.Candle) {
		t.Helper()
		for cursor := ""; ; {
			page, next, err := g.Candles(ctx, f, store.Page{Cursor: cursor, Limit: limit})
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, page...)
			if cursor = next; cursor == "" {
				return out
			}
		}
	}
	got := list(store.CandleFilter{}, 5)
	if !slices.IsSortedFunc(got, func(a, b offpeak.Candle) int {
		return cmp.Or(a.Compare(b.Segment), strings.Compare(string(a.Resolution), string(b.Resolution)), a.Start.Compare(b.Start))
	}) {
		t.Errorf("out of order: %+v", got)
	}
	if len(got) != len(want) {
		t.Errorf("%d candles, want %d", len(got), len(want))
	}
	for _, c := range got {
		if diff := gocmp.Diff(want[fmt.Sprint(c.Segment, c.Resolution, c.Start.Unix())], c); diff != "" {
			t.Error(diff)
		}
	}
	for _, c := range []struct {
		filter store.CandleFilter
		want   int
	}{
		{store.CandleFilter{Resolution: offpeak.Hours}, 9},
		{store.CandleFilter{Resolution: offpeak.Minutes}, 3},
		{store.CandleFilter{Model: "4090"}, 4},
		{store.CandleFilter{Model: "rtx"}, 8},
		{store.CandleFilter{Model: "%"}, 4},
		{store.CandleFilter{Model: "x_1"}, 4},
		{store.CandleFilter{Model: "×2 rTx"}, 4},
		{store.CandleFilter{Model: "Ü 4"}, 4},
		{store.CandleFilter{Vendor: "amd"}, 0},
		{store.CandleFilter{Plain: true}, 4},
		{store.CandleFilter{Vendor: "nvidia", VRAM: offpeak.GiB, Region: "eu"}, 8},
		{store.CandleFilter{Region: "us"}, 0},
		{store.CandleFilter{Resolution: offpeak.Hours, From: start.Add(time.Hour), Until: start.Add(2 * time.Hour)}, 3},
	} {
		if got := list(c.filter, 1000); len(got) != c.want {
			t.Errorf("%+v: %d candles, want %d", c.filter, len(got), c.want)
		}
	}
	if _, _, err := g.Candles(ctx, store.CandleFilter{}, store.Page{Cursor: "x", Limit: 1}); !errors.Is(err, offpeak.ErrInvalid) {
		t.Errorf("a cursor that nobody gave: %v", err)
	}
	g.clock.Advance(90 * time.Minute)
	if _, err := g.Prune(ctx, store.Retention{Minutes: time.Hour, Hours: time.Hour}, 100); err != nil {
		t.Fatal(err)
	}
	if minutes, hours := list(store.CandleFilter{Resolution: offpeak.Minutes}, 10), list(store.CandleFilter{Resolution: offpeak.Hours}, 10); len(minutes) != 0 || len(hours) != 6 {
		t.Errorf("after pruning: %d minutes, %d hours", len(minutes), len(hours))
	}
	// However many regions owners name, those that traded last stay.
	many := []offpeak.Candle{candle(offpeak.Segment{Region: "r0003"}, offpeak.Minutes, 2, 1)}
	for i := range 1030 {
		c := candle(offpeak.Segment{Region: fmt.Sprintf("r%04d", i)}, offpeak.Hours, 2, 1)
		c.ClosedAt = c.ClosedAt.Add(time.Duration(i) * time.Second)
		many = append(many, c)
	}
	if err := g.AddCandles(ctx, many); err != nil {
		t.Fatal(err)
	}
	// They are nine too many with the three that were there, of which each has one hour
	// more, and with a minute of one.
	for _, n := range []int{4, 4, 4, 1, 0} {
		if removed, err := g.Prune(ctx, store.Retention{Hours: 24 * time.Hour}, 4); err != nil || removed != n {
			t.Errorf("removed %d, want %d: %v", removed, n, err)
		}
	}
	if gone, stays := list(store.CandleFilter{Region: "r0003"}, 1), list(store.CandleFilter{Region: "r1029"}, 1); len(gone) != 0 || len(stays) != 1 {
		t.Errorf("of too many segments: %v, %v", gone, stays)
	}
}
