package people

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"offpeak"
	"offpeak/cmd/offpeak/cli/world"
)

// waits finds the jobs, and arrays, that flags name to wait for. The hub is dialled.
func (s *submission) waits(ctx context.Context, c *client) ([]offpeak.After, error) {
	var out []offpeak.After
	add := func(refs []string, a offpeak.After) error {
		for _, ref := range refs {
			id, group, err := c.jobOrGroup(ctx, ref)
			if err != nil {
				flag := "--after"
				switch {
				case a.Into != "":
					flag = "--input-from"
				case a.Any:
					flag = "--after-any"
				}
				return fmt.Errorf("%s: %w", flag, err)
			}
			if group != "" {
				id = offpeak.JobID(group)
			}
			i := slices.IndexFunc(out, func(o offpeak.After) bool { return o.Job == id })
			switch {
			case i < 0:
				out = append(out, offpeak.After{Job: id, Any: a.Any, Into: a.Into})
			case a.Into != "":
				return world.Refuse(&offpeak.FieldError{Field: "--input-from", Value: ref, Rule: "is named once"})
			case out[i].Into == "" && out[i].Any != a.Any:
				return world.Refuse(&offpeak.FieldError{Field: "--after-any", Value: ref, Rule: "is named by --after too: it must either succeed or just end"})
			default: // its outputs, however it ended
				out[i].Any = a.Any
			}
		}
		return nil
	}
	for _, f := range s.from {
		folder, ref, ok := strings.Cut(f, "=")
		if !ok || folder == "" || ref == "" {
			return nil, world.Refuse(&offpeak.FieldError{Field: "--input-from", Value: f, Rule: "is written folder=job"})
		}
		if err := add([]string{ref}, offpeak.After{Into: folder}); err != nil {
			return nil, err
		}
	}
	if err := add(s.after, offpeak.After{}); err != nil {
		return nil, err
	}
	if err := add(s.afterAny, offpeak.After{Any: true}); err != nil {
		return nil, err
	}
	return out, world.Refuse(named(offpeak.ValidateAfter(out), s.awaited(out)))
}

// awaited names fields as the flags do that were given, those of jobs to wait for too.
func (s *submission) awaited(after []offpeak.After) func(field string) string {
	return func(field string) string {
		var i int
		if _, err := fmt.Sscanf(field, "after[%d]", &i); err != nil || i < 0 || i >= len(after) {
			return s.Flag(field)
		}
		switch a := after[i]; {
		case a.Into != "":
			return "--input-from"
		case a.Any:
			return "--after-any"
		}
		return "--after"
	}
}

// named has each rule that is broken named as written says, where it says something.
func named(err error, written func(field string) string) error {
	all, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	var out []error
	for _, err := range all.Unwrap() {
		if f, ok := errors.AsType[*offpeak.FieldError](err); ok {
			if name := written(f.Field); name != "" {
				err = &offpeak.FieldError{Field: name, Value: f.Value, Rule: f.Rule}
			}
		}
		out = append(out, err)
	}
	return errors.Join(out...)
}
