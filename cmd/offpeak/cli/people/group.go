package people

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"offpeak"
	"offpeak/cmd/offpeak/cli/arrays"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

// whole is an array to stay with. The hub is dialled.
func (c *client) whole(id offpeak.GroupID, quiet, raw bool) *arrays.Whole {
	return &arrays.Whole{Env: c.env, Hub: c.hub, Note: c.note, Desk: c.desk(), ID: id, Quiet: quiet, Raw: raw}
}

// stay follows an array that was just submitted, as run does a job.
func (c *client) stay(ctx context.Context, group offpeak.Group, out string, detach, quiet, raw bool) error {
	if detach {
		return c.print(group, []string{string(group.ID)}, func(t *render.Table) { t.Line(string(group.ID)) })
	}
	if !quiet {
		c.note(fmt.Sprintf("array %s, %d jobs", group.ID, group.Members))
	}
	w := c.whole(group.ID, quiet, raw)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	// From here on an interrupt is a question, as it is of a job.
	ctx = context.WithoutCancel(ctx)
	group, err := w.OrLeave(ctx, signals)
	if err != nil {
		return err
	}
	w.Ended(ctx, group)
	if len(group.Spec.Task.Outputs) > 0 {
		if _, err := w.Fetch(ctx, out); err != nil {
			return world.Hint(err, "Fetch them again: `offpeak outputs "+string(group.ID)+"`.")
		}
	}
	return arrays.Exit(group)
}

func (c *client) showGroup(ctx context.Context, id offpeak.GroupID) error {
	w := c.whole(id, false, false)
	g, err := w.Get(ctx)
	if err != nil {
		return err
	}
	return c.print(g, []string{string(id)}, func(t *render.Table) {
		field := func(name, value string) {
			if value != "" {
				t.Row(name, value)
			}
		}
		field("Array", string(g.ID))
		field("Name", g.Spec.Name)
		field("State", string(g.State))
		field("Members", fmt.Sprintf("%d: %s", g.Members, arrays.Counts(g)))
		field("Indexes", g.Array.Indexes.String())
		if g.Array.Gang > 0 {
			field("Gang", "all start together, each on a node of its own")
		}
		if g.Reason != "" {
			field("Ended by", g.Detail)
		}
		for _, p := range g.Array.Sweep {
			values := strings.Join(p.Values, ", ")
			if len(p.Values) > 12 {
				values = strings.Join(p.Values[:12], ", ") + fmt.Sprintf(", … (%d)", len(p.Values))
			}
			field("Sweep", p.Name+" = "+values)
		}
		if g.Array.AtOnce > 0 {
			field("At once", strconv.Itoa(g.Array.AtOnce))
		}
		field("Command", render.Argv(g.Spec.Task.Command))
		field("Driver", g.Spec.Task.Driver)
		field("Asks for", asks(g.Spec.WithDefaults().Requirements))
		for _, a := range g.After {
			field("After", afterLine(a))
		}
		field("Input", string(g.Spec.Task.Input))
		field("Outputs", strings.Join(g.Spec.Task.Outputs, ", "))
		field("Labels", strings.Join(render.Pairs(g.Spec.Labels), ", "))
		field("Submitted", render.Stamp(&g.SubmittedAt))
		field("Cancelled", render.Stamp(g.CancelledAt))
		field("Retry of", string(g.RetryOf))
		if g.Counts[offpeak.JobFailed] > 0 {
			t.Line("")
			t.Line("Its failed members: offpeak ps --all --group " + string(g.ID) + " --state failed")
		}
	})
}

func (c *client) logsOfGroup(ctx context.Context, id offpeak.GroupID, on, raw bool, pick func(rec wire.LogRecord) bool) error {
	w := c.whole(id, true, raw)
	enc := newJSONLines(c)
	take := func(index int, rec wire.LogRecord) (bool, error) {
		if !pick(rec) {
			return false, nil
		}
		if c.output == "json" {
			return false, enc(struct {
				Index int `json:"index"`
				wire.LogRecord
			}{index, rec})
		}
		return true, nil
	}
	if !on {
		return w.Logs(ctx, take)
	}
	g, err := w.FollowOnly(ctx, take)
	if err != nil {
		return err
	}
	return arrays.Exit(g)
}

func (c *client) outputsOfGroup(ctx context.Context, id offpeak.GroupID, out string, list bool) error {
	w := c.whole(id, false, false)
	if list {
		return world.Refuse(world.Hint(&offpeak.FieldError{Field: "--list", Rule: "is for one job"}, "Name a member: "+string(id)+"/INDEX."))
	}
	folders, err := w.Fetch(ctx, out)
	if err == nil && len(folders) == 0 {
		err = world.Hint(errors.New("no member of the array has succeeded and left outputs"), "Name outputs when you submit it: --output PATTERN.")
	}
	if err != nil {
		return err
	}
	return c.print(wire.List[string]{Items: folders}, folders, func(t *render.Table) {
		for _, f := range folders {
			t.Row(f)
		}
	})
}

// groupRow is an array in the list of jobs, in one line.
func groupRow(now time.Time, g offpeak.Group) []string {
	return []string{string(g.ID), render.Dash(g.Spec.Name), string(g.State), "-", "-", render.Ago(now, &g.SubmittedAt), arrays.Counts(g)}
}

// groupsLike lists arrays with a member in the states that a list of jobs asks for.
func (c *client) groupsLike(ctx context.Context, states []string, limit int) ([]offpeak.Group, error) {
	q := url.Values{"state": slices.Clone(states)}
	groups, err := pages(ctx, c, q, limit, func(ctx context.Context, d *wire.Direct, q url.Values) (wire.List[offpeak.Group], error) {
		return d.Groups(ctx, q)
	})
	return groups.Items, err
}

// waitForGroup waits for an array among jobs.
func (c *client) waitForGroup(ctx context.Context, id offpeak.GroupID) (offpeak.Group, error) {
	return c.whole(id, true, false).Wait(ctx)
}

// findGroup finds the array that a person named.
func (c *client) findGroup(ctx context.Context, ref string) (offpeak.GroupID, error) {
	_, group, err := c.jobOrGroup(ctx, ref)
	if err == nil && group == "" {
		err = world.Refuse(&offpeak.FieldError{Field: "GROUP", Value: ref, Rule: "is an array's id"})
	}
	return group, err
}
