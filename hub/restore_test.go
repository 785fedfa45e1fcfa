package hub_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"offpeak"
	"offpeak/hub"
	"offpeak/hub/data"
	"offpeak/store/sqlite"
	"offpeak/wire"
)

// A hub that goes on from a backup knows nothing of what was leased since. Its
// holder is told with its next heartbeat to drop it, the job runs under another
// lease of the same attempt, and nothing that the stale holder says is accepted.
func TestRestoredHubHasStaleHoldersDrop(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		ctx := t.Context()
		a := g.joinWith("one", 2000)
		kept := g.submit(small())
		held := a.offered()
		a.accept(held)
		a.run(held)
		time.Sleep(time.Millisecond) // so that the two jobs have an order
		_, err := g.hub.SetIntent(ctx, g.op(), g.account, a.id, wire.IntentChange{Intent: offpeak.NodeDraining})
		must(t, err)
		moved := g.submit(small())
		backup := g.folder + "-backup"
		must(t, g.hub.Data().Backup(ctx, backup))
		// What happens from here on is not in the backup.
		_, err = g.hub.SetIntent(ctx, g.op(), g.account, a.id, wire.IntentChange{Intent: offpeak.NodeOpen})
		must(t, err)
		stale := a.offered()
		if stale.Job != moved {
			t.Fatalf("offered %s, want %s", stale.Job, moved)
		}
		a.accept(stale)
		a.run(stale)
		a.beat(held.Lease, stale.Lease)
		g.stop()
		database := filepath.Join(g.folder, data.DatabaseFile)
		must(t, os.Rename(database, database+".lost"))
		must(t, sqlite.Restore(ctx, filepath.Join(backup, data.DatabaseFile), database, sqlite.RestoreOptions{Now: time.Now}))
		g.start()

		should := a.beat(held.Lease, stale.Lease).Leases
		if len(should) != 1 || should[0].Lease != held.Lease || should[0].Stop != "" {
			t.Fatalf("after the restore the node should hold %+v, want %s alone", should, held.Lease)
		}
		if _, err := a.report(stale, "ended", func(r *wire.Report) { r.Reason, r.Started = offpeak.EndCompleted, true }); !errors.Is(err, offpeak.ErrStaleLease) {
			t.Errorf("the stale holder's result was answered with %v", err)
		}
		_, err = g.hub.SetIntent(ctx, g.op(), g.account, a.id, wire.IntentChange{Intent: offpeak.NodeOpen})
		must(t, err)
		again := a.offered()
		if again.Job != moved || again.Attempt != stale.Attempt || again.Lease == stale.Lease {
			t.Fatalf("offered %+v, want attempt %d of %s under another lease than %s", again, stale.Attempt, moved, stale.Lease)
		}
		// The same attempt of the same job on the same node: the lease id alone fences.
		if _, err := a.report(stale, "accepted", nil); !errors.Is(err, offpeak.ErrStaleLease) {
			t.Errorf("the stale holder accepted the new offer: %v", err)
		}
		for _, d := range []wire.Desired{held, again} {
			if d.Lease == again.Lease {
				a.accept(d)
				a.run(d)
			}
			a.end(d, offpeak.EndCompleted)
		}
		synctest.Wait()
		for _, id := range []offpeak.JobID{kept, moved} {
			if j := g.job(id); j.State != offpeak.JobSucceeded || j.Attempt != 1 {
				t.Errorf("job %s is %s after attempt %d", id, j.State, j.Attempt)
			}
		}
	})
}
