package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"offpeak"
	"offpeak/store"
	"offpeak/store/postgres"
	"offpeak/store/storetest"
)

// A row that can't be written, as one that an older hub left against a CHECK, is
// its own verb's failure alone: what shares a transaction with it is served.
func TestPoisonedRowStandsAlone(t *testing.T) {
	const size, bad = 6, 3
	begin := func(t *testing.T) (*postgres.Store, *storetest.Fleet, offpeak.NodeID, func(table, allowed, id string)) {
		url := pg.Database(t)
		s := open(t, url, postgres.Options{})
		f := storetest.NewFleet(t, s)
		c := plain(t, url)
		return s, f, f.Enrol(offpeak.Inventory{CPU: size * 1000, Memory: offpeak.GiB, Disk: offpeak.GiB}), func(table, allowed, id string) {
			t.Helper()
			exec(t, c, fmt.Sprintf(`ALTER TABLE %s ADD CONSTRAINT poison CHECK (%s OR id <> '%s')`, table, allowed, id))
		}
	}
	claimed := func(t *testing.T, s store.Store, claims []store.Claim) (out []offpeak.Lease) {
		t.Helper()
		got, err := s.Claim(t.Context(), claims)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range got {
			if c.Err != nil {
				t.Fatal(c.Err)
			}
			out = append(out, *c.Lease)
		}
		return out
	}
	asks := func(f *storetest.Fleet, node offpeak.NodeID) (out []store.Claim) {
		for range size {
			out = append(out, f.Ask(f.Submit(), node))
		}
		return out
	}
	t.Run("beats", func(t *testing.T) {
		s, f, _, poison := begin(t)
		for range size - 1 {
			f.Enrol(offpeak.Inventory{CPU: 1000, Memory: offpeak.GiB, Disk: offpeak.GiB})
		}
		nodes, _, err := s.Nodes(t.Context(), "", store.Page{Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		poison("nodes", "beat < 1000000", string(nodes[bad].ID))
		var beats []store.Beat
		for _, n := range nodes {
			beats = append(beats, store.Beat{Node: n.ID, Incarnation: n.Incarnation, Seq: 1_000_000, Availability: offpeak.NodeAvailable, Grant: time.Minute})
		}
		out, err := s.Beat(t.Context(), beats)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range out {
			if (r.Err != nil) != (i == bad) {
				t.Errorf("heartbeat %d: %v", i, r.Err)
			}
		}
	})
	t.Run("claims", func(t *testing.T) {
		s, f, node, poison := begin(t)
		claims := asks(f, node)
		poison("leases", "FALSE", string(claims[bad].Lease))
		out, err := s.Claim(t.Context(), claims)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range out {
			if (r.Err != nil) != (i == bad) {
				t.Errorf("claim %d: %v", i, r.Err)
			}
		}
	})
	t.Run("expiry", func(t *testing.T) {
		s, f, node, poison := begin(t)
		claims := asks(f, node)
		for i := range claims {
			claims[i].OfferFor = time.Microsecond
		}
		leases := claimed(t, s, claims)
		poison("leases", "state = 'offered'", string(leases[bad].ID))
		now, err := s.Now(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		out, err := s.Expire(t.Context(), now, 100)
		if len(out) != size-1 {
			t.Errorf("%d of %d leases were ended", len(out), size)
		}
		if err == nil || !strings.Contains(err.Error(), string(leases[bad].ID)) {
			t.Errorf("Expire = %v, want an error that names lease %s", err, leases[bad].ID)
		}
	})
	t.Run("reports", func(t *testing.T) {
		s, f, node, poison := begin(t)
		leases := claimed(t, s, asks(f, node))
		n, err := s.Node(t.Context(), "", node)
		if err != nil {
			t.Fatal(err)
		}
		poison("leases", "state = 'offered'", string(leases[bad].ID))
		var all sync.WaitGroup
		for i, l := range leases {
			all.Go(func() {
				_, err := s.Report(context.Background(), store.Report{Node: node, Lease: l.ID, Attempt: 1, Incarnation: n.Incarnation, Seq: 1_000_000, Kind: store.ReportAccepted})
				if (err != nil) != (i == bad) {
					t.Errorf("report %d: %v", i, err)
				}
			})
		}
		all.Wait()
	})
	t.Run("submissions", func(t *testing.T) {
		s, f, _, poison := begin(t)
		was, err := s.Job(t.Context(), "", f.Submit())
		if err != nil {
			t.Fatal(err)
		}
		poison("jobs", "FALSE", fmt.Sprint("job_", bad))
		var all sync.WaitGroup
		for i := range size {
			all.Go(func() {
				id := offpeak.JobID(fmt.Sprint("job_", i))
				_, err := s.Submit(context.Background(), store.Op{ID: offpeak.OpID(id), Actor: offpeak.Actor{Account: was.Account}}, store.NewJob{ID: id, Account: was.Account, Spec: was.Spec})
				if (err != nil) != (i == bad) {
					t.Errorf("submission %d: %v", i, err)
				}
			})
		}
		all.Wait()
	})
}

// A job that repeats another locks that one before its account, as everybody does.
func TestRetryLocksJobBeforeAccount(t *testing.T) {
	t.Parallel()
	url := pg.Database(t)
	s := open(t, url, postgres.Options{})
	f := storetest.NewFleet(t, s)
	old, err := s.Job(t.Context(), "", f.Submit())
	if err != nil {
		t.Fatal(err)
	}
	actor := offpeak.Actor{Account: old.Account}
	if _, err := s.SetQuota(t.Context(), store.Op{ID: "quota", Actor: actor}, old.Account, offpeak.Quota{Queued: 100}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Cancel(t.Context(), store.Op{ID: "cancel", Actor: actor}, "", old.ID, ""); err != nil {
		t.Fatal(err)
	}
	other := plain(t, url)
	exec(t, other, `BEGIN`)
	exec(t, other, `SELECT 1 FROM jobs WHERE id = $1 FOR NO KEY UPDATE`, string(old.ID))
	done := make(chan error, 1)
	go func() {
		_, err := s.Submit(context.Background(), store.Op{ID: "again", Actor: actor}, store.NewJob{ID: "job_again", Account: old.Account, Spec: old.Spec, RetryOf: old.ID})
		done <- err
	}()
	waits(t, plain(t, url))
	exec(t, other, `SELECT 1 FROM accounts WHERE id = $1 FOR NO KEY UPDATE NOWAIT`, string(old.Account))
	exec(t, other, `COMMIT`)
	if err := <-done; err != nil {
		t.Errorf("Submit: %v", err)
	}
}

// Of two who drop the holds on a blob at once, one is told that it was the last.
func TestLastOfTwoDroppers(t *testing.T) {
	t.Parallel()
	url := pg.Database(t)
	s := open(t, url, postgres.Options{})
	bootstrap(t, s)
	if _, err := s.CreateAccount(t.Context(), op("b"), offpeak.Account{ID: "acct_b", Name: "b"}); err != nil {
		t.Fatal(err)
	}
	c := plain(t, url)
	hash := offpeak.Hash(strings.Repeat("a", 64))
	for _, a := range []offpeak.AccountID{"acct_a", "acct_b"} {
		if err := s.AddBlob(t.Context(), a, hash, 1); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, c, `UPDATE blobs SET protected_until = 0`)
	// Each is held up after it has dropped its own hold and before it commits.
	exec(t, c, `BEGIN`)
	exec(t, c, `SELECT 1 FROM accounts FOR NO KEY UPDATE`)
	last := make(chan bool, 2)
	for _, a := range []offpeak.AccountID{"acct_a", "acct_b"} {
		go func() {
			_, l, err := s.DropBlob(context.Background(), store.BlobRef{Account: a, Hash: hash})
			if err != nil {
				t.Errorf("DropBlob: %v", err)
			}
			last <- l
		}()
	}
	watch := plain(t, url)
	for waiting(t, watch) < 2 {
	}
	exec(t, c, `COMMIT`)
	if a, b := <-last, <-last; a == b {
		t.Errorf("last = %v and %v, want it said once", a, b)
	}
}

// An agent that repeats what was refused, or makes leases up, does not fill the audit.
func TestStaleReportsLeaveOneAuditRow(t *testing.T) {
	url := pg.Database(t)
	s := open(t, url, postgres.Options{})
	f := storetest.NewFleet(t, s)
	node := f.Enrol(offpeak.Inventory{CPU: 1000, Memory: offpeak.GiB, Disk: offpeak.GiB})
	got, err := s.Claim(t.Context(), []store.Claim{f.Ask(f.Submit(), node)})
	if err != nil || got[0].Err != nil {
		t.Fatal(got, err)
	}
	own := got[0].Lease.ID
	for i := range 5 {
		for _, r := range []store.Report{
			{Node: node, Lease: own, Attempt: 2, Kind: store.ReportRunning},
			{Node: node, Lease: own, Attempt: 2, Kind: store.ReportFinishing},
			{Node: node, Lease: offpeak.LeaseID(fmt.Sprint("lease_made_up_", i)), Kind: store.ReportRunning},
		} {
			r.Incarnation, r.Seq = "i", int64(1000+i)
			if _, err := s.Report(t.Context(), r); err == nil {
				t.Errorf("report of attempt %d of %s was applied", r.Attempt, r.Lease)
			}
		}
	}
	var rows int
	if err := plain(t, url).QueryRow(t.Context(), `SELECT count(*) FROM audit WHERE outcome = 'stale'`).Scan(&rows); err != nil || rows != 3 {
		t.Errorf("%d audit rows, %v; want one for each kind of the lease, and one for all that are made up", rows, err)
	}
}

// What shares a transaction is counted one by one.
func TestStatsCountVerbs(t *testing.T) {
	s := open(t, pg.Database(t), postgres.Options{})
	f := storetest.NewFleet(t, s)
	was, err := s.Job(t.Context(), "", f.Submit())
	if err != nil {
		t.Fatal(err)
	}
	before := s.Stats()
	const n = 50
	var all sync.WaitGroup
	for i := range n {
		id := offpeak.JobID(fmt.Sprint("job_", i))
		all.Go(func() {
			if _, err := s.Submit(context.Background(), store.Op{ID: offpeak.OpID(id), Actor: offpeak.Actor{Account: was.Account}}, store.NewJob{ID: id, Account: was.Account, Spec: was.Spec}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if after := s.Stats(); after.Verbs-before.Verbs != n || after.Commits-before.Commits >= n {
		t.Errorf("%d verbs in %d commits, want %d in fewer", after.Verbs-before.Verbs, after.Commits-before.Commits, n)
	}
}
