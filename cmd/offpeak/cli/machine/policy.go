package machine

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"offpeak"
	"offpeak/agent"
	"offpeak/agent/presence"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
)

// NewPolicy makes the commands of the owner's rules.
func NewPolicy(env world.Env, data *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Show and set when this machine may work",
		Long: `Policy is your rules for this machine: how long you must have been away, what must
not run beside a job, and what to do on battery, in heat and outside your hours.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPolicyShow(env, data), newPolicySet(env, data))
	return cmd
}

// kept is a policy and whether an agent goes by it now.
type kept struct {
	presence.Policy
	Running bool   `json:"agent_running"`
	Problem string `json:"problem,omitempty"`
}

func newPolicyShow(env world.Env, data *string) *cobra.Command {
	var as format
	cmd := &cobra.Command{
		Use:     "show",
		Short:   "Show your rules for this machine",
		Long:    `Show prints the rules that are in force, or that the next agent will begin with.`,
		Example: `  offpeak agent policy show`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := as.check(); err != nil {
				return err
			}
			k, err := readPolicy(cmd, *data)
			if err != nil {
				return err
			}
			return showPolicy(env, as, k)
		},
	}
	as.flag(cmd)
	return cmd
}

// readPolicy asks the agent that runs here, or reads what is kept for the next.
func readPolicy(cmd *cobra.Command, data string) (kept, error) {
	st, err := agent.Tell(cmd.Context(), data, agent.OrderStatus, 0)
	switch {
	case errors.Is(err, agent.ErrNotRunning):
		p, err := agent.Policy(data)
		k := kept{Policy: p}
		if errors.Is(err, agent.ErrSpoilt) {
			k.Problem, err = err.Error(), nil
		}
		return k, err
	case err != nil:
		return kept{}, err
	case st.Policy == nil:
		return kept{}, errors.New("the agent that runs here knows no rules: it is of an older version; start it anew")
	}
	return kept{*st.Policy, true, st.PolicyProblem}, nil
}

func showPolicy(env world.Env, as format, k kept) error {
	if as == "json" {
		return printJSON(env.Stdout, k)
	}
	p := k.Policy
	t := render.NewTable(env.Stdout)
	t.Row("RULE", "IS")
	idle := p.IdleAfter.String()
	if p.IdleAfter == 0 {
		idle = "0s: works beside you"
	}
	t.Row("idle-after", idle)
	t.Row("if-input-unknown", p.IfInputUnknown)
	t.Row("while-present", string(p.WhilePresent))
	t.Row("busy-app", render.Dash(strings.Join(p.BusyApps, ", ")))
	t.Row("full-screen", fmt.Sprint(p.FullScreen))
	t.Row("gpu-memory", number(int64(p.GPUMemory), p.GPUMemory.String()))
	t.Row("gpu-use", number(int64(p.GPUUse), fmt.Sprintf("%d%%", p.GPUUse)))
	t.Row("on-battery", p.OnBattery.String())
	t.Row("max-temperature", number(int64(p.MaxTemperature), fmt.Sprintf("%d °C", p.MaxTemperature)))
	t.Row("max-cpu-temperature", number(int64(p.MaxCPUTemperature), fmt.Sprintf("%d °C", p.MaxCPUTemperature)))
	t.Row("metered", p.Metered)
	hours := make([]string, len(p.Hours))
	for i, w := range p.Hours {
		hours[i] = w.String()
	}
	if len(hours) == 0 {
		hours = []string{"always"}
	}
	t.Row("hours", strings.Join(hours, "; "))
	zone := p.Zone
	if zone == "" {
		zone = "this machine's (" + time.Local.String() + ")"
	}
	t.Row("zone", zone)
	if k.Problem != "" {
		t.Line("Problem: " + k.Problem)
	}
	if !k.Running {
		t.Line("No agent runs here: the next one begins with these.")
	}
	return t.Flush()
}

// number shows a bound of which zero does not look.
func number(n int64, text string) string {
	if n == 0 {
		return "not looked at"
	}
	return text
}

// rules are the flags of set.
type rules struct {
	presence.Policy
	hours []string
	reset bool
}

func (r *rules) flags(f *pflag.FlagSet) {
	d := presence.DefaultPolicy()
	f.DurationVar((*time.Duration)(&r.IdleAfter), "idle-after", d.IdleAfter.Std(), "how long nobody must have touched the machine; 0 to work beside you")
	f.StringVar(&r.IfInputUnknown, "if-input-unknown", d.IfInputUnknown, "what you count as where keys and pointer can't be seen: `present` or away")
	f.StringVar((*string)(&r.WhilePresent), "while-present", string(d.WhilePresent), "what may run while you are there: `none`, cpu (jobs without a GPU) or all")
	f.StringSliceVar(&r.BusyApps, "busy-app", nil, "`names` of programs that have the machine to themselves while they run; '' for none")
	f.BoolVar(&r.FullScreen, "full-screen", d.FullScreen, "whether a program that fills the screen has the machine to itself")
	r.GPUMemory = d.GPUMemory
	f.Var((*size)(&r.GPUMemory), "gpu-memory", "memory of a GPU that other programs may hold before jobs leave it to them; 0 not to look")
	f.IntVar(&r.GPUUse, "gpu-use", d.GPUUse, "`percent` of a GPU's time that other programs may use before jobs leave it to them; 0 not to look")
	f.TextVar(&r.OnBattery, "on-battery", d.OnBattery, "whether to work on battery: never, always, or above=60%")
	f.IntVar(&r.MaxTemperature, "max-temperature", d.MaxTemperature, "`degrees` Celsius at which a GPU is too hot; 0 not to look")
	f.IntVar(&r.MaxCPUTemperature, "max-cpu-temperature", d.MaxCPUTemperature, "`degrees` Celsius at which the processor is too hot; 0 not to look")
	f.StringVar(&r.Metered, "metered", d.Metered, "whether to work on a network that is paid by volume: `never` or always")
	f.StringArrayVar(&r.hours, "hours", nil, "a `window` in which the machine may work, for example 'mon-fri 22:00-06:00'; may be repeated; always for no bound")
	f.StringVar(&r.Zone, "zone", d.Zone, "where the clock hangs that --hours means, for example Europe/Berlin (default this machine's zone)")
	f.BoolVar(&r.reset, "reset", false, "begin with the defaults instead of the rules in force")
}

// size is a flag for bytes, written with their unit.
type size offpeak.Bytes

func (s *size) String() string { return offpeak.Bytes(*s).String() }
func (s *size) Type() string   { return "size" }

func (s *size) Set(text string) error {
	if text == "0" {
		*s = 0
		return nil
	}
	b, err := offpeak.ParseBytes(text)
	*s = size(b)
	return err
}

// over returns a policy with the flags that were given put over it.
func (r *rules) over(p presence.Policy, said *pflag.FlagSet) (presence.Policy, error) {
	if r.reset {
		p = presence.DefaultPolicy()
	}
	var bad error
	said.Visit(func(f *pflag.Flag) {
		switch f.Name {
		case "idle-after":
			p.IdleAfter = r.IdleAfter
		case "if-input-unknown":
			p.IfInputUnknown = r.IfInputUnknown
		case "while-present":
			p.WhilePresent = r.WhilePresent
		case "busy-app":
			p.BusyApps = append([]string{}, r.BusyApps...)
		case "full-screen":
			p.FullScreen = r.FullScreen
		case "gpu-memory":
			p.GPUMemory = r.GPUMemory
		case "gpu-use":
			p.GPUUse = r.GPUUse
		case "on-battery":
			p.OnBattery = r.OnBattery
		case "max-temperature":
			p.MaxTemperature = r.MaxTemperature
		case "max-cpu-temperature":
			p.MaxCPUTemperature = r.MaxCPUTemperature
		case "metered":
			p.Metered = r.Metered
		case "hours":
			p.Hours, bad = windows(r.hours)
		case "zone":
			p.Zone = r.Zone
		}
	})
	if bad != nil {
		return p, bad
	}
	return p, named(p.Validate())
}

// windows reads --hours: "always" is none.
func windows(list []string) ([]offpeak.Window, error) {
	out := []offpeak.Window{}
	for _, text := range list {
		if text == "always" && len(list) == 1 {
			break
		}
		w, err := offpeak.ParseWindow(text)
		if bad, ok := errors.AsType[*offpeak.ValueError](err); ok {
			return nil, &offpeak.FieldError{Field: "--hours", Value: text, Rule: bad.Rule}
		} else if err != nil {
			return nil, err
		}
		out = append(out, w)
	}
	return out, nil
}

// named has the refusal of a policy name the flag.
func named(err error) error {
	bad, ok := errors.AsType[*offpeak.FieldError](err)
	if !ok {
		return err
	}
	flag := strings.ReplaceAll(bad.Field, "_", "-")
	switch flag {
	case "busy-apps":
		flag = "busy-app"
	case "gpu-memory-bytes":
		flag = "gpu-memory"
	case "gpu-use-percent":
		flag = "gpu-use"
	}
	return &offpeak.FieldError{Field: "--" + flag, Value: bad.Value, Rule: bad.Rule}
}

func newPolicySet(env world.Env, data *string) *cobra.Command {
	var as format
	var r rules
	cmd := &cobra.Command{
		Use:   "set",
		Short: "Set your rules for this machine",
		Long: `Set changes the rules that its flags name and leaves the others as they are. A
running agent goes by them at once; without one they are kept for the next.

A window of --hours that ends before it begins runs over midnight, into the day
after; a whole day is 00:00-24:00. Once a rule has sent jobs away it lets none in
before what it minds has been gone for 30 seconds, the battery holds 5% more, or the
device is 8 °C cooler than the bound.`,
		Example: `  offpeak agent policy set --idle-after 10m --busy-app steam,blender
  offpeak agent policy set --hours 'mon-fri 22:00-06:00' --hours 'sat,sun 00:00-24:00'
  offpeak agent policy set --on-battery above=60% --max-temperature 83 --metered never
  offpeak agent policy set --while-present cpu
  offpeak agent policy set --hours always`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := as.check(); err != nil {
				return err
			}
			own := pflag.NewFlagSet("", pflag.ContinueOnError)
			new(rules).flags(own)
			said := false
			cmd.Flags().Visit(func(f *pflag.Flag) { said = said || own.Lookup(f.Name) != nil })
			if !said {
				return world.Hint(world.BadInput("no rule is named"), "name one, for example offpeak agent policy set --idle-after 10m")
			}
			k, err := readPolicy(cmd, *data)
			if err != nil {
				return err
			}
			p, err := r.over(k.Policy, cmd.Flags())
			if err != nil {
				return world.Hint(err, "nothing was changed; `offpeak agent policy set --help` says what each rule takes")
			}
			k = kept{p, k.Running, ""}
			if k.Running {
				_, err = agent.TellPolicy(cmd.Context(), *data, p)
			} else {
				log := slog.New(slog.NewTextHandler(env.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
				err = agent.SetPolicy(*data, p, log)
			}
			if err != nil {
				return fmt.Errorf("set the rules: %w", err)
			}
			return showPolicy(env, as, k)
		},
	}
	r.flags(cmd.Flags())
	as.flag(cmd)
	return cmd
}
