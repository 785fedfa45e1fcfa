package offpeak_test

import (
	"testing"
	"time"

	"offpeak"
)

// Which ends fence, and for how long, by how often it went wrong there.
func TestFenced(t *testing.T) {
	at := time.UnixMicro(1_700_000_000_123_456)
	for _, c := range []struct {
		reason offpeak.EndReason
		want   []time.Duration // one after the other, in minutes
	}{
		{offpeak.EndExitNonzero, []time.Duration{1, 2, 4, 8, 15, 15}},
		{offpeak.EndNodeError, []time.Duration{1, 2, 4, 8, 15, 15}},
		{offpeak.EndDeclined, []time.Duration{0, 0, 0, 0, 1, 2, 5, 10, 15}},
		{offpeak.EndNodeLost, []time.Duration{0, 0}},
		{offpeak.EndOwnerReturned, []time.Duration{0}},
		{offpeak.EndInputUnavailable, []time.Duration{0}},
		{offpeak.EndCompleted, []time.Duration{0}},
	} {
		f := offpeak.Failed{Node: "node_1"}
		for i, want := range c.want {
			f = f.Again(c.reason, at)
			until := f.Fenced(time.Minute)
			if got := max(until.Sub(at), 0); got/time.Minute != want || (got > 0) != c.reason.Fences() {
				t.Errorf("%s, %d times: %s, want %dm", c.reason, i+1, got, want)
			}
			if !f.Fenced(-1).IsZero() {
				t.Error("fenced without a fence")
			}
			if back := offpeak.ParseFailed(f.String()); back.String() != f.String() || !back.Fenced(time.Minute).Equal(until) {
				t.Errorf("%+v is read back as %+v", f, back)
			}
		}
		// An interruption neither ends a fence nor lengthens it.
		if was := f.Fenced(time.Minute); !f.Again(offpeak.EndNodeLost, at.Add(time.Hour)).Fenced(time.Minute).Equal(was) {
			t.Errorf("%s: an interruption moved the fence", c.reason)
		}
	}
	for _, junk := range []string{"node_1", "a:b", "a:b:c:d", "a:declined:1:x", "a:declined:1:-1"} {
		if f := offpeak.ParseFailed(junk); string(f.Node) != junk || f.Times != 0 {
			t.Errorf("%q is read as %+v", junk, f)
		}
	}
	if f := offpeak.ParseFailed("a:b:declined:1000000:2"); f.Node != "a:b" || f.Times != 2 || f.Reason != offpeak.EndDeclined {
		t.Errorf("read as %+v", f)
	}
}
