package tuning

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"

	"offpeak/cmd/offpeak/cli/world"
	"offpeak/placement"
	"offpeak/placement/replay"
)

// proposedName is the name of what a search proposes.
const proposedName = "proposed"

// parseObjective reads what counts how much.
func parseObjective(text string) (replay.Objective, error) {
	o := replay.DefaultObjective()
	parts := map[string]*float64{"wait": &o.Wait, "stranded": &o.Stranded, "lost": &o.Lost, "price": &o.Price}
	for _, part := range strings.Split(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		to := parts[name]
		if to == nil {
			return o, world.BadInput("--objective: %q: there is wait, stranded, lost and price, each once and with a number, for example wait=1,price=0", part)
		}
		v, err := number(value)
		if err != nil || v < 0 || v > 1e6 {
			return o, world.BadInput("--objective: %q: is a number from 0 to 1000000", part)
		}
		*to = v
		delete(parts, name)
	}
	if o.Wait+o.Stranded+o.Lost+o.Price == 0 {
		return o, world.BadInput("--objective: %q: something counts above 0", text)
	}
	return o, nil
}

// searched is what is printed of a search.
type searched struct {
	report
	Tried int `json:"tried"`
	// Learned are the objective's values on what was learned from.
	Learned map[string]float64 `json:"learned"`
	// Gain is by how much the proposal makes the objective smaller on what was held
	// out, in percent of what it was.
	Gain     float64           `json:"gain_percent"`
	Proposed *placement.Tuning `json:"proposed" doc:"null: nothing better was found"`
	Stopped  bool              `json:"stopped,omitempty"`
}

// searchFor looks for better weights than those of the last of the sets.
func (r *replaying) searchFor(ctx context.Context, t *replay.Traffic, sets []replay.Set, goal replay.Objective) error {
	learn, held, err := replay.Hold(t)
	if err != nil {
		return world.BadInput("--from: %w", err)
	}
	begin, err := r.try(ctx, &learn, "replaying what is learned from", sets)
	if err != nil {
		return err
	}
	out := searched{Learned: make(map[string]float64)}
	from := 0
	for i := range begin {
		out.Learned[sets[i].Name] = goal.Of(&begin[i])
		if goal.Of(&begin[i]) < goal.Of(&begin[from]) {
			from = i
		}
	}
	r.progress.begin("searching")
	tried := 0
	s := replay.Search{
		From: sets[from], Budget: r.budget, Seed: r.seed, Objective: goal, Flat: learn.Flat(sets[from].Policy),
		Try: func(list []replay.Set) ([]replay.Result, error) {
			results, err := r.try(ctx, &learn, "", list)
			tried += len(list)
			r.progress.at(float64(tried) / float64(r.budget))
			return results, err
		},
	}
	best, value, n, err := s.Run()
	if out.Stopped = errors.Is(err, replay.ErrStopped) && ctx.Err() != nil && n > 0; out.Stopped {
		// What was found until then is worth showing.
		ctx, err = context.WithoutCancel(ctx), nil
	}
	if err != nil {
		return err
	}
	out.Tried = n
	if found := value < out.Learned[sets[from].Name]-1e-9; found {
		best.Name = proposedName
		out.Learned[best.Name] = value
		sets = append(slices.Clone(sets), best)
	}
	results, err := r.try(ctx, &held, "replaying what was held out", sets)
	if err != nil {
		return err
	}
	out.report = reportOf(&held, goal, results)
	out.Notes = notNil(t.Notes)
	if best.Name == proposedName {
		was, is := goal.Of(&results[0]), goal.Of(&results[len(results)-1])
		out.Proposed = &best.Tuning
		if was > 0 {
			out.Gain = 100 * (was - is) / was
		}
		if r.out != "" {
			if err := writeNew(r.out, func(f *os.File) error { _, err := f.WriteString(yamlOf(best.Tuning)); return err }); err != nil {
				return err
			}
		}
	}
	if r.format == "json" {
		return r.json(out)
	}
	return r.showSearch(t, &learn, &held, goal, &out, results)
}

func (r *replaying) showSearch(t, learn, held *replay.Traffic, goal replay.Objective, out *searched, results []replay.Result) error {
	r.notes(t)
	if out.Stopped {
		fmt.Fprintf(r.env.Stderr, "offpeak: interrupted after %d of %d sets; this is the best of them\n", out.Tried, r.budget)
	}
	w := r.env.Stdout
	fmt.Fprintf(w, "learned from: %s\n", describe(learn))
	for i := range results {
		name := results[i].Set.Name
		fmt.Fprintf(w, "  %s: %.4f h a job\n", name, out.Learned[name])
	}
	if err := r.table("held out: "+describe(held), goal, results); err != nil {
		return err
	}
	if out.Proposed == nil {
		_, err := fmt.Fprintf(w, "\nNone of %d sets of weights was better for this traffic: keep what you have.\n", out.Tried)
		return err
	}
	verdict := fmt.Sprintf("makes the objective %.1f %% smaller", out.Gain)
	switch {
	case math.Abs(out.Gain) < 0.05:
		verdict = "makes no difference: keep what you have"
	case out.Gain < 0:
		verdict = fmt.Sprintf("makes the objective %.1f %% larger: what it learned does not hold later, so keep what you have", -out.Gain)
	}
	fmt.Fprintf(w, "\nThe best of %d sets. On what was held out it %s.\n\n%s", out.Tried, verdict, yamlOf(*out.Proposed))
	switch {
	case r.out == "":
	case out.Gain < 0.05:
		fmt.Fprintf(w, "\nwritten to %s all the same\n", r.out)
	default:
		fmt.Fprintf(w, "\nwritten to %s; next: offpeak weights set --file %s\n", r.out, r.out)
	}
	return nil
}
