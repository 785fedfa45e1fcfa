package postgres_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"offpeak"
	"offpeak/store"
	"offpeak/store/postgres"
	"offpeak/store/storetest"
)

// TestLockingJobsAloneOvercommits has claimers race for nodes: the way that locks
// the job and decides on the node as it was read promises more than there is, and
// Check finds it; ours fills each node and promises no more.
func TestLockingJobsAloneOvercommits(t *testing.T) {
	const runs, claimers, fits = 10, 8, 3
	for _, c := range []struct {
		name      string
		unguarded bool
	}{{"jobs alone", true}, {"node and job", false}} {
		t.Run(c.name, func(t *testing.T) {
			s := open(t, pg.Database(t), postgres.Options{Unguarded: c.unguarded})
			f := storetest.NewFleet(t, s)
			for range runs {
				node := f.Enrol(offpeak.Inventory{CPU: fits * 1000, Memory: offpeak.GiB, Disk: offpeak.GiB})
				won := race(t, s, f, node, claimers)
				if !c.unguarded && won != fits {
					t.Errorf("%d claims won, want %d", won, fits)
				}
			}
			bad, err := s.Check(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			over := 0
			for _, v := range bad {
				if v.Invariant == "I1" && strings.Contains(v.Detail, "over-committed") {
					over++
				}
			}
			if c.unguarded && over == 0 {
				t.Errorf("no node of %d is over-committed: this is no test of the lock", runs)
			}
			if !c.unguarded && len(bad) > 0 {
				t.Errorf("Check = %v", bad)
			}
			t.Logf("%d of %d nodes over-committed", over, runs)
		})
	}
}

// race has claimers claim a job each on one node, at once and until the node is
// full, and returns how many won.
func race(t *testing.T, s store.Store, f *storetest.Fleet, node offpeak.NodeID, claimers int) (won int) {
	t.Helper()
	claims := make([]store.Claim, claimers)
	for i := range claims {
		claims[i] = f.Ask(f.Submit(), node)
	}
	for len(claims) > 0 {
		lost := make([]bool, len(claims))
		var wg sync.WaitGroup
		for i, c := range claims {
			wg.Go(func() {
				out, err := s.Claim(context.Background(), []store.Claim{c})
				if err != nil {
					t.Errorf("Claim: %v", err)
				}
				lost[i] = err == nil && out[0].Err != nil
			})
		}
		wg.Wait()
		before := won
		var again []store.Claim
		for i, c := range claims {
			if lost[i] {
				again = append(again, c)
			} else {
				won++
			}
		}
		if won == before {
			return won
		}
		claims = again
	}
	return won
}
