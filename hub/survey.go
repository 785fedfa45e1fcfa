package hub

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"offpeak"
	"offpeak/placement"
	"offpeak/wire"
)

// survey is what a snapshot of the fleet says of a job that waits, or would. The
// snapshot is taken while mu is held, looked at without: that takes long.
type survey struct {
	placement.Explanation
	job   placement.Job
	fleet *placement.Snapshot
}

func newSurvey(job placement.Job, fleet *placement.Snapshot) *survey {
	return &survey{Explanation: fleet.Explain(job, explainNodes), job: job, fleet: fleet}
}

// tell puts a survey, and what a job lacks beside a node, into an explanation for
// somebody of an account, "" for an admin.
func (h *Hub) tell(ctx context.Context, s *survey, spec *offpeak.Spec, account offpeak.AccountID, own *purse, lack []lacking, out *wire.Explanation) error {
	out.Fits, out.Could = s.Fits, s.Could
	if s.Asleep {
		out.Asleep = s.fleet.Weights().Baseline
	}
	beside := causes(lack)
	if s.Fits == 0 || len(lack) > 0 {
		if err := h.foresee(ctx, s, spec, own, len(lack) == 0 || lack[0].Code != "turn", out); err != nil {
			return err
		}
	}
	for _, f := range s.Filters {
		out.Filters = append(out.Filters, wire.Filter(f))
	}
	for _, c := range s.Causes {
		out.Causes = append(out.Causes, wire.Cause{Code: c.Code, Nodes: c.Nodes, All: c.All, Example: c.Nearest})
	}
	out.Causes = append(out.Causes, beside...)
	out.Filters = withheld(out.Filters, s.fleet.Len(), beside)
	for _, v := range s.Nodes {
		o := v.Offer
		n := wire.NodeVerdict{Node: v.Node, Name: v.Name, Fits: v.Reason.OK(), Reason: v.Reason, Score: v.Score, Parts: v.Parts, Shares: v.Shares}
		if account != "" && v.Account != account {
			n.Name = "" // what other owners call their machines is theirs
		}
		if n.Fits {
			price := h.trade.Charged(o.Ask.For(*s.job.Requirements), &spec.Requirements)
			n.Price, n.Note = &price, s.job.Requirements.Tolerated(o)
			if slices.Contains(s.job.Avoid, v.Node) {
				n.Note = "An earlier attempt ended badly there, so other nodes come first."
			}
		} else if all := placement.Reasons(s.job, *o); len(all) > 1 {
			n.Also = all[1:]
		}
		out.Nodes = append(out.Nodes, n)
	}
	if s.Won != nil && len(out.Nodes) > 0 {
		out.Won = &wire.Won{Over: s.Won.Over, By: s.Won.By, Part: s.Won.Part, Sentence: why(s.Won, out.Nodes)}
	}
	return nil
}

// why says in words why the first of nodes comes first.
func why(w *placement.Won, nodes []wire.NodeVerdict) string {
	if len(nodes) < 2 || w.Over == "" {
		return "It is the only node that fits."
	}
	a, b := &nodes[0], &nodes[1]
	switch w.By {
	case "fence":
		return "An earlier attempt ended badly on the next one."
	case "speed":
		return "It is measured to be faster than the next one."
	case "price":
		return fmt.Sprintf("It is cheaper: %s against %s of the next one.", a.Price, b.Price)
	case "score":
		s := fmt.Sprintf("It scores higher: %.3f against %.3f of the next one", a.Score, b.Score)
		if w.Part != "" {
			s += fmt.Sprintf(", most of it for %s", w.Part)
		}
		return s + "."
	}
	return "It is as good as the next one: between the two the job's id decides."
}

// foreseenAsks is how many nodes that ask nothing now are looked at for when they will.
const foreseenAsks = 64

// foresee finds all causes and, where a change may help, the nearest ones.
func (h *Hub) foresee(ctx context.Context, s *survey, spec *offpeak.Spec, own *purse, helps bool, out *wire.Explanation) error {
	asks, err := h.trade.Upcoming(ctx, s.fleet.Unasked(foreseenAsks)...)
	if err != nil {
		return err
	}
	for id, next := range asks {
		s.fleet.Will(id, next.At, next.Ask)
	}
	look := s.fleet.Nearest(s.job, &own.Means)
	if !helps {
		look.Changes = nil
	}
	if look.Seen < s.fleet.Len() {
		out.Seen = look.Seen
	}
	for _, c := range look.Causes {
		if i := slices.IndexFunc(s.Causes, func(d placement.Cause) bool { return d.Code == c.Code }); i >= 0 {
			s.Causes[i].All = c.All
		} else {
			c.Nodes = 0
			s.Causes = append(s.Causes, c)
		}
	}
	now := h.env.Now()
	for _, c := range look.Changes {
		if n, ok := h.nearest(s, &c, spec, now); ok {
			out.Nearest = append(out.Nearest, n)
		}
	}
	return nil
}

// nearest puts a change into the words of who submitted the job. ok is false where
// such a job could not be submitted: a premium may take its bid out of bounds.
func (h *Hub) nearest(s *survey, c *placement.Change, spec *offpeak.Spec, now time.Time) (n wire.Nearest, ok bool) {
	changed := *spec
	changed.Requirements = c.Requirements
	r := &changed.Requirements
	r.MaxPrice = spec.Requirements.MaxPrice
	if c.Budget > 0 {
		changed.Limits.Budget = &c.Budget
	}
	n = wire.Nearest{Nodes: c.Nodes, At: c.At}
	var words []string
	for _, p := range c.Parts {
		part := wire.NearestPart{Code: p.What, Flag: p.Flag, From: p.From, To: p.To}
		more := ""
		switch was := &spec.Requirements; p.Flag {
		case "--max-price":
			bid := h.trade.Charged(*c.Requirements.MaxPrice, was)
			r.MaxPrice = &bid
			part.From, part.To = "", bid.String()
			if was.MaxPrice != nil {
				part.From, more = was.MaxPrice.String(), fmt.Sprintf("%s more", bid-*was.MaxPrice)
			}
		case "--memory":
			more = less(was.Memory - r.Memory)
		case "--disk":
			more = less(was.Disk - r.Disk)
		case "--vram":
			if len(was.GPUs) == 1 && len(r.GPUs) == 1 {
				more = less(was.GPUs[0].VRAM - r.GPUs[0].VRAM)
			}
		}
		n.Parts = append(n.Parts, part)
		words = append(words, changedTo(&part, more, c.At, s.called(c.First), now))
	}
	n.Sentence = strings.Join(words, " and ")
	// What is held against offers is not above what this bid can take.
	if eff, most := h.trade.Effective(*r), c.Requirements.MaxPrice; most != nil && eff.MaxPrice != nil && *eff.MaxPrice < *most {
		return n, false
	}
	return n, changed.Validate() == nil
}

// called is how the job's owner knows a node: other owners' names are theirs.
func (s *survey) called(id offpeak.NodeID) string {
	for i := range s.Nodes {
		if v := &s.Nodes[i]; v.Node == id && v.Account == s.job.Account && v.Name != "" {
			return v.Name
		}
	}
	return string(id)
}

// less says by how much a size shrinks, where that is a round one.
func less(by offpeak.Bytes) string {
	if s := by.String(); by > 0 && !strings.Contains(s, ".") {
		return s + " less"
	}
	return ""
}

// changedTo puts one part of a change into words.
func changedTo(p *wire.NearestPart, more string, at *time.Time, first string, now time.Time) string {
	switch {
	case p.Code == offpeak.FitQuota && p.Flag == "":
		return "once another job of its account ends"
	case p.Code == offpeak.FitBalance && p.Flag == "":
		return fmt.Sprintf("with %s credits available instead of %s", p.To, p.From)
	case p.Flag == "":
		what := "once its owner's hours open"
		switch p.Code {
		case offpeak.FitQuarantined:
			what = "once a node's quarantine ends"
		case offpeak.FitNoAsk:
			what = "once its owner's ask is in force"
		case offpeak.FitFence:
			what = "once the fence on " + first + " ends"
		}
		if at == nil {
			return what
		}
		return fmt.Sprintf("%s, in %s (%s UTC)", what, max(at.Sub(now), 0).Round(time.Second), at.UTC().Format(time.DateTime))
	case p.To == "":
		return "without " + p.Flag + " " + p.From
	}
	s := p.Flag + " " + p.To
	if p.From != "" {
		s += " instead of " + p.From
	}
	if more != "" {
		s += " (" + more + ")"
	}
	return s
}
