package trade

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"offpeak"
	"offpeak/market"
	"offpeak/wire"
)

// usualLife is for how long hardware is reckoned to work where its owner does not
// say: three years.
const usualLife = offpeak.Duration(3 * 365 * 24 * time.Hour)

// Suggest proposes what to ask for a node and shows its sum.
func (f *Floor) Suggest(ctx context.Context, account offpeak.AccountID, node offpeak.NodeID, in wire.SuggestRequest) (wire.Suggested, error) {
	n, err := f.env.Store.Node(ctx, account, node)
	if err != nil {
		return wire.Suggested{}, err
	}
	where, err := zone(in.Zone)
	if err != nil {
		return wire.Suggested{}, err
	}
	if in.Measured && in.Watts == 0 {
		return wire.Suggested{}, &offpeak.FieldError{Field: "measured", Value: "true", Rule: "says of watts that they were measured: name them"}
	}
	now := f.env.Now()
	facts := market.Facts{
		Segment: Segment(&n, nil), Hour: now.In(where).Hour(), Watts: in.Watts, Measured: in.Measured, Life: in.Life,
	}
	if facts.Watts == 0 {
		facts.Watts, _ = market.NominalWatts(facts.Model)
	}
	if facts.Tariff, err = tariff(in.KWh); err != nil {
		return wire.Suggested{}, err
	}
	if in.Cost != nil {
		facts.Cost = *in.Cost
		if facts.Life == 0 {
			facts.Life = usualLife
		}
	}
	if in.Floor != nil {
		facts.Floor = *in.Floor
	}
	if facts.Recent, err = f.recent(ctx, facts.Segment, now); err != nil {
		return wire.Suggested{}, err
	}
	f.mu.Lock()
	f.sync()
	facts.Devices, facts.Taken = f.book.Use(facts.Segment)
	f.mu.Unlock()
	s, err := market.Suggest(facts, f.cfg.Rules)
	if err != nil {
		return wire.Suggested{}, asked(err)
	}
	out := wire.Suggested{Price: s.Price, Lines: make([]wire.SuggestedLine, len(s.Lines))}
	for i, l := range s.Lines {
		out.Lines[i] = wire.SuggestedLine(l)
	}
	for _, l := range s.LeftOut {
		out.LeftOut = append(out.LeftOut, wire.SuggestedLeftOut(l))
	}
	out.LeftOut = append(out.LeftOut, unlike(&n, facts.Model)...)
	windows, err := market.Schedule(facts, f.cfg.Rules)
	if err != nil {
		return wire.Suggested{}, err
	}
	if len(windows) > 1 {
		for _, w := range windows {
			out.Windows = append(out.Windows, w.String())
		}
	}
	return out, nil
}

// unlike are the devices of a node that are of another kind than the first one, by
// which it is traded.
func unlike(n *offpeak.Node, model string) (out []wire.SuggestedLeftOut) {
	seen := map[string]bool{model: true}
	for _, d := range n.Inventory.Devices {
		if !seen[d.Model] {
			seen[d.Model] = true
			out = append(out, wire.SuggestedLeftOut{Rule: "device", Why: fmt.Sprintf("%q is another kind of GPU, and an ask is one price for all: this is the sum of %q", d.Model, model)})
		}
	}
	return out
}

// asked names what is out of bounds as the request does.
func asked(err error) error {
	if field, ok := errors.AsType[*offpeak.FieldError](err); ok {
		return &offpeak.FieldError{Field: strings.NewReplacer("facts.tariff", "kwh", "facts.", "").Replace(field.Field), Value: field.Value, Rule: field.Rule}
	}
	return err
}

// tariff reads the price of a kilowatt-hour: none, one, or 24.
func tariff(kWh []offpeak.MicroCredits) (t market.Tariff, err error) {
	switch len(kWh) {
	case 0:
	case 1:
		// Once, and not for each hour, it is told to be out of bounds.
		if kWh[0] < 0 || kWh[0] > offpeak.MicroCredits(offpeak.MaxPrice) {
			return t, &offpeak.FieldError{Field: "kwh[0]", Value: kWh[0].String(), Rule: "is from 0.00 to " + offpeak.MicroCredits(offpeak.MaxPrice).String()}
		}
		t = market.Flat(kWh[0])
	case len(t):
		copy(t[:], kWh)
	default:
		err = &offpeak.FieldError{Field: "kwh", Value: fmt.Sprint(len(kWh)), Rule: "has one price, or 24"}
	}
	return t, err
}
