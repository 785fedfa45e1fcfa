package supervisor

import (
	"time"

	"offpeak"
)

// instant is a moment on the two clocks a supervisor reads. Boot counts
// suspended time and carries leases; Mono does not and carries run time, so
// that a laptop's sleep is neither metered nor held against the time limit.
type instant struct {
	Boot, Mono int64
}

// watch is all that decides what the passing of time does to a job. It is
// plain data; due is a pure function of it and of the moment.
type watch struct {
	lease Lease
	keep  time.Duration
	grace time.Duration
	limit time.Duration

	started instant
	// ordered and unleased are the two causes of a frozen tree; either holds it.
	ordered  bool
	unleased bool
	// unleasedAt is the Boot moment from which keep counts.
	unleasedAt int64
	// frozenAt is the Mono moment at which the tree froze, pausing for how long
	// it was frozen before that.
	frozenAt int64
	pausing  time.Duration

	noticed offpeak.EndReason
	// killAt is the Boot moment at which a noticed job is killed.
	killAt int64
	// killed is the reason of the kill; nothing is due after it but its repetition.
	killed offpeak.EndReason
}

// act is what is due.
type act int

const (
	actNone act = iota
	// actFreeze: the lease is about to run out.
	actFreeze
	// actLost: the tree was frozen for as long as it is kept.
	actLost
	// actGone: the grace of a notice is over.
	actGone
	// actLimit: the job has run as long as it may; it gets notice.
	actLimit
)

func (w *watch) frozen() bool { return w.ordered || w.unleased }

// why is the status's word for what froze the tree.
func (w *watch) why() offpeak.EndReason {
	if w.unleased {
		return offpeak.EndNodeLost
	}
	return ""
}

// ran is the run time without frozen and suspended time.
func (w *watch) ran(now instant) time.Duration {
	d := time.Duration(now.Mono-w.started.Mono) - w.pausing
	if w.frozen() {
		d -= time.Duration(now.Mono - w.frozenAt)
	}
	return max(d, 0)
}

// freezeAt is the Boot moment at which the tree freezes for lack of a lease.
func (w *watch) freezeAt() int64 { return w.lease.Granted + int64(w.lease.Timeout/4*3) }

// due says what is due now, and for how long nothing else will be; a wait of
// zero is for ever.
func (w *watch) due(now instant) (act, time.Duration) {
	if w.killed != "" {
		return actNone, 0
	}
	wait := time.Duration(0)
	until := func(left time.Duration) bool {
		if left <= 0 {
			return true
		}
		if wait == 0 || left < wait {
			wait = left
		}
		return false
	}
	if w.noticed != "" && until(time.Duration(w.killAt-now.Boot)) {
		return actGone, 0
	}
	if w.unleased {
		if until(time.Duration(w.unleasedAt-now.Boot) + w.keep) {
			return actLost, 0
		}
	} else if w.lease.Timeout > 0 && until(time.Duration(w.freezeAt()-now.Boot)) {
		return actFreeze, 0
	}
	if w.limit > 0 && w.noticed == "" && !w.frozen() && until(w.limit-w.ran(now)) {
		return actLimit, 0
	}
	return actNone, wait
}

// freeze and thaw record a change of cause; they report whether the tree's
// state must change with it.
func (w *watch) freeze(now instant, unleased bool) bool {
	was := w.frozen()
	switch {
	case unleased && !w.unleased:
		w.unleased, w.unleasedAt = true, now.Boot
	case !unleased:
		w.ordered = true
	}
	if !was {
		w.frozenAt = now.Mono
	}
	return !was
}

func (w *watch) thaw(now instant, unleased bool) bool {
	was := w.frozen()
	if unleased {
		w.unleased = false
	} else {
		w.ordered = false
	}
	if was && !w.frozen() {
		w.pausing += time.Duration(now.Mono - w.frozenAt)
		return true
	}
	return false
}

// renew takes a newer grant and reports whether it lifts the lack of a lease.
// An older grant than the one held changes nothing: requests may be late.
func (w *watch) renew(l Lease, now instant) (lifts bool) {
	if l.Granted < w.lease.Granted {
		return false
	}
	w.lease = l
	return w.unleased && (l.Timeout == 0 || now.Boot < w.freezeAt())
}

// verdict says why the job ended, when its exit alone would say exit.
func (w *watch) verdict(exit Exit) Exit {
	switch {
	case w.killed != "":
		exit.Reason = w.killed
	case w.noticed != "":
		exit.Reason = w.noticed
		exit.Detail = "left by itself after the notice"
	}
	return exit
}
