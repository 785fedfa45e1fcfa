package offpeak

import "time"

// Quarantine keeps work off a node where jobs keep dying by its fault: none until
// its end, then one job at a time, the probe, until one passed.
type Quarantine struct {
	Since time.Time `json:"since"`
	// Until is when a probe may try it, as the hub that was asked has it.
	Until *time.Time `json:"until,omitempty" doc:"from when on one job at a time may try it"`
	// Reason is that of the attempt after which it was quarantined.
	Reason EndReason `json:"reason"`
	// Times is how often it was in a row: that makes it longer.
	Times int `json:"times"`
}

// LongestQuarantine bounds the time for which a node gets no work at all.
const LongestQuarantine = time.Hour

// Ends is when a probe may try the node: after first, doubled with each time in a
// row, but no later than LongestQuarantine.
func (q *Quarantine) Ends(first time.Duration) time.Time {
	lasts := LongestQuarantine
	if n := q.Times - 1; n >= 0 && n < 16 {
		lasts = min(first<<n, LongestQuarantine)
	}
	return q.Since.Add(lasts)
}

// Trial is what is held against a node whose jobs keep dying by its fault. After a
// few in a row it is quarantined; a probe that completes ends the matter, one that
// dies makes it longer. So a broken node that ends jobs in seconds sees few of a
// long queue, and comes back by itself when it is well. It holds facts only: for how
// long is a matter of who asks. The zero value holds nothing.
type Trial struct {
	// Faults is how many attempts in a row died by the node's fault, since none is
	// quarantine yet.
	Faults int `json:"faults,omitempty"`
	// Times, Since and Reason are those of the quarantine; Times is 0 where there is
	// none.
	Times  int       `json:"times,omitempty"`
	Since  time.Time `json:"since,omitzero"`
	Reason EndReason `json:"reason,omitempty"`
}

// maxFaults is how many attempts in a row may die by a node's fault. A device that
// vanished is as good as all of them.
const maxFaults = 3

// Ended is what is held against the node once a lease has ended there that was
// offered at a moment. What ran there already when it was quarantined says nothing
// any more, neither for it nor against it.
func (t Trial) Ended(reason EndReason, offered, now time.Time) Trial {
	end, _ := EndOf(reason)
	switch {
	case t.Times > 0 && !offered.After(t.Since):
	case reason == EndCompleted:
		return Trial{}
	case end.Fault != FaultNode || end.Counter != CountNode:
		// Says nothing of the node: the job's own failure, its owner's wish, the net.
	case t.Times > 0, t.Faults+1 >= maxFaults, reason == EndDeviceLost:
		return Trial{Times: t.Times + 1, Since: now, Reason: reason}
	default:
		t.Faults++
	}
	return t
}

// Quarantine is what others see of it, nil where the node takes work.
func (t Trial) Quarantine() *Quarantine {
	if t.Times == 0 {
		return nil
	}
	return &Quarantine{Since: t.Since, Reason: t.Reason, Times: t.Times}
}
