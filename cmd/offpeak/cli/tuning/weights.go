package tuning

import (
	"context"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/people"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/placement"
	"offpeak/wire"
)

func newWeights(env world.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "weights",
		Short: "What placement weighs, and changing it while the grid runs",
		Long: `Weights say how much each part of a node's score counts when a job could run on
several nodes. They never decide whether a job fits. Each change is a version of
its own, which every hub takes up at once and every placement records. Try them on
recorded traffic first: offpeak replay.`,
		Example: `  offpeak weights show
  offpeak weights set --memory 0.5
  offpeak weights history`,
	}
	cmd.AddCommand(newWeightsShow(env), newWeightsSet(env), newWeightsHistory(env))
	return people.Group(cmd)
}

func newWeightsShow(env world.Env) *cobra.Command {
	c := people.NewClient(env)
	return c.Command(&cobra.Command{
		Use:   "show",
		Short: "Show the weights in force",
		Long: `Show prints the weights in force, their version, and who set it. Version 0 are the
defaults: nobody has set any. What it prints is a file for weights set --file and
replay --weights.`,
		Example: `  offpeak weights show
  offpeak weights show -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			hub, err := c.Dial()
			if err != nil {
				return err
			}
			w, err := remote.Ask(cmd.Context(), hub, remote.Reading, func(ctx context.Context, d *wire.Direct) (wire.Weights, error) { return d.Weights(ctx) })
			if err != nil {
				return err
			}
			return c.Print(w, []string{version(&w)}, func(t *render.Table) { show(t, &w) })
		},
	})
}

func version(w *wire.Weights) string { return strconv.FormatInt(w.Version, 10) }

// show prints a version as a file of weights.
func show(t *render.Table, w *wire.Weights) {
	head := "# version " + version(w)
	switch {
	case w.Version == 0:
		head += ", the defaults: nobody has set any"
	case w.At != nil:
		head += ", set " + render.Stamp(w.At) + " by " + render.Dash(string(w.By))
	}
	t.Line(head)
	t.Line("policy: " + w.Policy)
	for _, name := range placement.WeightNames() {
		if v, there := w.Weights[name]; there {
			t.Line(name + ": " + short(v))
		}
	}
}

// float is the value of a flag that takes a finite number.
type float struct {
	set *map[string]float64
	key string
}

// Set implements pflag.Value.
func (f float) Set(text string) error {
	v, err := number(text)
	if err != nil {
		return err
	}
	if *f.set == nil {
		*f.set = make(map[string]float64)
	}
	(*f.set)[f.key] = v
	return nil
}

// String implements pflag.Value.
func (f float) String() string { return "" }

// Type implements pflag.Value.
func (f float) Type() string { return "number" }

func newWeightsSet(env world.Env) *cobra.Command {
	c := people.NewClient(env)
	var in wire.NewWeights
	var file, policy string
	var named map[string]float64
	cmd := &cobra.Command{
		Use:   "set",
		Short: "Change weights, at once and in every hub (admins)",
		Long: `Set makes another version of the weights: those that flags or the file name change,
the others stay. A weight is from 0 to 1000, and below that of VRAM, which is the
heaviest. Jobs that run are left where they are.`,
		Example: `  offpeak weights set --vram 8 --memory 0.5
  offpeak weights set --file weights.yaml
  offpeak weights set --defaults --policy balanced`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in.Weights = make(map[string]float64)
			if file != "" {
				f, err := readWeights(file)
				if err != nil {
					return err
				}
				in.Weights, in.Policy = f.weights, string(f.policy)
			}
			for name, v := range named {
				in.Weights[name] = v
			}
			if cmd.Flags().Changed("policy") {
				in.Policy = policy
				if policy == "" || !placement.Policy(policy).Valid() {
					return world.Refuse(&offpeak.FieldError{Field: "--policy", Value: policy, Rule: "is cheapest, balanced or fastest"})
				}
			}
			if !in.Defaults && in.Policy == "" && len(in.Weights) == 0 {
				return world.BadInput("nothing to set: name a weight, for example --memory 0.5, --policy, --file or --defaults")
			}
			hub, err := c.Dial()
			if err != nil {
				return err
			}
			op := remote.NewOp()
			w, err := remote.Ask(cmd.Context(), hub, remote.Mutating, func(ctx context.Context, d *wire.Direct) (wire.Weights, error) { return d.SetWeights(ctx, op, in) })
			if err != nil {
				return err
			}
			return c.Print(w, []string{version(&w)}, func(t *render.Table) { show(t, &w) })
		},
	}
	f := cmd.Flags()
	for _, name := range placement.WeightNames() {
		f.Var(float{&named, name}, strings.ReplaceAll(name, "_", "-"), meaning(name))
	}
	f.StringVar(&policy, "policy", "", "order of the nodes for jobs that name none: cheapest, balanced or fastest")
	f.StringVar(&file, "file", "", "take policy and weights from this YAML `file`; flags go first")
	f.BoolVar(&in.Defaults, "defaults", false, "what is not named becomes the default again")
	_ = cmd.RegisterFlagCompletionFunc("policy", cobra.FixedCompletions([]string{"cheapest", "balanced", "fastest"}, cobra.ShellCompDirectiveNoFileComp))
	return c.Command(cmd)
}

// meaning says what a weight weighs.
func meaning(name string) string {
	switch name {
	case "vram":
		return "weight of a tight fit of the GPUs, the heaviest"
	case "cpu":
		return "weight of a tight fit of the cores"
	case "memory":
		return "weight of a tight fit of the memory"
	case "spare_gpu":
		return "weight of leaving nodes with free GPUs to jobs that want them"
	case "price":
		return "weight of the price, under the policy balanced"
	case "reliability":
		return "weight of nodes that let few jobs down"
	case "return":
		return "weight of nodes whose owner stays away longer"
	case "speed":
		return "weight of fast nodes"
	case "latency":
		return "weight of nodes that answer soon"
	case "cached":
		return "weight of nodes that have the inputs"
	case "baseline_fleet":
		return "how many nodes must fit before measured qualities count"
	}
	return "weight of " + name
}

func newWeightsHistory(env world.Env) *cobra.Command {
	c := people.NewClient(env)
	var limit int
	cmd := &cobra.Command{
		Use:   "history",
		Short: "List the versions of the weights, the newest first",
		Long: `History lists what was set when and by whom, the newest first, and what each
version changed of the one before. Placements name the version that chose.`,
		Example: `  offpeak weights history --limit 5`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 0 {
				return world.Refuse(&offpeak.FieldError{Field: "--limit", Value: strconv.Itoa(limit), Rule: "is 0 (no limit) or more"})
			}
			if _, err := c.Dial(); err != nil {
				return err
			}
			history := func(q url.Values, limit int) (wire.List[wire.Weights], error) {
				return people.Pages(cmd.Context(), c, q, limit, func(ctx context.Context, d *wire.Direct, q url.Values) (wire.List[wire.Weights], error) {
					return d.WeightsHistory(ctx, q)
				})
			}
			list, err := history(url.Values{}, limit)
			if err != nil {
				return err
			}
			all := list.Items
			if list.Next != "" {
				// What the last one changed is told by the one before it.
				before, err := history(url.Values{"cursor": {list.Next}}, 1)
				if err != nil {
					return err
				}
				all = slices.Concat(all, before.Items)
			}
			ids := make([]string, len(list.Items))
			for i := range list.Items {
				ids[i] = version(&list.Items[i])
			}
			return c.Print(list, ids, func(t *render.Table) {
				t.Row("VERSION", "SET", "BY", "CHANGED")
				for i := range list.Items {
					w := &list.Items[i]
					// The first changed the defaults.
					d := placement.DefaultTuning()
					before := &wire.Weights{Policy: string(d.Policy), Weights: d.Named()}
					if i+1 < len(all) {
						before = &all[i+1]
					}
					t.Row(version(w), render.Stamp(w.At), render.Dash(string(w.By)), difference(before, w))
				}
			})
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 0, "at most `n` versions; 0 is all")
	return c.Command(cmd)
}

// difference says what a version changed of the one before.
func difference(before, w *wire.Weights) string {
	var parts []string
	if before.Policy != w.Policy {
		parts = append(parts, "policy "+w.Policy)
	}
	for _, name := range placement.WeightNames() {
		v, there := w.Weights[name]
		if was := before.Weights[name]; there && was != v {
			parts = append(parts, name+" "+short(was)+"→"+short(v))
		}
	}
	return render.Dash(strings.Join(parts, ", "))
}
