package tuning

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"offpeak"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/placement"
	"offpeak/placement/replay"
)

// replaying is one run of the command.
type replaying struct {
	env      world.Env
	open     Open
	progress *progress

	from, format, out string
	files             []string
	objective         string
	search            bool
	budget            int
	seed              uint64
}

func newReplay(env world.Env, open Open) *cobra.Command {
	r := &replaying{env: env, open: open, progress: newProgress(env)}
	cmd := &cobra.Command{
		Use:   "replay --from PLACE",
		Short: "Run recorded traffic through placement under other weights",
		Long: `Replay takes what came to a grid (jobs, and how long each ran; nodes, what they have
and ask, when they came, left or were lost) and runs it through the real placement
in virtual time, once under the weights that were in force and once under each file
of weights. It shows side by side how long jobs waited, which were stranded, how
long GPUs were idle while jobs waited that could have had them, what was paid, and
what interruptions cost. The same traffic and the same weights always give the same
answer.

PLACE is a backup, a hub's data folder (the hub may run), a PostgreSQL database
(postgres://…), a file that replay record wrote, or one of events as
offpeak events --after 0 -o json prints them. Nothing there is changed.

With --search it looks for better weights: it learns from the first part of the
time and shows what they are worth on the rest. docs/replay.md says what is counted
and what a replay leaves out.`,
		Example: `  offpeak replay --from /backups/2026-05-01 --weights tight.yaml
  offpeak replay --from traffic.jsonl --weights a.yaml --weights b.yaml -o json
  offpeak replay --from traffic.jsonl --search --budget 200 --seed 1 --out better.yaml
  offpeak replay record --from /backups/2026-05-01 --out traffic.jsonl`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return r.command(cmd.Context(), r.run) },
	}
	f := cmd.Flags()
	r.bind(cmd)
	f.StringArrayVar(&r.files, "weights", nil, "also replay under the weights of this `file`; again for another; what it leaves out is as in force")
	f.StringVar(&r.objective, "objective", "wait=1,stranded=24,lost=1,price=1", "how many hours each `part` counts: an hour of waiting, a stranded job, an hour of lost work, a credit")
	f.BoolVar(&r.search, "search", false, "search for better weights")
	f.IntVar(&r.budget, "budget", 200, "how many `sets` of weights a search tries at most")
	f.Uint64Var(&r.seed, "seed", 1, "the search's `seed`: the same one finds the same")
	f.StringVarP(&r.out, "out", "O", "", "write the weights that the search proposes to this `file`")
	cmd.AddCommand(newRecord(env, open))
	return strict(cmd)
}

// bind adds the flags that replaying and recording share.
func (r *replaying) bind(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&r.from, "from", "", "`place` of what was recorded")
	f.StringVarP(&r.format, "format", "o", "table", "print `table` or json")
}

func newRecord(env world.Env, open Open) *cobra.Command {
	r := &replaying{env: env, open: open, progress: newProgress(env)}
	cmd := &cobra.Command{
		Use:   "record --from PLACE --out FILE",
		Short: "Write what came to a grid to a file for replay",
		Long: `Record writes the traffic of a grid to a file: one JSON value a line, without
commands, names of outputs, logs or keys, but with the ids and requirements of jobs
and what nodes are and ask. It reads as much as the hub keeps of events (seven days,
unless it was told otherwise), so record now and then what you want to keep.`,
		Example: `  offpeak replay record --from /var/lib/offpeak/hub --out traffic.jsonl`,
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return r.command(cmd.Context(), r.record) },
	}
	r.bind(cmd)
	cmd.Flags().StringVarP(&r.out, "out", "O", "", "`file` to write, which is not there yet")
	return strict(cmd)
}

// noArgs refuses arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return world.BadInput("%s takes no arguments, but was given %q", cmd.CommandPath(), args[0])
	}
	return nil
}

// strict marks wrong flags as bad input.
func strict(cmd *cobra.Command) *cobra.Command {
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return world.Refuse(world.FlagError(err)) })
	return cmd
}

// command runs fn until it ends or somebody interrupts it.
func (r *replaying) command(ctx context.Context, fn func(context.Context) error) error {
	if r.format != "table" && r.format != "json" {
		return world.Refuse(&offpeak.FieldError{Field: "--format", Value: r.format, Rule: "is table or json"})
	}
	ctx, restore := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer restore()
	context.AfterFunc(ctx, restore) // told again, it goes at once
	defer r.progress.end()
	err := fn(ctx)
	if ctx.Err() != nil && (errors.Is(err, replay.ErrStopped) || errors.Is(err, context.Canceled)) {
		err = errors.New("interrupted: nothing was changed")
	}
	return err
}

func (r *replaying) record(ctx context.Context) error {
	if r.out == "" {
		return world.BadInput("--out: is needed: the file to write")
	}
	if err := newFile(r.out); err != nil {
		return err
	}
	t, err := r.load(ctx)
	if err != nil {
		return err
	}
	if err := writeNew(r.out, func(f *os.File) error { return t.Write(f) }); err != nil {
		return err
	}
	jobs, nodes, losses := t.Counts()
	if r.format == "json" {
		return r.json(map[string]any{"file": r.out, "from": t.From, "until": t.Until, "jobs": jobs, "nodes": nodes, "losses": losses, "notes": notNil(t.Notes)})
	}
	r.notes(t)
	_, err = fmt.Fprintf(r.env.Stdout, "%s\nwritten to %s\n", describe(t), r.out)
	return err
}

// newFile refuses a place where no new file can be, before any long work.
func newFile(path string) error {
	if _, err := os.Lstat(path); err == nil {
		return world.BadInput("--out: %s is there already: name another file, or remove it", path)
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil {
		return world.BadInput("--out: %w", err)
	} else if !info.IsDir() {
		return world.BadInput("--out: %s is no folder", filepath.Dir(path))
	}
	return nil
}

// writeNew writes a file that was not there, whole or not at all.
func writeNew(path string, write func(*os.File) error) error {
	if err := newFile(path); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".part-")
	if err != nil {
		return world.BadInput("--out: %w", err)
	}
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("--out: write %s: %w", path, err), os.Remove(f.Name()))
	}
	return nil
}

func notNil(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

func (r *replaying) json(v any) error {
	r.progress.end()
	e := json.NewEncoder(r.env.Stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func (r *replaying) notes(t *replay.Traffic) {
	r.progress.end()
	for _, n := range t.Notes {
		fmt.Fprintln(r.env.Stderr, "offpeak: note: "+n)
	}
}

// sets are those to be tried: what was in force first.
func (r *replaying) sets(t *replay.Traffic) ([]replay.Set, error) {
	base := replay.Set{Name: "in force", Tuning: placement.DefaultTuning()}
	if t.InForce != nil {
		base.Tuning = *t.InForce
	} else {
		base.Name = "defaults"
	}
	sets := []replay.Set{base}
	seen := map[string]bool{base.Name: true, proposedName: true}
	for _, path := range r.files {
		f, err := readWeights(path)
		if err != nil {
			return nil, err
		}
		set := replay.Set{Name: strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))}
		if seen[set.Name] {
			set.Name = path
		}
		if seen[set.Name] {
			return nil, world.BadInput("--weights: %s is named twice", path)
		}
		seen[set.Name] = true
		if set.Tuning, err = base.With(f.policy, f.weights); err != nil {
			return nil, world.BadInput("--weights: %s: %w", path, err)
		}
		set.Version = 0
		sets = append(sets, set)
	}
	return sets, nil
}

func (r *replaying) run(ctx context.Context) error {
	goal, err := parseObjective(r.objective)
	if err != nil {
		return err
	}
	switch {
	case r.search && r.budget < 1:
		return world.BadInput("--budget: %d: is at least 1", r.budget)
	case !r.search && r.out != "":
		return world.BadInput("--out: is for --search: it takes the weights that it proposes")
	case r.out != "":
		if err := newFile(r.out); err != nil {
			return err
		}
	}
	t, err := r.load(ctx)
	if err != nil {
		return err
	}
	sets, err := r.sets(t)
	if err != nil {
		return err
	}
	if jobs, _, _ := t.Counts(); jobs == 0 {
		return world.BadInput("--from: no job was submitted from %s until %s: there is nothing to replay", t.From.Format(stampForm), t.Until.Format(stampForm))
	}
	if r.search {
		return r.searchFor(ctx, t, sets, goal)
	}
	results, err := r.try(ctx, t, "replaying", sets)
	if err != nil {
		return err
	}
	if r.format == "json" {
		return r.json(reportOf(t, goal, results))
	}
	r.notes(t)
	return r.table(describe(t), goal, results)
}

// try replays traffic under each of the sets, as many at once as there are
// processors.
func (r *replaying) try(ctx context.Context, t *replay.Traffic, what string, sets []replay.Set) ([]replay.Result, error) {
	if what != "" {
		r.progress.begin(what)
	}
	var mu sync.Mutex // guards parts
	parts := make([]float64, len(sets))
	out := make([]replay.Result, len(sets))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i := range sets {
		group.Go(func() (err error) {
			out[i], err = replay.Run(t, sets[i], replay.Options{Tick: func(part float64) bool {
				if what != "" {
					mu.Lock()
					parts[i] = part
					sum := 0.0
					for _, p := range parts {
						sum += p
					}
					mu.Unlock()
					r.progress.at(sum / float64(len(parts)))
				}
				return ctx.Err() == nil
			}})
			if err != nil && !errors.Is(err, replay.ErrStopped) {
				err = fmt.Errorf("replay under %s: %w", sets[i].Name, err)
			}
			return err
		})
	}
	return out, group.Wait()
}
