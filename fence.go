package offpeak

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Failed is how attempts of a job went wrong on one node. It holds facts only, so
// that the fence that follows from it is the same for whoever reckons it, and after
// a restart.
type Failed struct {
	Node NodeID
	// Reason and Ended are those of the newest such attempt, Times how many there
	// were. 0: none that fences; attempts were interrupted there.
	Reason EndReason
	Ended  time.Time
	Times  int
}

// LongestFence bounds how long a job is kept off a node where an attempt of it
// failed: it ends soon, so that nobody is stranded however few nodes there are.
const LongestFence = 15 * time.Minute

// declinedShare is how many times shorter a fence is where nothing had begun: the
// node declined, or did not answer.
const declinedShare = 12

// Fences says whether a job whose attempt ended so is kept off that node for a
// while: where it failed, by the job's or the node's fault, or was not taken. A node
// that fell silent, or whose owner came back, is as good as before once it takes
// work; and what the grid could not deliver it can't deliver elsewhere either.
func (r EndReason) Fences() bool {
	end, _ := EndOf(r)
	switch end.Counter {
	case CountUser:
		return true
	case CountFree:
		return r != EndGangBroken // another node's doing
	case CountNode:
		return end.Fault == FaultNode
	}
	return false
}

// Fenced returns until when the job is kept off the node: for first, doubled with
// each time there, no longer than LongestFence. The zero time is not at all.
func (f Failed) Fenced(first time.Duration) time.Time {
	if f.Times <= 0 || first <= 0 || !f.Reason.Fences() {
		return time.Time{}
	}
	if end, _ := EndOf(f.Reason); end.Counter == CountFree {
		first /= declinedShare
	}
	lasts := LongestFence
	if n := f.Times - 1; n < 30 {
		lasts = min(first<<n, LongestFence)
	}
	return f.Ended.Add(lasts)
}

// Again is what is known once another attempt has ended there.
func (f Failed) Again(reason EndReason, ended time.Time) Failed {
	if reason.Fences() {
		f.Reason, f.Ended, f.Times = reason, ended, f.Times+1
	}
	return f
}

// String is the text that a store keeps: the node alone where nothing fences.
func (f Failed) String() string {
	if f.Times == 0 {
		return string(f.Node)
	}
	return fmt.Sprintf("%s:%s:%d:%d", f.Node, f.Reason, f.Ended.UnixMicro(), f.Times)
}

// ParseFailed reads what String wrote.
func ParseFailed(s string) Failed {
	parts := strings.Split(s, ":")
	n := len(parts) - 3
	if n < 1 {
		return Failed{Node: NodeID(s)}
	}
	ended, err := strconv.ParseInt(parts[n+1], 10, 64)
	times, err2 := strconv.Atoi(parts[n+2])
	if err != nil || err2 != nil || times < 1 {
		return Failed{Node: NodeID(s)}
	}
	return Failed{Node: NodeID(strings.Join(parts[:n], ":")), Reason: EndReason(parts[n]), Ended: time.UnixMicro(ended), Times: times}
}
