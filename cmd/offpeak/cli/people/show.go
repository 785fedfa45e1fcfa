package people

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

func newShow(env world.Env) *cobra.Command {
	c := &client{env: env}
	cmd := &cobra.Command{
		Use:   "show JOB|GROUP",
		Short: "Show a job, its attempts and its checkpoints, or an array",
		Long: `Show prints what is known of a job: how it stands, what it asked for, each
attempt with its node and why it ended, and the stored checkpoints. Of an array
it prints how many members are in which state.

` + groupHelp,
		Example: `  offpeak show -
  offpeak show job_01jd8zk3x9f0wr4c2m7qv5t6ae -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.dial(); err != nil {
				return err
			}
			id, group, err := c.jobOrGroup(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if group != "" {
				return c.showGroup(cmd.Context(), group)
			}
			var v shown
			err = c.hub.Call(cmd.Context(), remote.Reading, func(ctx context.Context, d *wire.Direct) error {
				job, err := d.Job(ctx, id)
				if err != nil {
					return err
				}
				attempts, err := d.Attempts(ctx, id)
				if err != nil {
					return err
				}
				checkpoints, err := d.Checkpoints(ctx, id)
				v = shown{job, attempts.Items, checkpoints.Items}
				return err
			})
			if err != nil {
				return err
			}
			f := c.follower(id, false, false)
			return c.print(v, []string{string(id)}, func(t *render.Table) {
				v.table(t, time.Now(), func(n offpeak.NodeID) string { return f.NodeName(cmd.Context(), n) })
			})
		},
	}
	cmd.ValidArgsFunction = c.completeWork()
	return c.command(cmd)
}

// shown is what show prints.
type shown struct {
	Job         offpeak.Job          `json:"job"`
	Attempts    []offpeak.Lease      `json:"attempts"`
	Checkpoints []offpeak.Checkpoint `json:"checkpoints"`
}

func (v shown) table(t *render.Table, now time.Time, node func(offpeak.NodeID) string) {
	j := v.Job
	r := j.Spec.WithDefaults().Requirements
	field := func(name, value string) {
		if value != "" {
			t.Row(name, value)
		}
	}
	field("Job", string(j.ID))
	field("Name", j.Spec.Name)
	field("State", string(j.State))
	if j.Reason != "" {
		sentence := render.Ended(j.Reason, j.Detail, j.ExitCode, j.Signal)
		field("Why", sentence)
		field("Reason", string(j.Reason))
		if j.State.Terminal() {
			field("Next", render.Next(j))
		}
	}
	if j.NotBefore != nil && j.NotBefore.After(now) && !j.State.Terminal() {
		field("Pauses", "for another "+render.Span(j.NotBefore.Sub(now)))
	}
	field("Command", render.Argv(j.Spec.Task.Command))
	field("Driver", j.Spec.Task.Driver)
	field("Asks for", asks(r))
	if most := j.Spec.Limits.Budget; most != nil {
		field("Budget", most.String())
	}
	if n := len(v.Attempts); n > 0 && !v.Attempts[n-1].State.Terminal() {
		l := v.Attempts[n-1]
		if l.Price > 0 {
			field("Price", l.Price.String())
		}
		if o := l.Outbid; o != nil {
			field("Outbid", "gives way to "+string(o.Job)+", which pays "+o.Price.String())
		}
	}
	for _, a := range j.After {
		field("After", afterLine(a))
	}
	field("Input", string(j.Spec.Task.Input))
	field("Outputs", strings.Join(j.Spec.Task.Outputs, ", "))
	field("Labels", strings.Join(render.Pairs(j.Spec.Labels), ", "))
	field("Submitted", render.Stamp(&j.SubmittedAt))
	field("Started", render.Stamp(j.StartedAt))
	field("Ended", render.Stamp(j.EndedAt))
	field("Retry of", string(j.RetryOf))
	if j.Group != "" && j.Group != string(j.ID) {
		field("Array", fmt.Sprintf("%s, index %d", j.Group, j.Index))
		field("Parameters", strings.Join(render.Pairs(j.Params), ", "))
	}
	policy := j.Spec.WithDefaults().Retry
	field("Retries", fmt.Sprintf("job's own failures %d of %d, nodes' faults %d of %d, interruptions %d of %d",
		j.Counts.User, policy.User, j.Counts.Node, policy.Node, j.Counts.Interruption, policy.Interruption))
	if len(v.Attempts) > 0 {
		t.Line("")
		t.Row("ATTEMPT", "NODE", "STATE", "STARTED", "METERED", "RESUMED FROM", "WHY IT ENDED")
		for _, l := range v.Attempts {
			why := "-"
			if l.Reason != "" {
				why = render.Ended(l.Reason, l.Detail, l.ExitCode, l.Signal)
			}
			state := string(l.State)
			if l.Frozen {
				state += " (frozen)"
			}
			from := "-"
			if l.Restored != 0 {
				from = fmt.Sprint(l.Restored)
			}
			t.Row(fmt.Sprint(l.Attempt), node(l.Node), state, render.Dash(render.Stamp(l.StartedAt)), render.Span(time.Duration(l.Metered)*time.Millisecond), from, why)
		}
	}
	if len(v.Checkpoints) > 0 {
		t.Line("")
		t.Row("CHECKPOINT", "NAME", "ATTEMPT", "SIZE", "AFTER", "STORED")
		for _, cp := range v.Checkpoints {
			t.Row(fmt.Sprint(cp.ID), cp.Name, fmt.Sprint(cp.Attempt), render.About(cp.Size), render.Span(time.Duration(cp.Metered)*time.Millisecond), render.Stamp(&cp.At))
		}
	}
}

// afterLine says of one job that another waits for, or waited for, how it stands.
func afterLine(a offpeak.Awaited) string {
	s := string(a.Job)
	if a.Name != "" {
		s += " (" + a.Name + ")"
	}
	if a.Any {
		s += ", however it ends"
	}
	if a.Into != "" {
		s += ", outputs into " + a.Into
	}
	if a.State != "" {
		s += ": " + string(a.State)
	}
	return s
}

func cores(milli int64) string {
	if milli == 1000 {
		return "1 core"
	}
	return render.Cores(milli) + " cores"
}

// asks prints requirements in a line.
func asks(r offpeak.Requirements) string {
	parts := []string{cores(r.CPU), render.About(r.Memory) + " memory", render.About(r.Disk) + " disk"}
	for _, g := range r.GPUs {
		words := []string{"GPU"}
		if g.VRAM > 0 {
			words = append(words, "with", render.About(g.VRAM))
		}
		for _, word := range []string{g.Vendor, g.Model} {
			if word != "" {
				words = append(words, word)
			}
		}
		if g.Kind != "" {
			words = append(words, "("+string(g.Kind)+")")
		}
		if g.Compute != "" {
			words = append(words, "of compute capability "+g.Compute)
		}
		if g.Driver != "" {
			words = append(words, "with driver "+g.Driver)
		}
		parts = append(parts, strings.Join(words, " "))
	}
	if r.OS != "" || r.Arch != "" {
		parts = append(parts, strings.Trim(r.OS+"/"+r.Arch, "/"))
	}
	parts = append(append(parts, render.Pairs(r.Where)...), r.Match...)
	for _, id := range r.Nodes {
		parts = append(parts, "on "+string(id))
	}
	for _, id := range r.NotNodes {
		parts = append(parts, "not on "+string(id))
	}
	for _, id := range r.NotAccounts {
		parts = append(parts, "not on nodes of "+string(id))
	}
	if r.MaxPrice != nil {
		parts = append(parts, "at most "+r.MaxPrice.String())
	}
	if r.NonInterruptible {
		parts = append(parts, "no higher bid displaces it")
	}
	return strings.Join(parts, ", ")
}
