// Package storetest is the conformance suite of store.Store: what the comments
// of that contract promise, asked of an engine. Every engine runs it from its
// own tests, over a store that is made anew for each part and a clock that the
// suite moves by hand.
//
// It knows no engine and reads no tables; what only an engine can show (crashes,
// files, planted violations) is tested beside the engine.
package storetest

import (
	"context"
	"errors"
	"testing"

	"offpeak"
	"offpeak/store"
)

// Price is what jobs pay in the stores that the suite is asked of: a tenth more than
// is asked where no bid may displace them.
func Price(ask offpeak.Ask, r *offpeak.Requirements) offpeak.Price {
	price := ask.For(*r)
	if r.NonInterruptible {
		price += price / 10
	}
	return price
}

// Open makes an empty store whose time is the clock's and whose prices are Price's.
// It is closed by the test's cleanup.
type Open func(t *testing.T, clock *Clock) store.Store

// Run asserts the contract.
func Run(t *testing.T, open Open) {
	for _, part := range []struct {
		name string
		fn   func(t *testing.T, g *grid)
	}{
		{"WayOfAJob", wayOfAJob},
		{"Submit", submit},
		{"SubmitTwice", submitTwice},
		{"Quotas", quotas},
		{"QuotaOfGPUs", quotaOfGPUs},
		{"Used", used},
		{"Policies", policies},
		{"Past", past},
		{"Cancel", cancel},
		{"After", after},
		{"AfterRefused", afterRefused},
		{"AfterFails", afterFails},
		{"AfterMany", afterMany},
		{"AfterRace", afterRace},
		{"AfterTogether", afterTogether},
		{"AfterModel", afterModel},
		{"AfterRetried", afterRetried},
		{"AfterInputs", afterInputs},
		{"SubmitAll", submitAll},
		{"Lists", lists},
		{"Queue", queue},
		{"Groups", groups},
		{"GroupsFill", groupsFill},
		{"GroupsAtOnce", groupsAtOnce},
		{"ToldForReplay", toldForReplay},
		{"Gangs", gangs},
		{"GangsBreak", gangsBreak},
		{"GangsFail", gangsFail},
		{"GangsRace", gangsRace},
		{"Claims", claims},
		{"ClaimRace", claimRace},
		{"Together", together},
		{"Reports", reports},
		{"Adopted", adopted},
		{"StaleReports", staleReports},
		{"HandOver", handover},
		{"Taken", taken},
		{"Metering", metering},
		{"Retries", retries},
		{"Beats", beats},
		{"Restarted", restarted},
		{"BadAmongGood", badAmongGood},
		{"Expire", expire},
		{"Quarantine", quarantine},
		{"Amnesty", amnesty},
		{"Stop", stop},
		{"Abandon", abandon},
		{"Assignments", assignments},
		{"Checkpoints", checkpoints},
		{"CheckpointsAmongBeats", checkpointsAmongBeats},
		{"Logs", logs},
		{"Enrol", enrol},
		{"EnrolMany", enrolMany},
		{"Sessions", sessions},
		{"Inventory", shrinking},
		{"Readings", readings},
		{"Intent", intent},
		{"RemoveNode", removeNode},
		{"Liveness", liveness},
		{"Accounts", accounts},
		{"Operations", operations},
		{"OtherAccounts", otherAccounts},
		{"StrangeIDs", strangeIDs},
		{"Blobs", blobs},
		{"CollectUses", collectUses},
		{"Events", events},
		{"Offered", offered},
		{"Prune", prune},
		{"Money", money},
		{"MoneyEnds", moneyEnds},
		{"Bill", bill},
		{"Plans", plans},
		{"MovedAsks", movedAsks},
		{"Renewals", renewals},
		{"RenewedForNothing", renewedForNothing},
		{"RenewedWithPremium", renewedWithPremium},
		{"RenewedNotWhenGoing", renewedNotWhenGoing},
		{"RenewedNotWhenSilent", renewedNotWhenSilent},
		{"Outbid", outbid},
		{"Budget", budget},
		{"BudgetForNotice", budgetForNotice},
		{"Candles", candles},
		{"Weights", weights},
		{"Hubs", hubs},
		{"Backup", backup},
		{"Closed", closed},
		{"Wholes", wholes},
		{"WholesCancelled", wholesCancelled},
		{"WholesWait", wholesWait},
		{"WholesRace", wholesRace},
		{"WholesMany", wholesMany},
		{"WholesRetried", wholesRetried},
		{"WholesInputs", wholesInputs},
		{"WholesSteps", wholesSteps},
		{"Model", model},
	} {
		t.Run(part.name, func(t *testing.T) {
			clock := NewClock()
			g := newGrid(t, open(t, clock), clock)
			part.fn(t, g)
			if part.name != "Closed" {
				g.sound()
			}
		})
	}
}

// refused fails the test unless err is the sentinel.
func refused(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s = %v, want %v", what, err, want)
	}
}

func wayOfAJob(t *testing.T, g *grid) {
	n := g.enrol(1)
	j := g.submit(spec())
	if j.State != offpeak.JobQueued || j.Attempt != 0 || !j.SubmittedAt.Equal(g.clock.Now()) {
		t.Fatalf("Submit = %+v", j)
	}
	l := g.claim(j.ID, 1, n.ID, "GPU-0")
	if got := g.job(j.ID); got.State != offpeak.JobLeased || got.Lease != l.ID || got.Node != n.ID || got.Attempt != 1 {
		t.Fatalf("after the claim: %+v", got)
	}
	if got := g.node(n.ID); got.Reserved.CPU != 1000 || got.Reserved.Memory != offpeak.GiB || len(got.Reserved.Devices) != 1 {
		t.Errorf("after the claim the node reserves %+v", got.Reserved)
	}
	if c := g.accept(l); c.Job.State != offpeak.JobLeased || c.Lease.State != offpeak.LeasePreparing {
		t.Errorf("accepted = %+v", c)
	}
	g.clock.Advance(3e9)
	tree, _ := g.tree(g.account, "out")
	r := g.reportOf(l, store.ReportEnded)
	r.Reason, r.Started, r.Ran, r.Output, r.ExitCode = offpeak.EndCompleted, true, 2000, tree, new(int)
	c := g.report(r)
	if c.Job.State != offpeak.JobSucceeded || c.Job.Output != tree || c.Lease.State != offpeak.LeaseSucceeded || c.Lease.Metered != 2000 || c.Node != n.ID {
		t.Errorf("ended = %+v %+v", c, c.Lease)
	}
	if got := g.node(n.ID); got.Reserved.CPU != 0 || len(got.Reserved.Devices) != 0 {
		t.Errorf("after the end the node reserves %+v", got.Reserved)
	}
	again := g.report(r)
	if again.Job.State != offpeak.JobSucceeded || again.Revision != c.Revision || again.Job.Spec.Task.Driver != "process" {
		t.Errorf("the repeated report = %+v, want %+v", again, c)
	}
	ev, err := g.Events(context.Background(), g.account, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	var types []string
	for _, e := range ev {
		if e.Job == j.ID {
			types = append(types, e.Type)
		}
	}
	want := []string{"job.queued", "lease.offered", "job.leased", "lease.preparing", "job.running", "lease.running", "lease.succeeded", "job.succeeded"}
	if !equal(types, want) {
		t.Errorf("events = %v, want %v", types, want)
	}
}

func equal[T comparable](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
