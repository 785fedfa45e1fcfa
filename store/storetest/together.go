package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"offpeak"
	"offpeak/store"
)

// together: what many ask for at once is answered each by itself, whichever of it
// shares a transaction.
func together(t *testing.T, g *grid) {
	ctx := context.Background()
	n := g.enrol(0)
	const pairs = 20
	var wg sync.WaitGroup
	made := make([]offpeak.Job, 2*pairs)
	for i := range made {
		// Two ask for the same operation.
		op := store.Op{ID: offpeak.OpID(fmt.Sprint("together_", i/2)), Actor: offpeak.Actor{Account: g.account}, Digest: [32]byte{1}}
		sp := spec()
		sp.Labels = map[string]string{"pair": fmt.Sprint(i / 2)}
		wg.Go(func() {
			var err error
			if made[i], err = g.Submit(ctx, op, store.NewJob{ID: offpeak.JobID(fmt.Sprint("job_together_", i)), Account: g.account, Spec: sp}); err != nil {
				t.Errorf("Submit: %v", err)
			}
		})
		wg.Go(func() {
			_, err := g.Submit(ctx, store.Op{ID: offpeak.OpID(fmt.Sprint("nobody_", i)), Digest: [32]byte{1}}, store.NewJob{ID: offpeak.JobID(fmt.Sprint("job_nobody_", i)), Account: "acct_none", Spec: sp})
			if !errors.Is(err, offpeak.ErrNotFound) {
				t.Errorf("Submit for no account = %v", err)
			}
		})
	}
	wg.Wait()
	for i := range pairs {
		a, b := made[2*i], made[2*i+1]
		if a.ID != b.ID || a.State != offpeak.JobQueued {
			t.Errorf("one operation made %s and %s", a.ID, b.ID)
		}
		if list, _, err := g.Jobs(ctx, store.JobFilter{Label: map[string]string{"pair": fmt.Sprint(i)}}, store.Page{Limit: 10}); err != nil || len(list) != 1 {
			t.Errorf("pair %d made %d jobs, %v", i, len(list), err)
		}
	}
	// Of leases on one node, every second report has a gap in its log and is refused.
	var leases []offpeak.Lease
	for i := range 4 {
		leases = append(leases, g.claim(made[2*i].ID, 1, n.ID))
	}
	for i, l := range leases {
		r := g.reportOf(l, store.ReportAccepted)
		if i%2 == 1 {
			r.Logs = []store.LogAppend{{Stream: "stdout", Offset: 5, Data: []byte("x")}}
		}
		wg.Go(func() {
			c, err := g.Report(ctx, r)
			_, gap := errors.AsType[*offpeak.LogGapError](err)
			if gap != (i%2 == 1) || err == nil && c.Lease.State != offpeak.LeasePreparing {
				t.Errorf("report %d = %+v, %v", i, c.Lease, err)
			}
		})
	}
	wg.Wait()
	for i, l := range leases {
		if got := g.lease(l.Job, l.ID).State; (got == offpeak.LeaseOffered) != (i%2 == 1) {
			t.Errorf("lease %d is %s", i, got)
		}
	}
}
