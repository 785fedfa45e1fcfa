package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/wire"
)

func newShow(env Env) *cobra.Command {
	c := &client{env: env}
	cmd := &cobra.Command{
		Use:   "show JOB",
		Short: "Show a job, its attempts and its checkpoints",
		Long: `Show prints what is known of a job: how it stands, what it asked for, each
attempt with its node and why it ended, and the stored checkpoints.

` + jobHelp,
		Example: `  offpeak show -
  offpeak show job_01jd8zk3x9f0wr4c2m7qv5t6ae -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.dial(); err != nil {
				return err
			}
			id, err := c.job(cmd.Context(), args[0])
			if err != nil {
				return err
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
			f := newFollower(c, id, false, false)
			return c.print(v, []string{string(id)}, func(t *table) {
				v.table(t, time.Now(), func(n offpeak.NodeID) string { return f.nodeName(cmd.Context(), n) })
			})
		},
	}
	cmd.ValidArgsFunction = c.completeJobs()
	return c.command(cmd)
}

// shown is what show prints.
type shown struct {
	Job         offpeak.Job          `json:"job"`
	Attempts    []offpeak.Lease      `json:"attempts"`
	Checkpoints []offpeak.Checkpoint `json:"checkpoints"`
}

func (v shown) table(t *table, now time.Time, node func(offpeak.NodeID) string) {
	j := v.Job
	r := j.Spec.WithDefaults().Requirements
	field := func(name, value string) {
		if value != "" {
			t.row(name, value)
		}
	}
	field("Job", string(j.ID))
	field("Name", j.Spec.Name)
	field("State", string(j.State))
	if j.Reason != "" {
		sentence, next := ended(j.Reason, j.Detail, j.ExitCode, j.Signal)
		field("Why", sentence)
		if j.State.Terminal() {
			field("Next", next)
		}
	}
	if j.NotBefore != nil && j.NotBefore.After(now) && !j.State.Terminal() {
		field("Pauses", "for another "+span(j.NotBefore.Sub(now)))
	}
	field("Command", argv(j.Spec.Task.Command))
	field("Driver", j.Spec.Task.Driver)
	field("Asks for", asks(r))
	field("Input", string(j.Spec.Task.Input))
	field("Outputs", strings.Join(j.Spec.Task.Outputs, ", "))
	field("Labels", strings.Join(labelTexts(j.Spec.Labels), ", "))
	field("Submitted", stamp(&j.SubmittedAt))
	field("Started", stamp(j.StartedAt))
	field("Ended", stamp(j.EndedAt))
	field("Retry of", string(j.RetryOf))
	policy := j.Spec.WithDefaults().Retry
	field("Retries", fmt.Sprintf("job's own failures %d of %d, nodes' faults %d of %d, interruptions %d of %d",
		j.Counts.User, policy.User, j.Counts.Node, policy.Node, j.Counts.Interruption, policy.Interruption))
	if len(v.Attempts) > 0 {
		t.line("")
		t.row("ATTEMPT", "NODE", "STATE", "STARTED", "METERED", "RESUMED FROM", "WHY IT ENDED")
		for _, l := range v.Attempts {
			why := "-"
			if l.Reason != "" {
				why, _ = ended(l.Reason, l.Detail, l.ExitCode, l.Signal)
			}
			state := string(l.State)
			if l.Frozen {
				state += " (frozen)"
			}
			from := "-"
			if l.Restored != 0 {
				from = fmt.Sprint(l.Restored)
			}
			t.row(fmt.Sprint(l.Attempt), node(l.Node), state, dash(stamp(l.StartedAt)), span(time.Duration(l.Metered)*time.Millisecond), from, why)
		}
	}
	if len(v.Checkpoints) > 0 {
		t.line("")
		t.row("CHECKPOINT", "NAME", "ATTEMPT", "SIZE", "AFTER", "STORED")
		for _, cp := range v.Checkpoints {
			t.row(fmt.Sprint(cp.ID), cp.Name, fmt.Sprint(cp.Attempt), about(cp.Size), span(time.Duration(cp.Metered)*time.Millisecond), stamp(&cp.At))
		}
	}
}

// argv prints an argument vector so that its arguments can be told apart.
func argv(args []string) string {
	out := make([]string, len(args))
	for i, a := range args {
		if out[i] = a; a == "" || strings.ContainsAny(a, " \t\n'\"\\$*?[](){}<>|&;#`~!") {
			out[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(out, " ")
}

// asks prints requirements in a line.
func asks(r offpeak.Requirements) string {
	parts := []string{cores(r.CPU) + " cores", about(r.Memory) + " memory", about(r.Disk) + " disk"}
	for _, g := range r.GPUs {
		words := []string{"GPU"}
		if g.VRAM > 0 {
			words = append(words, "with", about(g.VRAM))
		}
		parts = append(parts, strings.TrimSpace(strings.Join(append(words, g.Vendor, g.Model), " ")))
	}
	if r.OS != "" || r.Arch != "" {
		parts = append(parts, strings.Trim(r.OS+"/"+r.Arch, "/"))
	}
	parts = append(parts, labelTexts(r.Where)...)
	if r.MaxPrice != nil {
		parts = append(parts, "at most "+r.MaxPrice.String())
	}
	return strings.Join(parts, ", ")
}

func labelTexts(m map[string]string) []string {
	var out []string
	for k, v := range m {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return out
}

// stamp prints a moment in local time, "" for none.
func stamp(at *time.Time) string {
	if at == nil || at.IsZero() {
		return ""
	}
	return at.Local().Format("2006-01-02 15:04:05")
}
