package placement_test

import (
	"fmt"
	"testing"
	"time"

	"offpeak"
	"offpeak/placement"
)

func TestTrial(t *testing.T) {
	start := time.Date(2026, 12, 3, 7, 0, 0, 0, time.UTC)
	var tr placement.Trial
	n := 0
	end := func(reason offpeak.EndReason) time.Duration {
		n++
		until, barred := tr.Ended(offpeak.LeaseID(fmt.Sprint("lease_", n)), reason, time.Minute, start)
		if !barred {
			return 0
		}
		return until.Sub(start)
	}
	expect := func(want time.Duration, reasons ...offpeak.EndReason) {
		t.Helper()
		for i, r := range reasons {
			if got := end(r); got != 0 && (i < len(reasons)-1 || got != want) || got == 0 && i == len(reasons)-1 && want != 0 {
				t.Fatalf("%d: %s bars for %s, want %s", i, r, got, want)
			}
		}
	}
	// Only the node's faults count, and only in a row.
	expect(0, offpeak.EndNodeError, offpeak.EndNodeDiskFull, offpeak.EndCompleted, offpeak.EndNodeError, offpeak.EndExitNonzero, offpeak.EndNodeError, offpeak.EndNodeLost, offpeak.EndCancelled)
	expect(time.Minute, offpeak.EndNodeError)
	if _, again := tr.Ended(offpeak.LeaseID(fmt.Sprint("lease_", n)), offpeak.EndNodeError, time.Minute, start.Add(time.Hour)); again {
		t.Fatal("the same end counted twice")
	}
	// What dies on a barred node bars it no longer; each failed probe twice as long.
	expect(0, offpeak.EndNodeError)
	for _, want := range []time.Duration{2, 4, 8, 16, 32, 60, 60} {
		if _, due := tr.Due(); !due {
			t.Fatal("not barred")
		}
		tr.Try()
		if _, due := tr.Due(); due {
			t.Fatal("still barred")
		}
		expect(want*time.Minute, offpeak.EndNodeError)
	}
	tr.Try()
	expect(0, offpeak.EndCompleted)
	if tr.Held() {
		t.Fatal("held against a node whose probe passed")
	}
	expect(time.Minute, offpeak.EndDeviceLost)
}

func TestBarAndTry(t *testing.T) {
	at := time.Date(2026, 12, 3, 7, 0, 0, 0, time.UTC)
	f := fleetOf(machine("a", 8000, 32*gib))
	j := job(asks(1000, gib))
	code := func() offpeak.FitCode { return f.Explain(j, 1).Nodes[0].Reason.Code }
	f.Bar("a", at)
	if why := f.Explain(j, 1).Nodes[0].Reason; why.Code != offpeak.FitQuarantined || why.Have != "several jobs that died there; one may try it at 2026-12-03 07:00 UTC" || why.Lasting() {
		t.Fatalf("%s", why)
	}
	f.Set(machine("a", 8000, 32*gib), nil)
	if code() != offpeak.FitQuarantined {
		t.Fatal("a new picture of the node ended its quarantine")
	}
	f.Try("a")
	c, ok := f.Best(j)
	if !ok {
		t.Fatal("no probe is let on")
	}
	f.Hold("a", "probe", c.Resources)
	if code() != offpeak.FitQuarantined || f.Probe("a") != "probe" {
		t.Fatal("a second job beside the probe")
	}
	f.Release("a", "probe")
	if code() != offpeak.FitOK {
		t.Fatal("no next probe")
	}
	if f.Reserve("a", "kept", c.Resources); code() != offpeak.FitOK || f.Probe("a") != "" {
		t.Fatal("what is kept free for a job is taken for a probe")
	}
	f.Hold("a", "probe", c.Resources)
	if !f.Trust("a") || f.Trust("a") || code() != offpeak.FitOK {
		t.Fatal("a trusted node takes one job only")
	}
}
