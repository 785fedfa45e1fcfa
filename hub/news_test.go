package hub_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"offpeak"
	"offpeak/hub"
	"offpeak/internal/pgtest"
	"offpeak/wire"
)

// late are two hubs on a server of their own, of which the first matches, with what
// holds up the events of both.
type late struct {
	t           *testing.T
	server      *pgtest.Server
	db          string
	lead, other *grid
}

func newLate(t *testing.T, cfg hub.Config) *late {
	t.Helper()
	l := &late{t: t, server: pgtest.Start(t)}
	l.db = l.server.Database(t)
	l.lead = several(t, 1, l.db, cfg, nil)[0]
	l.lead.eventually("the first to lead", func() bool {
		all, err := l.lead.hub.Hubs(t.Context())
		must(t, err)
		return len(all) == 1 && all[0].Leads
	})
	l.other = &grid{t: t, cfg: cfg, db: l.db, account: l.lead.account, admin: l.lead.admin}
	l.other.ops.Store(1_000_000)
	l.other.begin()
	return l
}

func (l *late) connect(url string) *pgx.Conn {
	l.t.Helper()
	c, err := pgx.Connect(l.t.Context(), url)
	must(l.t, err)
	l.t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// hold has a transaction in another database of the server write, and go on until it is
// told to end: no event that is written meanwhile is read before.
func (l *late) hold() (end func()) {
	l.t.Helper()
	c := l.connect(l.server.URL())
	for _, q := range []string{`BEGIN`, `SELECT pg_current_xact_id()`} {
		_, err := c.Exec(l.t.Context(), q)
		must(l.t, err)
	}
	return func() {
		_, err := c.Exec(l.t.Context(), `COMMIT`)
		must(l.t, err)
	}
}

// followed waits until the second hub has taken an event in that came after a cursor.
func (l *late) followed(after int64, what string) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
	defer cancel()
	for e, err := range l.other.hub.Events(ctx, "", after, "") {
		must(l.t, err)
		if e.Type == what {
			return
		}
	}
	l.t.Fatalf("never followed: %s", what)
}

func (l *late) newest() int64 {
	l.t.Helper()
	last, err := l.lead.store.LastEvent(l.t.Context())
	must(l.t, err)
	return last
}

// intent orders a node by way of one of the hubs.
func (l *late) intent(g *grid, n offpeak.NodeID, to offpeak.Intent) {
	l.t.Helper()
	_, err := g.hub.SetIntent(l.t.Context(), g.op(), g.account, n, wire.IntentChange{Intent: to})
	must(l.t, err)
}

// gets waits until a node, beating at a hub, is told of a lease.
func (l *late) gets(a *agent) {
	l.t.Helper()
	a.g.eventually("the node to be told of an offer", func() bool { return len(a.beat().Leases) > 0 })
}

// A transaction of anybody on the server holds events up. Heartbeats of idle nodes,
// which are answered from memory, bring offers of another hub all the same.
func TestOffersWhileEventsWait(t *testing.T) {
	l := newLate(t, hub.Config{Interval: time.Second, Tick: 200 * time.Millisecond, Timeout: time.Minute, Offer: 2 * time.Second})
	a := l.other.join("a")
	for range 3 {
		a.beat()
	}
	end := l.hold()
	l.lead.submit(small())
	l.gets(a)
	end()
}

// A job that one hub took in is matched by another, and its node's agent told by the
// first, while no event of either can be read yet.
func TestJobsWhileEventsWait(t *testing.T) {
	l := newLate(t, hub.Config{Interval: 20 * time.Second, Tick: time.Minute, Timeout: 3 * time.Minute, Offer: 2 * time.Minute})
	cursor := l.newest()
	a := l.lead.joinWith("a", 2000)
	l.followed(cursor, "node.online")
	changed, stop := l.other.hub.Watch(a.id)
	defer stop()
	<-changed // a watch begins with a token
	end := l.hold()
	defer end()
	// The first may be found by the comparison with the store that follows a start;
	// the next one of those is minutes away.
	for range 2 {
		id := l.other.submit(small())
		select {
		case <-changed:
		case <-time.After(time.Minute):
			t.Fatal("the agent's hub was told of nothing")
		}
		if j := l.other.job(id); j.State != offpeak.JobLeased {
			t.Errorf("the job is %s", j.State)
		}
	}
}

// What a hub did to a node is newer than what it hears later of another hub's doing
// before.
func TestOldNewsOfANode(t *testing.T) {
	l := newLate(t, hub.Config{Interval: 200 * time.Millisecond, Timeout: time.Minute, Offer: time.Minute})
	a := l.other.join("a")
	cursor := l.newest()
	end := l.hold()
	l.intent(l.lead, a.id, offpeak.NodeClosed)
	l.intent(l.other, a.id, offpeak.NodeOpen)
	end()
	l.followed(cursor, "node.closed")
	l.lead.stop() // the other matches now
	l.other.submit(small())
	l.gets(a)
}

// An offer that a hub took back holds nothing when it hears later that another hub made
// it.
func TestOldNewsOfAnOffer(t *testing.T) {
	l := newLate(t, hub.Config{Interval: 200 * time.Millisecond, Timeout: time.Minute, Offer: time.Minute})
	cursor := l.newest()
	a := l.lead.join("a")
	l.followed(cursor, "node.online")
	cursor = l.newest()
	end := l.hold()
	id := l.lead.submit(small())
	l.lead.eventually("the offer", func() bool { return l.lead.job(id).State == offpeak.JobLeased })
	_, err := l.other.hub.Cancel(t.Context(), l.other.op(), l.lead.account, id)
	must(t, err)
	end()
	l.followed(cursor, "lease.offered")
	l.lead.stop()
	l.other.submit(small())
	l.gets(a.at(l.other))
}

// A hub that missed events, because they were pruned before it read them, reads what
// they told of anew.
func TestEventsPrunedUnread(t *testing.T) {
	l := newLate(t, hub.Config{Interval: 200 * time.Millisecond, Timeout: time.Minute, Offer: time.Minute})
	a := l.lead.join("a")
	l.intent(l.lead, a.id, offpeak.NodeClosed)
	end := l.hold()
	l.intent(l.other, a.id, offpeak.NodeOpen)
	c := l.connect(l.db)
	_, err := c.Exec(t.Context(), `WITH gone AS (DELETE FROM events RETURNING cursor)
		INSERT INTO meta (key, value) SELECT 'events_pruned', CAST(max(cursor) AS TEXT) FROM gone ON CONFLICT (key) DO UPDATE SET value = excluded.value`)
	must(t, err)
	end()
	id := l.lead.submit(small())
	l.lead.eventually("the job to be leased", func() bool { return l.lead.job(id).State == offpeak.JobLeased })
}
