package people

import (
	"context"
	"fmt"
	"time"

	"offpeak"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

const dryRunHelp = `With --dry-run nothing is handed in, and no input is sent: it prints what explain
would say. Exit codes then: 0 if the job would start at once, 1 if it would wait
or never start, 2 for bad input.`

// exitWaits is the exit code of a dry run of a job that would not start at once.
const exitWaits = 1

// foretell says what would become of a job, or of each member of an array.
func (s *submission) foretell(ctx context.Context, c *client, command []string, array *offpeak.Array) error {
	if array != nil {
		if err := array.Validate(); err != nil {
			return world.Refuse(err)
		}
	}
	spec, after, err := s.spec(ctx, c, command)
	if err != nil {
		return err
	}
	e, err := remote.Ask(ctx, c.hub, remote.Reading, func(ctx context.Context, d *wire.Direct) (wire.Explanation, error) {
		return d.Foretell(ctx, spec, after...)
	})
	err = world.Named(err, s.awaited(after))
	if err != nil {
		return err
	}
	var fit []string
	for i := range e.Nodes {
		if e.Nodes[i].Fits {
			fit = append(fit, string(e.Nodes[i].Node))
		}
	}
	if err := c.print(e, fit, func(t *render.Table) {
		switch {
		case array != nil && array.Gang > 0:
			t.Line(fmt.Sprintf("Each of %d members, which start together: %d of the %d nodes that they need fit now.", array.Gang, min(e.Fits, array.Gang), array.Gang))
		case array != nil && array.Members().Len() > 1:
			t.Line(fmt.Sprintf("Each of %d members by itself:", array.Members().Len()))
		}
		explain(t, e, time.Now())
	}); err != nil {
		return err
	}
	if !e.Starts || array != nil && e.Fits < array.Gang {
		return &world.ExitError{Code: exitWaits}
	}
	return nil
}
