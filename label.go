package offpeak

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Guests says whose jobs a node takes, besides those of its own account, which
// are always welcome. It only narrows: a guest's job must be one that the node
// shares its driver for.
type Guests struct {
	// Allow, where it names any, are the only accounts that are welcome.
	Allow []AccountID `json:"allow,omitempty" doc:"only jobs of these accounts; none named is all; up to 1024"`
	// Deny are accounts that are not, whatever Allow says.
	Deny []AccountID `json:"deny,omitempty" doc:"no jobs of these accounts; up to 1024"`
}

// Welcome says whether jobs of another account are taken; a nil Guests takes all.
func (g *Guests) Welcome(a AccountID) bool {
	return g == nil || ((len(g.Allow) == 0 || slices.Contains(g.Allow, a)) && !slices.Contains(g.Deny, a))
}

// condition is one of Requirements.Match.
type condition struct {
	key, value string
	// valued says that the value counts and not only whether the label is there;
	// not turns the condition round.
	valued, not bool
}

// parseCondition reads k, !k, k=v or k!=v. It allocates nothing, since it is
// read for every offer.
func parseCondition(s string) (c condition, ok bool) {
	if i := strings.IndexByte(s, '='); i >= 0 {
		c.key, c.value, c.valued = s[:i], s[i+1:], true
		if c.key, c.not = strings.CutSuffix(c.key, "!"); c.value == "" {
			return c, false
		}
	} else {
		c.key, c.not = strings.CutPrefix(s, "!")
	}
	return c, c.key != "" && !strings.ContainsRune(c.key, '!')
}

// LabelRule says what a label of a node breaks, "" for nothing. Conditions name no
// others: there could be no such node.
func LabelRule(key, value string) string {
	switch {
	case key == "" || len(key) > maxLabel || !printable(key) || strings.TrimSpace(key) != key || strings.ContainsAny(key, "!=,"):
		return fmt.Sprintf("has a name of 1 to %d printable bytes without !, =, comma and without space at its ends", maxLabel)
	case len(value) > maxLabel || !printable(value) || strings.TrimSpace(value) != value || strings.HasPrefix(value, "="):
		return fmt.Sprintf("has a value of at most %d printable bytes that does not begin with = and has no space at its ends", maxLabel)
	}
	return ""
}

// contradicts says that no node can meet both.
func (c *condition) contradicts(d *condition) bool {
	switch {
	case c.key != d.key:
		return false
	case c.not && d.not:
		return false
	case !c.not && !d.not:
		return c.valued && d.valued && c.value != d.value
	}
	no := d
	if c.not {
		no, c = c, d
	}
	return !no.valued || c.valued && c.value == no.value
}

func (c *condition) holds(o *Offer) bool {
	have, there := o.labelled(c.key)
	if c.valued {
		return (there && have == c.value) != c.not
	}
	return there != c.not
}

// labelled is the value of a label and whether there is one; the region is one
// of them.
func (o *Offer) labelled(k string) (string, bool) {
	if k == "region" {
		return o.Region, o.Region != ""
	}
	v, there := o.Labels[k]
	return v, there
}

func (o *Offer) label(k string) string {
	v, _ := o.labelled(k)
	return v
}

// mislabelled names the first label that stands in the way, in order, so that
// the same question always gets the same answer.
func (r *Requirements) mislabelled(o *Offer) Reason {
	has := func(k string) string {
		v, there := o.labelled(k)
		switch {
		case !there || v == "":
			return "none"
		default:
			return k + "=" + v
		}
	}
	for _, k := range slices.Sorted(maps.Keys(r.Where)) {
		if v := r.Where[k]; o.label(k) != v {
			return Reason{FitLabel, k + "=" + v, has(k)}
		}
	}
	for _, text := range r.Match {
		c, ok := parseCondition(text)
		if ok && c.holds(o) {
			continue
		}
		have := has(c.key)
		if _, there := o.labelled(c.key); there && have == "none" {
			have = c.key
		}
		return Reason{FitLabel, text, have}
	}
	return Reason{Code: FitLabel}
}

// nodesAsked says which nodes a job names.
func (r *Requirements) nodesAsked() string {
	list := func(of []NodeID) string {
		const most = 3
		var names []string
		for _, id := range of[:min(len(of), most)] {
			names = append(names, string(id))
		}
		if len(of) > most {
			names = append(names, "…")
		}
		return strings.Join(names, ", ")
	}
	switch {
	case len(r.Nodes) == 0:
		return "none of " + list(r.NotNodes)
	case len(r.NotNodes) == 0:
		return list(r.Nodes)
	}
	return list(r.Nodes) + ", none of " + list(r.NotNodes)
}
