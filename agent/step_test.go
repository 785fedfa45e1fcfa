package agent

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"offpeak"
	"offpeak/agent/state"
	"offpeak/wire"
)

// said is the hub's word: leases as "id", "id!reason" for one asked to stop,
// "+id" for an offer, "=id" for a lease that was taken ahead.
func said(revision int64, leases ...string) synced {
	s := wire.Sync{Revision: revision}
	for _, l := range leases {
		d := wire.Desired{State: offpeak.LeaseRunning}
		if l[0] == '+' {
			d.State, l = offpeak.LeaseOffered, l[1:]
		}
		if l[0] == '=' {
			d.State, d.Work, l = offpeak.LeasePreparing, &wire.Work{}, l[1:]
		}
		for i := range l {
			if l[i] == '!' {
				d.Stop, l = offpeak.EndReason(l[i+1:]), l[:i]
				break
			}
		}
		d.Lease = offpeak.LeaseID(l)
		s.Leases = append(s.Leases, d)
	}
	return synced{s}
}

func TestStep(t *testing.T) {
	accept := func(id offpeak.LeaseID) effect { return effect{doAccept, id, ""} }
	drop := func(id offpeak.LeaseID) effect { return effect{doDrop, id, ""} }
	type turn struct {
		event any
		want  []effect
	}
	tests := map[string][]turn{
		"an offer is accepted once": {
			{said(1, "+a"), []effect{accept("a")}},
			{said(1, "+a"), nil},
			{told{"a"}, nil},
			{said(2, "a"), nil},
		},
		"a lease that was taken ahead begins once": {
			{said(1, "=a"), []effect{accept("a")}},
			{said(2, "=a"), nil},
			{done{"a"}, nil},
			{said(2, "=a"), nil},
			{said(3), nil},
		},
		"what was taken ahead is handed back after a change of mind": {
			{ordered{state.Orders{Paused: true}}, []effect{{do: doBeat}}},
			{said(1, "=a"), []effect{{doDecline, "a", offpeak.EndDeclined}}},
		},
		"words out of order change nothing": {
			{said(5, "+a"), []effect{accept("a")}},
			{said(4), nil},
			{said(3, "+b"), nil},
			{said(5, "a!outbid"), []effect{{doStop, "a", offpeak.EndOutbid}}},
		},
		"a new session counts anew": {
			{said(9, "+a"), []effect{accept("a")}},
			{opened{}, nil},
			{said(2, "+b"), []effect{accept("b"), drop("a")}},
		},
		"what ended is not begun again by an old word": {
			{said(1, "+a"), []effect{accept("a")}},
			{done{"a"}, nil},
			{said(1, "+a"), nil},
			{said(2), nil},
			{said(3, "+a"), []effect{accept("a")}},
		},
		"a word may overtake the answer to an end": {
			{said(1, "+a"), []effect{accept("a")}},
			{ending{"a"}, nil},
			{said(2), nil},
			{done{"a"}, nil},
			{said(3, "+a"), nil},
		},
		"a lease that is gone is dropped": {
			{said(1, "+a", "+b"), []effect{accept("a"), accept("b")}},
			{said(2, "b"), []effect{drop("a")}},
			{said(3), []effect{drop("b")}},
		},
		"the first reason to stop counts": {
			{said(1, "+a"), []effect{accept("a")}},
			{said(2, "a!outbid"), []effect{{doStop, "a", offpeak.EndOutbid}}},
			{said(3, "a!cancelled"), nil},
			{ordered{state.Orders{Paused: true}}, []effect{{do: doBeat}}},
		},
		"a lease of an agent before this one is left to the heartbeat": {
			{said(1, "a"), nil},
			{said(2, "+b!cancelled"), nil},
		},
		"an adopted lease goes on": {
			{adopted{wire.Desired{Lease: "a"}}, nil},
			{said(1, "a"), nil},
			{said(2), []effect{drop("a")}},
		},
		"a paused node declines and stops": {
			{said(1, "+a"), []effect{accept("a")}},
			{ordered{state.Orders{Paused: true}}, []effect{{doStop, "a", offpeak.EndPaused}, {do: doBeat}}},
			{said(2, "a", "+b"), []effect{{doDecline, "b", offpeak.EndDeclined}}},
			{done{"b"}, nil},
			{ordered{}, []effect{{do: doBeat}}},
			{said(3, "a", "+c"), []effect{accept("c")}},
		},
		"a drained node pauses after its last lease": {
			{said(1, "+a"), []effect{accept("a")}},
			{ordered{state.Orders{Draining: true}}, []effect{{do: doBeat}}},
			{said(2, "a", "+b"), []effect{{doDecline, "b", offpeak.EndDeclined}}},
			{done{"b"}, nil},
			{done{"a"}, []effect{{do: doSettle}}},
		},
		"an idle node drains at once": {
			{ordered{state.Orders{Draining: true}}, []effect{{do: doBeat}, {do: doSettle}}},
		},
		"a full disk declines until later": {
			{diskFull{time.Hour}, []effect{{do: doBeat}}},
			{said(1, "+a"), []effect{{doDecline, "a", offpeak.EndDeclined}}},
		},
		"no new work in a conflict": {
			{conflict{true}, nil},
			{said(1, "+a"), nil},
			{conflict{false}, nil},
			{said(1, "+a"), []effect{accept("a")}},
		},
		"a name that is no folder's is not begun": {
			{said(1, "+../x", "+.", "+a/b"), nil},
		},
	}
	for name, turns := range tests {
		t.Run(name, func(t *testing.T) {
			p := newPicture()
			for i, turn := range turns {
				got := p.step(time.Second, turn.event)
				if diff := cmp.Diff(turn.want, got, cmp.AllowUnexported(effect{})); diff != "" {
					t.Fatalf("turn %d, %#v (-want +got):\n%s", i, turn.event, diff)
				}
			}
		})
	}
}

// A slow link must not look like a hub that hangs, nor a hanging hub keep a node
// from the next one.
func TestPatience(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		hubs, failures    int
		interval, timeout time.Duration
		want              time.Duration
	}{
		{1, 0, 5 * s, 60 * s, 30 * s},
		{1, 7, 5 * s, 60 * s, 30 * s},
		{2, 0, 5 * s, 60 * s, 10 * s},
		{2, 1, 5 * s, 60 * s, 10 * s},
		{2, 2, 5 * s, 60 * s, 20 * s},
		{2, 4, 5 * s, 60 * s, 30 * s},
		{3, 99, 5 * s, 60 * s, 30 * s},
		{1, 0, s / 5, 3 * s, 3 * s / 2},
		{2, 0, s / 5, 3 * s, s},
		{1, 0, s / 50, s / 2, s},
	} {
		if got := patience(c.hubs, c.failures, c.interval, c.timeout); got != c.want {
			t.Errorf("patience(%d hubs, %d failures, %s, %s) = %s, want %s", c.hubs, c.failures, c.interval, c.timeout, got, c.want)
		}
	}
}
