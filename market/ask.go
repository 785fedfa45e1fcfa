package market

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"offpeak"
)

// MaxWindows bounds the schedule of a plan.
const MaxWindows = 64

// Plan says what a node's owner asks at any time. Its parts are set by the
// owner; nothing changes it but another plan.
type Plan struct {
	// Base is asked where no window is open.
	Base offpeak.Ask
	// Floor is the least that is asked, whatever a window or a rule proposes.
	Floor offpeak.Ask
	// Windows are the schedule: the first that is open decides.
	Windows []Window
	// Zone is where the clock hangs that the windows mean. Nil is UTC.
	Zone *time.Location
	// From and Until bound the plan's validity, Until excluded. The zero time
	// bounds nothing.
	From, Until time.Time
}

// Standing is what a plan asks at some time, and for how long.
type Standing struct {
	Ask offpeak.Ask
	// Valid says that the plan holds at all; without it nothing is asked.
	Valid bool
	// Until is when this changes next. The zero time is never.
	Until time.Time
}

// Validate returns a *offpeak.FieldError for the first rule that the plan breaks.
func (p *Plan) Validate() error {
	if err := p.Base.Validate(); err != nil {
		return err
	}
	if err := p.Floor.Validate(); err != nil {
		return under("floor", err)
	}
	if len(p.Windows) > MaxWindows {
		return &offpeak.FieldError{Field: "windows", Rule: fmt.Sprintf("has at most %d windows", MaxWindows)}
	}
	for i, w := range p.Windows {
		if !w.hours().Sound() {
			return &offpeak.FieldError{Field: fmt.Sprintf("windows[%d]", i), Value: w.String(), Rule: "has days, and begins and ends at different times of a day"}
		}
		if err := w.Ask.Validate(); err != nil {
			return under(fmt.Sprintf("windows[%d]", i), err)
		}
	}
	if !p.From.IsZero() && !p.Until.IsZero() && !p.From.Before(p.Until) {
		return &offpeak.FieldError{Field: "until", Value: p.Until.String(), Rule: "is after from"}
	}
	return nil
}

// under says which part of a plan asks what is wrong.
func under(part string, err error) error {
	if e, ok := errors.AsType[*offpeak.FieldError](err); ok {
		return &offpeak.FieldError{Field: part + strings.TrimPrefix(e.Field, "ask"), Value: e.Value, Rule: e.Rule}
	}
	return err
}

// At returns what the plan asks at t. A window is open whenever a clock on the
// owner's wall shows a time within it: an hour that is skipped when clocks go
// forward is not asked for, one that comes twice is asked for twice.
func (p *Plan) At(t time.Time) Standing {
	if !p.From.IsZero() && t.Before(p.From) {
		return Standing{Until: p.From}
	}
	if !p.Until.IsZero() && !t.Before(p.Until) {
		return Standing{}
	}
	s := Standing{Ask: p.ask(t), Valid: true, Until: p.Until}
	// After three weeks, in which no clock skips the same hour twice, every time
	// of the week has been seen: what has not changed by then never does.
	for next, end := p.turn(t), t.Add(21*24*time.Hour); next.Before(end); next = p.turn(next) {
		if !s.Until.IsZero() && !next.Before(s.Until) {
			break
		}
		if p.ask(next) != s.Ask {
			s.Until = next
			break
		}
	}
	return s
}

// local is t by the owner's clock.
func (p *Plan) local(t time.Time) time.Time {
	if p.Zone == nil {
		return t.UTC()
	}
	return t.In(p.Zone)
}

// ask is what is asked at t, valid or not.
func (p *Plan) ask(t time.Time) offpeak.Ask {
	t = p.local(t)
	day, at := t.Weekday(), Clock(t.Hour()*60+t.Minute())
	ask := p.Base
	for _, w := range p.Windows {
		if w.hours().Hold(day, at) {
			ask = w.Ask
			break
		}
	}
	return offpeak.Ask{GPU: max(ask.GPU, p.Floor.GPU), CPU: max(ask.CPU, p.Floor.CPU)}
}

// turn is the first moment after t at which the ask may change.
func (p *Plan) turn(t time.Time) time.Time { return offpeak.Turn(p.local(t), p.hours) }

func (p *Plan) hours(yield func(offpeak.Window) bool) {
	for _, w := range p.Windows {
		if !yield(w.hours()) {
			return
		}
	}
}
