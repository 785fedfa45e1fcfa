package placement

import (
	"cmp"
	"slices"
	"time"

	"offpeak"
)

// MaxSights is how many nodes an explanation looks at for causes behind the first
// and for the nearest changes.
const MaxSights = 20_000

// Outlook says why a job fits nowhere now, and what would let it start.
type Outlook struct {
	// Causes are all filters that nodes fail, also behind the first, in the order of
	// the filters.
	Causes []Cause
	// Changes would let it start: of one thing each, and where none such helps now of
	// two. The nearest are first.
	Changes []Change
	// Seen is how many nodes were looked at.
	Seen int
}

// Change is what would have to be otherwise for a job to fit somewhere. It holds
// by Requirements.Fits.
type Change struct {
	// Parts are what changes, one or two.
	Parts []Part
	// Nodes are how many of those seen fit then.
	Nodes int
	// Requirements are the job's, so changed.
	Requirements offpeak.Requirements
	// At is when the nodes take work again, where time is a part, and First the node
	// that does first.
	At    *time.Time
	First offpeak.NodeID
	// Waits says that it has to wait for At or for another job of its account.
	Waits bool
	// Budget and Balance are what must be there to be held, where that is a part.
	Budget, Balance offpeak.MicroCredits
	// Gap says how far it is from what was asked for, for the order.
	Gap float64
}

// Part is one thing that changes: what a flag of the command line asks for.
type Part struct {
	// What is the code of a filter that it lifts.
	What offpeak.FitCode
	// Flag asks for it, "" for what only time or money brings. From is what it says now;
	// To is what it would have to say, "" for nothing at all.
	Flag, From, To string
}

const (
	maxChanges = 8
	// maxLevers bounds what is tried: a job may have 32 conditions on labels.
	maxLevers = 32
)

// trial is the nodes that some levers open.
type trial struct{ nodes []*sight }

// outlook is the work of Nearest.
type outlook struct {
	job    Job
	means  *Means
	levers []lever
	// lifts are the levers by the codes that they may lift.
	lifts map[offpeak.FitCode][]int
	// loose are the requirements without one lever's, or two's.
	loose map[[2]int]*offpeak.Requirements
}

// none is no second lever.
const none = -1

// Nearest looks at nodes, MaxSights at most, for all that keeps a job from them, and for the smallest
// changes of what it asks for that would let it start. It tries one change at a
// time, and two, so its cost is that of a few questions a node. Every change that
// it returns was put to the predicate, and to the means: what the job would then wait
// for of its account is a part of the change.
func (s *Snapshot) Nearest(job Job, means *Means) Outlook {
	nodes := s.nodes[:min(len(s.nodes), MaxSights)]
	out := Outlook{Seen: len(nodes), Causes: allCauses(job, nodes)}
	w := outlook{job: job, means: means, levers: append(levers(job.Requirements), means.levers()...), lifts: make(map[offpeak.FitCode][]int), loose: make(map[[2]int]*offpeak.Requirements)}
	for i, l := range w.levers {
		for _, code := range l.lifts {
			if !slices.Contains(w.lifts[code], i) {
				w.lifts[code] = append(w.lifts[code], i)
			}
		}
	}
	single, pairs := make(map[[2]int]*trial), make(map[[2]int]*trial)
	for i := range nodes {
		w.try(nodes[i], single, pairs)
	}
	now := false
	for i := range w.levers {
		if t := single[[2]int{i, none}]; t != nil {
			for _, c := range w.steps(i, t.nodes) {
				out.Changes = append(out.Changes, c)
				now = now || !c.Waits
			}
		}
	}
	if !now {
		for i := range w.levers {
			for k := i + 1; k < len(w.levers); k++ {
				if t := pairs[[2]int{i, k}]; t != nil {
					// What one of the two opens is open then as well.
					more := slices.Clip(t.nodes)
					for _, l := range []int{i, k} {
						if one := single[[2]int{l, none}]; one != nil {
							more = append(more, one.nodes...)
						}
					}
					if c, ok := w.both(i, k, t.nodes, more); ok {
						out.Changes = append(out.Changes, c)
					}
				}
			}
		}
	}
	slices.SortStableFunc(out.Changes, func(a, b Change) int {
		return cmp.Or(cmp.Compare(len(a.Parts), len(b.Parts)), cmp.Compare(a.Gap, b.Gap), cmp.Compare(b.Nodes, a.Nodes))
	})
	out.Changes = out.Changes[:min(len(out.Changes), maxChanges)]
	return out
}

// allCauses counts the filters that nodes fail, those behind the first too.
func allCauses(job Job, nodes []*sight) []Cause {
	a := ask{Job: job, gpus: len(job.Requirements.GPUs) > 0}
	causes := make(map[offpeak.FitCode]*Cause)
	near := make(map[offpeak.FitCode]float64)
	for i := range nodes {
		o, first := &nodes[i].offer, true
		chain(job, o, func(code offpeak.FitCode, words func() offpeak.Reason) {
			c, gap := causes[code], a.gap(o, code)
			if c == nil {
				c = &Cause{Code: code}
				causes[code] = c
			}
			if c.All++; first {
				c.Nodes++
			}
			if first = false; c.All == 1 || gap < near[code] {
				c.Nearest, near[code] = words(), gap
			}
		})
	}
	var out []Cause
	for _, code := range offpeak.FitCodes() {
		if c := causes[code]; c != nil {
			out = append(out, *c)
		}
	}
	return out
}

// without are the requirements with one lever, or two, pulled all the way.
func (w *outlook) without(i, k int) *offpeak.Requirements {
	if k < i && k != none {
		i, k = k, i
	}
	key := [2]int{i, k}
	r := w.loose[key]
	if r == nil {
		loose := *w.job.Requirements
		w.levers[i].drop(&loose)
		if k != none {
			w.levers[k].drop(&loose)
		}
		r = &loose
		w.loose[key] = r
	}
	return r
}

// refused puts requirements to a node, and to the means, as they will be with some grace:
// later it has opened, and the job's fence there has ended.
func (w *outlook) refused(r *offpeak.Requirements, s *sight, g grace) offpeak.FitCode {
	o := &s.offer
	if g.later && !o.Ready && o.Opens != nil {
		open := *o
		open.Why = s.later
		open.Ready = open.Why == offpeak.FitOK
		o = &open
	}
	if code := r.Refused(w.job.Account, w.job.Driver, o); code != offpeak.FitOK {
		return code
	}
	if _, fenced := w.job.Fenced(o.Node); fenced && !g.later {
		return offpeak.FitFence
	}
	return w.means.refused(r, o, g)
}

// when is the moment at which a node is as refused says of later: nil where it is so
// now, or where nobody knows.
func (w *outlook) when(s *sight) *time.Time {
	var at *time.Time
	if !s.offer.Ready {
		if at = s.offer.Opens; at == nil {
			return nil
		}
	}
	if until, fenced := w.job.Fenced(s.offer.Node); fenced && (at == nil || until.After(*at)) {
		at = &until
	}
	return at
}

// try finds which lever opens a node, and if none does which two.
func (w *outlook) try(s *sight, single, pairs map[[2]int]*trial) {
	code := w.refused(w.job.Requirements, s, grace{})
	if code == offpeak.FitOK {
		return
	}
	alone := false
	var found [][2]int
	for _, i := range w.lifts[code] {
		next := w.refused(w.without(i, none), s, w.levers[i].grace)
		if next == offpeak.FitOK {
			alone = true
			note(single, [2]int{i, none}, s)
			continue
		}
		for _, k := range w.lifts[next] {
			pair := [2]int{min(i, k), max(i, k)}
			if k == i || slices.Contains(found, pair) {
				continue
			}
			if w.refused(w.without(i, k), s, w.levers[i].grace.and(w.levers[k].grace)) == offpeak.FitOK {
				found = append(found, pair)
			}
		}
	}
	if !alone {
		for _, pair := range found {
			note(pairs, pair, s)
		}
	}
}

func note(to map[[2]int]*trial, key [2]int, s *sight) {
	t := to[key]
	if t == nil {
		t = &trial{}
		to[key] = t
	}
	t.nodes = append(t.nodes, s)
}

// step is what one node needs.
type step struct {
	r     offpeak.Requirements
	at    *time.Time
	node  offpeak.NodeID
	grace grace
	gap   float64
}

// steps are the smallest change of one lever that opens a node, and the smallest
// that opens half of those that it can.
func (w *outlook) steps(i int, nodes []*sight) (out []Change) {
	l := &w.levers[i]
	var all []step
	for _, s := range nodes {
		if t, ok := w.least(w.job.Requirements, s, i, grace{}); ok {
			all = append(all, t)
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortStableFunc(all, step.compare)
	for _, t := range []step{all[0], all[(len(all)-1)/2]} {
		c := w.change(t, nodes, l)
		if len(out) == 0 || c.Nodes > out[0].Nodes {
			out = append(out, c)
		}
	}
	return out
}

func (t step) compare(u step) int {
	if t.at != nil && u.at != nil {
		return cmp.Or(t.at.Compare(*u.at), cmp.Compare(t.gap, u.gap))
	}
	return cmp.Compare(t.gap, u.gap)
}

// both is the smallest change of two levers that opens a node.
// Nodes of all are counted.
func (w *outlook) both(i, k int, nodes, all []*sight) (Change, bool) {
	var best step
	found := false
	if w.levers[k].flag == gpusFlag {
		i, k = k, i // how many first: what each must be is said of those that are left
	}
	for _, s := range nodes {
		// Each with the other all the way, then both as far as they must.
		g := w.levers[i].grace.and(w.levers[k].grace)
		x, ok := w.least(w.without(k, none), s, i, g)
		if !ok {
			continue
		}
		kept := *w.job.Requirements
		w.levers[i].take(&kept, &x.r)
		y, ok := w.least(&kept, s, k, g)
		if !ok {
			continue
		}
		y.gap += x.gap
		if y.at == nil {
			y.at = x.at
		}
		if !found || y.compare(best) < 0 {
			best, found = y, true
		}
	}
	if !found {
		return Change{}, false
	}
	return w.change(best, all, &w.levers[i], &w.levers[k]), true
}

// least is the smallest change of one lever after which requirements fit a node, with
// the grace that another gives.
func (w *outlook) least(from *offpeak.Requirements, s *sight, i int, g grace) (step, bool) {
	l := &w.levers[i]
	t := step{gap: 1, node: s.offer.Node, grace: g.and(l.grace)}
	if t.grace.later {
		t.at = w.when(s)
	}
	if l.grace != (grace{}) {
		if l.grace.later && t.at == nil {
			return t, false
		}
		if t.r = *from; w.refused(from, s, t.grace) != offpeak.FitOK {
			return t, false
		}
		t.grace = w.means.settled(t.grace, from, &s.offer)
		if l.money != nil {
			have, need := l.money(t.grace)
			t.gap = 1 - ratio(int64(have), int64(need))
		}
		return t, true
	}
	for _, r := range l.values(from, &s.offer) {
		if w.refused(&r, s, t.grace) == offpeak.FitOK {
			t.r, t.gap = r, l.gap(w.job.Requirements, &r)
			t.grace = w.means.settled(t.grace, &r, &s.offer)
			return t, true
		}
	}
	return t, false
}

// change counts the nodes that a step opens, by the predicate.
func (w *outlook) change(t step, nodes []*sight, of ...*lever) Change {
	g := t.grace
	c := Change{Requirements: t.r, At: t.at, Waits: t.at != nil || g.quota, Budget: g.budget, Balance: g.balance, Gap: t.gap}
	if t.at != nil {
		c.First = t.node
	}
	for _, s := range nodes {
		at := w.when(s)
		open := t.at == nil || at != nil && !at.After(*t.at) || at == nil && s.offer.Ready
		if open && w.refused(&t.r, s, g) == offpeak.FitOK {
			c.Nodes++
		}
	}
	for _, l := range of {
		p := Part{What: l.lifts[0], Flag: l.flag}
		switch {
		case l.money != nil:
			from, to := l.money(g)
			p.From, p.To = from.String(), to.String()
		case l.text != nil:
			p.From, p.To = l.text(w.job.Requirements), l.text(&t.r)
		}
		c.Parts = append(c.Parts, p)
	}
	return c
}
