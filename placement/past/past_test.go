package past

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"offpeak"
	"offpeak/placement"
)

var start = time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)

func after(d time.Duration) time.Time { return start.Add(d) }

func lease(i int) offpeak.LeaseID { return offpeak.LeaseID(fmt.Sprint("lease_", i)) }

// What each end says of the node that it ended on.
func TestEveryEndIsJudged(t *testing.T) {
	want := map[offpeak.EndReason]verdict{
		offpeak.EndCompleted: kept, offpeak.EndExitNonzero: kept, offpeak.EndSignalled: kept, offpeak.EndOutOfMemory: kept,
		offpeak.EndDiskLimit: kept, offpeak.EndVRAMLimit: kept, offpeak.EndTimeLimit: kept, offpeak.EndCommandNotFound: kept, offpeak.EndOutputsMissing: kept,
		offpeak.EndNodeLost: lost, offpeak.EndNodeRestarted: lost, offpeak.EndNodeError: lost, offpeak.EndNodeDiskFull: lost,
		offpeak.EndSupervisorLost: lost, offpeak.EndDeviceLost: lost, offpeak.EndPrepareTimeout: lost,
		offpeak.EndOwnerReturned: lost, offpeak.EndHot: lost, offpeak.EndOnBattery: lost, offpeak.EndOutsideSchedule: lost,
		offpeak.EndPaused: lost, offpeak.EndMetered: lost, offpeak.EndSleeping: lost, offpeak.EndDrained: lost, offpeak.EndNodeRemoved: lost,
	}
	for _, e := range offpeak.Ends() {
		if got := judge(e.Reason); got != want[e.Reason] {
			t.Errorf("%s is judged %d, want %d", e.Reason, got, want[e.Reason])
		}
	}
	if judge("made_up") != nothing {
		t.Error("an end that is none says something")
	}
}

func TestReliability(t *testing.T) {
	for name, c := range map[string]struct {
		kept, lost int64
		later      time.Duration
		want       float64
		known      bool
	}{
		"nothing is known":  {0, 0, 0, 0.9, false},
		"one is lost":       {0, 1, 0, 0.72, false},
		"three are lost":    {0, 3, 0, 3.6 / 7, true},
		"ten are kept":      {10, 0, 0, 13.6 / 14, true},
		"half":              {50, 50, 0, 53.6 / 104, true},
		"long ago":          {0, 8, HalfLife, 3.6 / 8, true},
		"so long ago":       {0, 8, 3 * HalfLife, 3.6 / 5, false},
		"it is all but new": {0, 1000, 100 * HalfLife, 0.9, false},
	} {
		var p Node
		p.Ends(offpeak.EndCompleted, c.kept, start)
		p.Ends(offpeak.EndNodeLost, c.lost, start)
		if got, known := p.Reliability(after(c.later)); math.Abs(got-c.want) > 1e-9 || known != c.known {
			t.Errorf("%s: %g, %v; want %g, %v", name, got, known, c.want, c.known)
		}
	}
	// Who tells twice is heard once, also when another ended between.
	var p, q Node
	for _, i := range []int{1, 2, 1, 2, 3} {
		p.Ended(lease(i), offpeak.EndNodeLost, start)
	}
	q.Ends(offpeak.EndNodeLost, 3, start)
	a, _ := p.Reliability(start)
	if b, _ := q.Reliability(start); a != b {
		t.Errorf("told twice: %g, want %g", a, b)
	}
}

func TestReturn(t *testing.T) {
	const h = time.Hour
	for name, c := range map[string]struct {
		stays []time.Duration
		been  time.Duration
		from  time.Duration
		to    time.Duration
		known bool
	}{
		"nothing is known":           {nil, 0, 4 * h, 4 * h, false},
		"it never was wanted back":   {nil, 100 * h, 100 * h, 100 * h, true},
		"short ones":                 {many(20, h/2), 0, 30 * time.Minute, 80 * time.Minute, true},
		"longer than the short ones": {many(20, h/2), 2 * h, 4 * h, 4 * h, true},
		"some are long":              {append(many(10, h/4), many(10, 20*h)...), 0, 6 * h, 16 * h, true},
		"the short ones are over":    {append(many(10, h/4), many(10, 20*h)...), h, 12 * h, 22 * h, true},
		"two say too little":         {many(2, h), 0, h, 4 * h, false},
		"a year, long ago":           {many(3, 365*24*h), 0, 24 * h, 1000 * h, false},
	} {
		var p Node
		at := start
		for _, d := range c.stays {
			p.Says(offpeak.NodeAvailable, at)
			p.Says(offpeak.NodeAvailable, at.Add(d/2)) // said again
			at = at.Add(d)
			p.Says(offpeak.NodeInUse, at)
		}
		p.Says(offpeak.NodeAvailable, at)
		if got, known := p.Return(at.Add(c.been)); got < c.from || got > c.to || known != c.known {
			t.Errorf("%s: %s, %v; want from %s to %s, %v", name, got, known, c.from, c.to, c.known)
		}
	}
}

func many(n int, d time.Duration) (out []time.Duration) {
	for range n {
		out = append(out, d)
	}
	return out
}

// A node that is offline is not available, whatever its agent said last.
func TestOfflineEndsAStay(t *testing.T) {
	var p Node
	for i := range 4 {
		at := after(time.Duration(i) * 24 * time.Hour)
		p.Heard(offpeak.NodeOnline, at)
		p.Says(offpeak.NodeAvailable, at)
		p.Heard(offpeak.NodeLate, at.Add(time.Minute))
		p.Heard(offpeak.NodeOffline, at.Add(time.Hour))
		p.Says(offpeak.NodeAvailable, at.Add(2*time.Hour))
	}
	at := after(96 * time.Hour)
	if p.since != 0 || p.stays[stretch(time.Hour)] < 3 {
		t.Errorf("%+v", p)
	}
	p.Since(start)
	if p.since != 0 {
		t.Error("it is offline and available")
	}
	p.Heard(offpeak.NodeOnline, at)
	p.Since(at.Add(-time.Hour))
	if want := at.Add(-time.Hour).UnixMicro(); p.since != want {
		t.Errorf("since %d, want %d", p.since, want)
	}
}

func TestBook(t *testing.T) {
	var b Book
	p := b.Open("a", offpeak.NodeAvailable, offpeak.NodeOnline, start)
	if b.Open("a", offpeak.NodeInUse, offpeak.NodeOffline, after(time.Hour)) != p || p.since != start.UnixMicro() || b.Of("a") != p || b.Of("b") != nil {
		t.Errorf("the book has %+v", p)
	}
	if b.Open("b", offpeak.NodeAvailable, offpeak.NodeOffline, start).since != 0 || len(b.Nodes()) != 2 {
		t.Error("an offline node is available")
	}
	if b.Forget("a"); b.Of("a") != nil || len(b.Nodes()) != 1 {
		t.Error("it is there still")
	}
}

// happening is one thing that is told of a node.
type happening struct {
	kind   int
	reason offpeak.EndReason
	at     time.Duration
}

func (p *Node) take(i int, e happening) {
	at := after(e.at)
	switch e.kind {
	case 0:
		p.Ended(lease(i), e.reason, at)
	case 1:
		p.Says(offpeak.NodeAvailable, at)
	case 2:
		p.Says(offpeak.NodeInUse, at)
	case 3:
		p.Heard(offpeak.NodeOffline, at)
	case 4:
		p.Heard(offpeak.NodeOnline, at)
	}
}

func happenings(t *rapid.T) []happening {
	var reasons []offpeak.EndReason
	for _, e := range offpeak.Ends() {
		reasons = append(reasons, e.Reason)
	}
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) happening {
		return happening{
			kind: rapid.IntRange(0, 4).Draw(t, "kind"), reason: rapid.SampledFrom(reasons).Draw(t, "reason"),
			at: time.Duration(rapid.Int64Range(-int64(Horizon), int64(Horizon)).Draw(t, "at")),
		}
	}), 0, 40).Draw(t, "happenings")
}

// Whatever is told, in whatever order and at whatever times: shares are numbers from
// 0 to 1, times are above 0, the same past gives the same answer, and another loss
// never makes a node better, nor another lease that it kept worse.
func TestWhateverIsTold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p, twin Node
		list := happenings(t)
		for i, e := range list {
			p.take(i, e)
			twin.take(i, e)
		}
		now := after(time.Duration(rapid.Int64Range(int64(Horizon), 100*int64(Horizon)).Draw(t, "now")))
		share, _ := p.Reliability(now)
		left, _ := p.Return(now)
		if !(share > 0 && share <= 1) || left <= 0 {
			t.Fatalf("reliability %g, return %s", share, left)
		}
		m := p.Into(placement.Metrics{CPUSpeed: 3}, now)
		if !(m.Reliability > 0 && m.Reliability <= 1) || math.Abs(m.Reliability-share) > 1.0/shareSteps || m.Return <= 0 || m.CPUSpeed != 3 {
			t.Fatalf("metrics %+v of %g and %s", m, share, left)
		}
		if m != twin.Into(placement.Metrics{CPUSpeed: 3}, now) {
			t.Fatal("the same past gives another answer")
		}
		at := after(time.Duration(rapid.Int64Range(-int64(Horizon), int64(Horizon)).Draw(t, "once more")))
		worse, better := p, p
		worse.Ended("lease_x", offpeak.EndNodeLost, at)
		better.Ended("lease_x", offpeak.EndCompleted, at)
		// Where the past is moved to a later moment it is rounded anew.
		const eps = 1e-9
		if got, _ := worse.Reliability(now); got > share+eps {
			t.Fatalf("a loss raised it from %g to %g", share, got)
		}
		if got, _ := better.Reliability(now); got < share-eps {
			t.Fatalf("a lease that was kept lowered it from %g to %g", share, got)
		}
	})
}

// Ends count alike in whatever order they are told.
func TestOrderOfEndsSaysNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := happenings(t)
		var p, q Node
		for _, e := range list {
			p.Ends(e.reason, 1, after(e.at))
		}
		for _, e := range rapid.Permutation(list).Draw(t, "order") {
			q.Ends(e.reason, 1, after(e.at))
		}
		a, _ := p.Reliability(after(Horizon))
		if b, _ := q.Reliability(after(Horizon)); math.Abs(a-b) > 1e-9 {
			t.Fatalf("%g or %g", a, b)
		}
	})
}

// BenchmarkEnded is what the end of a lease costs, with what is expected after it.
func BenchmarkEnded(b *testing.B) {
	var p Node
	p.Says(offpeak.NodeAvailable, start)
	var m placement.Metrics
	for i := range b.N {
		at := after(time.Duration(i) * time.Second)
		p.Ended("", offpeak.EndCompleted, at)
		p.last = [4]offpeak.LeaseID{"x", "y", "z", "u"}
		m = p.Into(m, at)
	}
	if m.Reliability == 0 {
		b.Fatal(m)
	}
}
