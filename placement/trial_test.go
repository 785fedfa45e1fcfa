package placement_test

import (
	"testing"
	"time"

	"offpeak"
	"offpeak/placement"
)

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
	// What another hub places on a node that is barred here is its probe, and so is what
	// runs there when the hub begins.
	f.Bar("a", at)
	f.Hold("a", "theirs", c.Resources)
	if f.Try("a"); f.Probe("a") != "theirs" || code() != offpeak.FitQuarantined {
		t.Fatal("another hub's probe is not known as one")
	}
	f.Release("a", "theirs")
	f.Bar("a", at)
	f.Set(machine("a", 8000, 32*gib), []placement.Holding{{Lease: "before", Resources: c.Resources}})
	f.Probing("a", "before")
	f.Probing("a", "none")
	if f.Try("a"); f.Probe("a") != "before" || code() != offpeak.FitQuarantined {
		t.Fatal("a probe from before is not known as one")
	}
	if f.Set(machine("a", 8000, 32*gib), nil); code() != offpeak.FitOK {
		t.Fatal("a probe that is gone keeps the next one out")
	}
	f.Hold("a", "probe", c.Resources)
	if !f.Trust("a") || f.Trust("a") || code() != offpeak.FitOK {
		t.Fatal("a trusted node takes one job only")
	}
}
