package hardware

import (
	"time"

	"offpeak"
)

// fallAfter is how long others must have held less before more is offered: what
// a game gave back it may take again for the next level. Who plays with made-up
// devices waits less.
const (
	fallAfter     = 30 * time.Second
	fallAfterFake = 2 * time.Second
)

// steady is what is offered of one device: all its memory, less what others hold
// and a reserve. Less is offered at once, more only after a while, and both in
// steps, so that a desktop that comes and goes by a few windows says nothing.
type steady struct {
	total offpeak.Bytes
	// kept is what is not offered, in steps; most is the most that was held by
	// others since lower began.
	kept, most offpeak.Bytes
	lower      time.Time
}

// step is the grain of what is offered: less than a hundredth, so that rounding alone
// never makes a card miss the size in its name by more than is tolerated.
func step(total offpeak.Bytes) offpeak.Bytes {
	const grain = 32 * offpeak.MiB
	return max(total/256/grain, 1) * grain
}

// reserve is left to those who hold some of a device already: a desktop that
// can't open one more window is the owner's loss. Where nobody else is, there is
// none, nor for the little that a driver takes.
func reserve(total, foreign offpeak.Bytes) offpeak.Bytes {
	if foreign <= total/64 {
		return 0
	}
	return min(256*offpeak.MiB, total/32)
}

// keep is what is not offered, in steps.
func keep(total, foreign offpeak.Bytes) offpeak.Bytes {
	grain := step(total)
	want := foreign + reserve(total, foreign)
	return min((want+grain-1)/grain*grain, total)
}

// offer is what a job can have now; after is how long others must have held less.
func (s *steady) offer(now time.Time, after time.Duration, total, foreign offpeak.Bytes) offpeak.Bytes {
	want := keep(total, foreign)
	switch {
	case s.total != total || want > s.kept:
		*s = steady{total: total, kept: want}
	case want > 0 && want >= s.kept-step(total):
		// One step less is no news: it would go to and fro at the edge.
		s.lower = time.Time{}
	case want == s.kept:
	case s.lower.IsZero():
		s.lower, s.most = now, want
	default:
		s.most = max(s.most, want)
		if now.Sub(s.lower) >= after {
			*s = steady{total: total, kept: s.most}
		}
	}
	return total - s.kept
}
