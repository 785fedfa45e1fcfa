package postgres_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"offpeak"
	"offpeak/store"
	"offpeak/store/postgres"
	"offpeak/store/storetest"
)

// pausable are two hubs on one database. The clock of the first, by which it notices
// that the database's was set, stands still for a while when its machine is paused.
func pausable(t *testing.T) (a, b *postgres.Store, pause func(d time.Duration)) {
	url := pg.Database(t)
	began := time.Now()
	var paused atomic.Int64
	a = open(t, url, postgres.Options{Hub: "hub_a", Elapsed: func() time.Duration { return time.Since(began) - time.Duration(paused.Load()) }})
	b = open(t, url, postgres.Options{Hub: "hub_b", Elapsed: func() time.Duration { return time.Since(began) }})
	return a, b, func(d time.Duration) {
		t.Helper()
		for _, s := range []*postgres.Store{a, b} {
			if _, err := s.Now(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		paused.Store(int64(d))
	}
}

// Two hubs whose clocks disagree by a pause of one's machine come to agree: they do
// not correct each other for ever.
func TestPausedHubAgrees(t *testing.T) {
	a, b, pause := pausable(t)
	pause(time.Minute)
	apart := 0
	for range 10 {
		at, err := a.Now(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		other, err := b.Now(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if at.Sub(other).Abs() > 10*time.Second {
			apart++
		}
	}
	if apart > 1 {
		t.Errorf("in %d of 10 rounds the two differ by a minute", apart)
	}
}

// A lease that was granted by a hub whose machine had been paused is not taken back by
// another a moment later.
func TestPausedHubsLeasesLast(t *testing.T) {
	a, b, pause := pausable(t)
	f := storetest.NewFleet(t, a)
	node := f.Enrol(offpeak.Inventory{CPU: 1000, Memory: offpeak.GiB, Disk: offpeak.GiB})
	c := f.Ask(f.Submit(), node)
	c.OfferFor = 2 * time.Minute
	pause(5 * time.Minute)
	got, err := a.Claim(t.Context(), []store.Claim{c})
	if err != nil || got[0].Err != nil {
		t.Fatal(got, err)
	}
	asOf, err := b.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if ended, err := b.Expire(t.Context(), asOf, 10); err != nil || len(ended) > 0 {
		t.Errorf("Expire = %d leases, %v: the lease was granted for two minutes, to %s, at %s it is", len(ended), err, got[0].Lease.ExpiresAt, asOf)
	}
}

// A hub for which the database's clock jumps at each look runs no verb, and above all
// none outside a transaction, where what it did before it failed would stay.
func TestNoVerbOutsideATransaction(t *testing.T) {
	url := pg.Database(t)
	began := time.Now()
	var looks atomic.Int64
	var uneven atomic.Bool
	s := open(t, url, postgres.Options{Hub: "hub_a", Elapsed: func() time.Duration {
		if uneven.Load() {
			looks.Add(1)
		}
		return time.Since(began) + time.Duration(looks.Load())*time.Hour
	}})
	bootstrap(t, s)
	uneven.Store(true)
	// The member is written before the token, whose id is taken.
	_, err := s.AddMember(t.Context(), op("uneven"), offpeak.Member{ID: "member_b", Account: "acct_a", Name: "b", Role: offpeak.RoleOwner},
		offpeak.Token{ID: "tok_a", Account: "acct_a", Member: "member_b", Role: offpeak.RoleOwner, Name: "b", SecretHash: make([]byte, 32), UsesLeft: -1})
	uneven.Store(false)
	if err == nil {
		t.Error("AddMember with the id of another token was done")
	}
	var left int
	if err := plain(t, url).QueryRow(t.Context(), `SELECT count(*) FROM members WHERE id = 'member_b'`).Scan(&left); err != nil || left > 0 {
		t.Errorf("the refused verb left %d members, %v", left, err)
	}
}

// A blob that ceases to be in use while unused ones are looked for is found by the next
// look: the note that it may be unused stays.
func TestUnusedKeepsTheNote(t *testing.T) {
	url := pg.Database(t)
	var at atomic.Int64
	at.Store(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixMicro())
	s := open(t, url, postgres.Options{Now: func() time.Time { return time.UnixMicro(at.Load()) }})
	bootstrap(t, s)
	hash := offpeak.Hash(strings.Repeat("a", 64))
	if err := s.AddBlob(t.Context(), "acct_a", hash, 1); err != nil {
		t.Fatal(err)
	}
	c := plain(t, url)
	exec(t, c, `INSERT INTO checkpoints (job, account, attempt, lease, name, tree, metered, size, at) VALUES ('j', 'acct_a', 1, 'l', 'n', $1, 0, 1, 1)`, string(hash))
	at.Add(int64(48 * time.Hour / time.Microsecond))
	exec(t, c, `BEGIN`)
	exec(t, c, `DELETE FROM checkpoints`) // a trigger notes what it referred to
	looked := make(chan error, 1)
	go func() {
		_, err := s.Unused(context.Background(), 10)
		looked <- err
	}()
	for watch, over := plain(t, url), false; !over && waiting(t, watch) == 0; {
		select {
		case err := <-looked:
			over = true
			looked <- err
		default:
		}
	}
	exec(t, c, `COMMIT`)
	if err := <-looked; err != nil {
		t.Fatal(err)
	}
	if refs, err := s.Unused(t.Context(), 10); err != nil || len(refs) != 1 {
		t.Errorf("nothing refers to the blob any more, and Unused = %v, %v", refs, err)
	}
}
