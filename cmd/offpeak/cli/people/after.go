package people

import (
	"context"
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
				return err
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
	return out, world.Refuse(offpeak.ValidateAfter(out))
}
