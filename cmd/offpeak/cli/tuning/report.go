package tuning

import (
	"fmt"
	"slices"
	"time"

	"offpeak"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/placement/replay"
)

const stampForm = "2006-01-02 15:04"

// report is what is printed of a replay.
type report struct {
	From      time.Time        `json:"from"`
	Until     time.Time        `json:"until"`
	Notes     []string         `json:"notes"`
	Objective replay.Objective `json:"objective"`
	Results   []counted        `json:"results"`
}

// counted is a result with what it comes to.
type counted struct {
	replay.Result
	Value float64 `json:"value" doc:"of the objective: hours a job, the less the better"`
}

func reportOf(t *replay.Traffic, goal replay.Objective, results []replay.Result) report {
	out := report{From: t.From, Until: t.Until, Notes: notNil(t.Notes), Objective: goal, Results: make([]counted, len(results))}
	for i := range results {
		out.Results[i] = counted{results[i], goal.Of(&results[i])}
	}
	return out
}

// describe says in a line what traffic is.
func describe(t *replay.Traffic) string {
	jobs, nodes, losses := t.Counts()
	return fmt.Sprintf("%d jobs, %d nodes, %d times one was lost or wanted back, from %s until %s UTC",
		jobs, nodes, losses, t.From.UTC().Format(stampForm), t.Until.UTC().Format(stampForm))
}

// table shows results side by side.
func (r *replaying) table(head string, goal replay.Objective, results []replay.Result) error {
	t := render.NewTable(r.env.Stdout)
	t.Line(head)
	row := func(name string, cell func(r *replay.Result) string) {
		cells := []string{name}
		for i := range results {
			cells = append(cells, cell(&results[i]))
		}
		t.Row(cells...)
	}
	row("", func(r *replay.Result) string { return r.Set.Name })
	row("wait, median", func(r *replay.Result) string { return long(r.WaitMedian) })
	row("wait, p95", func(r *replay.Result) string { return long(r.WaitP95) })
	row("wait, mean", func(r *replay.Result) string { return long(r.WaitMean) })
	row("started", func(r *replay.Result) string { return fmt.Sprintf("%d of %d", r.Started, r.Jobs) })
	row("stranded", func(r *replay.Result) string { return fmt.Sprint(r.StrandedJobs) })
	for _, kind := range kinds(results) {
		row("  "+kind, func(r *replay.Result) string {
			for _, k := range r.Stranded {
				if k.Kind == kind {
					return fmt.Sprint(k.Jobs)
				}
			}
			return "0"
		})
	}
	if slices.ContainsFunc(results, func(r replay.Result) bool { return r.Bounded > 0 }) {
		row("held back by a quota or limit", func(r *replay.Result) string { return fmt.Sprint(r.Bounded) })
	}
	row("no node could serve", func(r *replay.Result) string { return fmt.Sprint(r.Unserved) })
	row("GPU-hours idle while jobs waited", func(r *replay.Result) string { return fmt.Sprintf("%.1f", r.IdleGPUHours) })
	row("paid", func(r *replay.Result) string { return r.Paid.String() })
	row("paid per hour of work", func(r *replay.Result) string {
		if r.WorkHours == 0 {
			return "-"
		}
		return fmt.Sprintf("%.4f", float64(r.Paid)/1e6/r.WorkHours)
	})
	row("interrupted attempts", func(r *replay.Result) string { return fmt.Sprintf("%d of %d jobs", r.Interrupted, r.InterruptedJobs) })
	row("hours of work lost", func(r *replay.Result) string { return fmt.Sprintf("%.1f", r.LostHours) })
	row("failed", func(r *replay.Result) string { return fmt.Sprint(r.Failed) })
	row("objective, h a job", func(r *replay.Result) string { return fmt.Sprintf("%.4f", goal.Of(r)) })
	return t.Flush()
}

// kinds lists the kinds of jobs that any of the sets strands.
func kinds(results []replay.Result) (out []string) {
	seen := map[string]bool{}
	for i := range results {
		for _, k := range results[i].Stranded {
			if !seen[k.Kind] {
				seen[k.Kind] = true
				out = append(out, k.Kind)
			}
		}
	}
	return out
}

// long prints a wait to what matters of it.
func long(d offpeak.Duration) string {
	to := time.Millisecond
	if d.Std() > time.Minute {
		to = time.Second
	}
	return d.Std().Round(to).String()
}
