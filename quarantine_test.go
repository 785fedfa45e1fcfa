package offpeak_test

import (
	"testing"
	"time"

	"offpeak"
)

func TestTrial(t *testing.T) {
	now := time.Date(2026, 12, 3, 7, 0, 0, 0, time.UTC)
	var tr offpeak.Trial
	end := func(reason offpeak.EndReason) {
		now = now.Add(time.Minute)
		tr = tr.Ended(reason, now.Add(-time.Second), now)
	}
	expect := func(times int, reasons ...offpeak.EndReason) {
		t.Helper()
		for _, r := range reasons {
			end(r)
		}
		if tr.Times != times {
			t.Fatalf("quarantined %d times, want %d: %+v", tr.Times, times, tr)
		}
		if q := tr.Quarantine(); (q != nil) != (times > 0) || q != nil && !q.Since.Equal(tr.Since) {
			t.Fatalf("%+v is seen as %+v", tr, q)
		}
	}
	// Only the node's faults count, and only in a row.
	expect(0, offpeak.EndNodeError, offpeak.EndNodeDiskFull, offpeak.EndCompleted, offpeak.EndNodeError, offpeak.EndExitNonzero, offpeak.EndNodeError, offpeak.EndNodeLost, offpeak.EndCancelled)
	expect(1, offpeak.EndNodeError)
	// What ran there already says nothing more, good or bad.
	since := tr.Since
	for _, r := range []offpeak.EndReason{offpeak.EndNodeError, offpeak.EndCompleted, offpeak.EndDeviceLost} {
		if got := tr.Ended(r, since, since.Add(time.Hour)); got != tr {
			t.Fatalf("%s of an older lease made it %+v", r, got)
		}
	}
	// Each failed probe makes it twice as long.
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		if got := tr.Quarantine().Ends(time.Minute).Sub(tr.Since); got != want*time.Minute {
			t.Fatalf("the quarantine lasts %s, want %dm", got, want)
		}
		expect(i+2, offpeak.EndOwnerReturned, offpeak.EndNodeError)
	}
	if expect(0, offpeak.EndCompleted); tr != (offpeak.Trial{}) {
		t.Fatalf("held against a node whose probe passed: %+v", tr)
	}
	expect(1, offpeak.EndDeviceLost)
}
