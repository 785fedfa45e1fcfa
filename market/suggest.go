package market

import (
	"cmp"
	"fmt"
	"strings"

	"offpeak"
)

// Suggestion is a proposed price and the sum that leads to it.
type Suggestion struct {
	Price offpeak.Price `json:"price"`
	// Lines are the sum: their changes add up to the price.
	Lines []Line `json:"lines"`
	// LeftOut are the rules that had nothing to say, each with why.
	LeftOut []LeftOut `json:"left_out,omitempty"`
}

// LeftOut says what is not in a sum.
type LeftOut struct {
	// Rule is the rule's name.
	Rule string `json:"rule"`
	Why  string `json:"why"`
	// Needs is the fact that would bring it in, "" where the owner can't tell.
	Needs string `json:"needs,omitempty"`
}

// lacking is a rule that can tell why it has nothing to say.
type lacking interface {
	Lacks(f *Facts) LeftOut
}

// Line is what one rule did.
type Line struct {
	Rule string `json:"rule"`
	// Change is what it added, negative for what it took away; Price the sum so far.
	Change offpeak.Price `json:"change"`
	Price  offpeak.Price `json:"price"`
	Why    string        `json:"why"`
}

// floorLine is the name of the line that no rule writes.
const floorLine = "floor"

// DefaultRules are what an hour costs, half as much again where all is taken, and
// what the market pays if that is more.
func DefaultRules() []Rule {
	return []Rule{
		Electricity{}, Depreciation{},
		Demand{Factors: []Factor{{Idle: Whole, Full: 15_000}}},
		Clear{},
	}
}

// Suggest proposes what to ask for an hour. The rules apply in turn, to nothing
// at first; what one of them asks above offpeak.MaxPrice or below nothing counts
// as that bound, and the owner's floor has the last word. It returns
// *offpeak.FieldErrors for facts, or rules that can tell, out of bounds.
func Suggest(f Facts, rules []Rule) (Suggestion, error) {
	if err := f.Validate(); err != nil {
		return Suggestion{}, fmt.Errorf("suggest: %w", err)
	}
	var s Suggestion
	for _, r := range rules {
		if v, ok := r.(interface{ Validate() error }); ok {
			if err := v.Validate(); err != nil {
				return Suggestion{}, fmt.Errorf("suggest: rule %s: %w", r.Name(), err)
			}
		}
		price, why := r.Adjust(s.Price, &f)
		if bounded := min(max(price, 0), offpeak.MaxPrice); bounded != price {
			price, why = bounded, strings.TrimPrefix(why+"; bounded to "+bounded.String(), "; ")
		}
		if price != s.Price || why != "" {
			s.add(r.Name(), price, why)
		} else if l, ok := r.(lacking); ok {
			out := l.Lacks(&f)
			out.Rule = r.Name()
			s.LeftOut = append(s.LeftOut, out)
		}
	}
	if f.Floor > s.Price {
		s.add(floorLine, f.Floor, "never less")
	}
	return s, nil
}

func (s *Suggestion) add(rule string, price offpeak.Price, why string) {
	s.Lines = append(s.Lines, Line{Rule: rule, Change: price - s.Price, Price: price, Why: why})
	s.Price = price
}

// String shows the sum as people add up: a line each, and the result.
func (s Suggestion) String() string {
	rows := make([][3]string, 0, len(s.Lines)+1)
	for _, l := range s.Lines {
		change := l.Change.String()
		if l.Change >= 0 {
			change = "+" + change
		}
		rows = append(rows, [3]string{l.Rule, change, l.Why})
	}
	rows = append(rows, [3]string{"ask", s.Price.String(), ""})
	var width [2]int
	for _, r := range rows {
		width[0], width[1] = max(width[0], len(r[0])), max(width[1], len(r[1]))
	}
	var b strings.Builder
	for _, r := range rows {
		b.WriteString(strings.TrimRight(fmt.Sprintf("%-*s  %*s  %s", width[0], r[0], width[1], r[1], r[2]), " ") + "\n")
	}
	return b.String()
}

// Auto says how an ask follows the market.
type Auto struct {
	// Floor is the least that is asked.
	Floor offpeak.Price `json:"floor"`
	// Discount is by how much to stay below what is usually paid.
	Discount BasisPoints `json:"discount_basis_points"`
	// Slack is by how much of itself an ask has to be off before it is changed, so
	// that a price which trembles does not change a million asks.
	Slack BasisPoints `json:"slack_basis_points"`
}

// Validate returns the first *offpeak.FieldError for what is out of bounds.
func (a *Auto) Validate() error {
	return cmp.Or(
		within("auto.floor", int64(a.Floor), 0, int64(offpeak.MaxPrice), priced),
		within("auto.discount_basis_points", int64(a.Discount), 0, int64(Whole), percent),
		within("auto.slack_basis_points", int64(a.Slack), 0, int64(Whole), percent),
	)
}

// Next returns what to ask after ask, given what was paid of late: the usual price
// less the discount, never below the floor. Without trades, and where it is off
// by no more than the slack, the ask stays, or is raised to the floor.
func (a *Auto) Next(ask offpeak.Price, recent []offpeak.Candle) offpeak.Price {
	ask = min(max(ask, a.Floor), offpeak.MaxPrice)
	paid, known := Clearing(recent)
	if !known {
		return ask
	}
	target := min(max(discounted(paid, a.Discount), a.Floor), offpeak.MaxPrice)
	if off := max(target-ask, ask-target); off <= offpeak.Price(share(int64(ask), int64(a.Slack), int64(Whole))) {
		return ask
	}
	return target
}

// Schedule suggests an ask for each hour of a day and joins equal hours: windows
// for a plan, by the clock on the owner's wall, with one price for both uses. It
// returns what Suggest returns.
func Schedule(f Facts, rules []Rule) ([]Window, error) {
	var out []Window
	for h := range 24 {
		f.Hour = h
		s, err := Suggest(f, rules)
		if err != nil {
			return nil, err
		}
		w := Window{Days: Everyday, From: Clock(h * 60), To: Clock(h*60 + 60), Ask: offpeak.Ask{GPU: s.Price, CPU: s.Price}}
		if last := len(out) - 1; last >= 0 && out[last].Ask == w.Ask {
			out[last].To = w.To
			continue
		}
		out = append(out, w)
	}
	return out, nil
}
