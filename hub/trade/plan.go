package trade

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"offpeak"
	"offpeak/market"
	"offpeak/wire"
)

// plan is what an owner set, as the market reads it.
type plan struct {
	market.Plan
	// auto is nil where the ask does not follow the market; cpu is the same for
	// work without devices.
	auto, cpu *market.Auto
}

// read turns what was given into a plan. It returns *offpeak.FieldErrors.
func read(in wire.AskPlan) (p plan, err error) {
	if in.Ask == nil {
		return p, &offpeak.FieldError{Field: "ask", Rule: "is missing: name a price"}
	}
	if p.Base, err = prices("ask", in.Ask); err != nil {
		return p, err
	}
	if p.Floor, err = prices("floor", in.Floor); err != nil {
		return p, err
	}
	if p.Base.GPU < p.Floor.GPU || p.Base.CPU < p.Floor.CPU {
		return p, &offpeak.FieldError{Field: "ask", Value: market.FormatAsk(p.Base), Rule: "is not below the floor, " + market.FormatAsk(p.Floor)}
	}
	if len(in.Windows) > market.MaxWindows {
		return p, &offpeak.FieldError{Field: "windows", Value: fmt.Sprint(len(in.Windows)), Rule: fmt.Sprintf("are at most %d", market.MaxWindows)}
	}
	for i, text := range in.Windows {
		w, err := market.ParseWindow(text)
		if err != nil {
			return p, at(fmt.Sprintf("windows[%d]", i), err)
		}
		p.Windows = append(p.Windows, w)
	}
	if p.Zone, err = zone(in.Zone); err != nil {
		return p, err
	}
	if in.From != nil {
		p.From = *in.From
	}
	if in.Until != nil {
		p.Until = *in.Until
	}
	if a := in.Auto; a != nil {
		p.auto = &market.Auto{Floor: p.Floor.GPU, Discount: market.BasisPoints(a.Discount), Slack: market.BasisPoints(a.Slack)}
		p.cpu = &market.Auto{Floor: p.Floor.CPU, Discount: p.auto.Discount, Slack: p.auto.Slack}
		if err := p.auto.Validate(); err != nil {
			return p, err
		}
	}
	return p, p.Validate()
}

func prices(field string, in *wire.Prices) (offpeak.Ask, error) {
	switch {
	case in == nil:
		return offpeak.Ask{}, nil
	case in.GPU == nil:
		return offpeak.Ask{}, &offpeak.FieldError{Field: field + ".gpu", Rule: "is missing: name a price in micro-credits per hour"}
	}
	ask := offpeak.Ask{GPU: *in.GPU, CPU: *in.GPU}
	if in.CPU != nil {
		ask.CPU = *in.CPU
	}
	if err := ask.Validate(); err != nil {
		wrong := new(offpeak.FieldError)
		if errors.As(err, &wrong) {
			wrong.Field = field + strings.TrimPrefix(wrong.Field, "ask")
		}
		return ask, err
	}
	return ask, nil
}

// at says in which field a value is wrong.
func at(field string, err error) error {
	if v, ok := errors.AsType[*offpeak.ValueError](err); ok {
		return &offpeak.FieldError{Field: field, Value: v.Value, Rule: v.Rule}
	}
	return err
}

// zone finds a time zone by its name; "" is UTC.
func zone(in wire.Zone) (*time.Location, error) {
	const longest = 64
	name := string(in)
	if name == "" {
		return time.UTC, nil
	}
	// "Local" would be the hub's, which is nobody's.
	z, err := time.LoadLocation(name)
	if err != nil || name == "Local" || len(name) > longest {
		return nil, &offpeak.FieldError{Field: "zone", Value: name, Rule: "is the name of a time zone, for example Europe/Berlin or America/New_York"}
	}
	return z, nil
}

// text is how a plan is stored.
func text(in wire.AskPlan) (json.RawMessage, error) { return json.Marshal(in) }

// stored reads what text wrote.
func stored(data json.RawMessage) (wire.AskPlan, plan, error) {
	var in wire.AskPlan
	if err := json.Unmarshal(data, &in); err != nil {
		return in, plan{}, err
	}
	p, err := read(in)
	return in, p, err
}
