package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/agent"
	"offpeak/agent/supervisor"
)

func newAgentStatus(env Env, data *string) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say how this machine's agent fares",
		Long:  `Status asks the agent that runs here, or says what is known of the node while none does.`,
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := tableOrJSON(format); err != nil {
				return err
			}
			st, err := agent.Tell(cmd.Context(), *data, agent.OrderStatus, 0)
			if errors.Is(err, agent.ErrNotRunning) {
				if st, err = agent.Offline(*data); errors.Is(err, agent.ErrNotEnrolled) || errors.Is(err, agent.ErrIdentityLost) {
					err = nil
				}
			}
			if err != nil {
				return err
			}
			return showStatus(env, format, st)
		},
	}
	cmd.Flags().StringVarP(&format, "format", "o", "table", "print `table` or json")
	return cmd
}

// newAgentOrder makes the command of one order of the owner.
func newAgentOrder(env Env, data *string, order agent.Order, short, long string) *cobra.Command {
	var format string
	var lasting time.Duration
	cmd := &cobra.Command{
		Use:   string(order),
		Short: short,
		Long:  long,
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if lasting < 0 {
				return badInput("--for: %v: is not negative", lasting)
			}
			if err := tableOrJSON(format); err != nil {
				return err
			}
			ctx, restore := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer restore()
			st, err := agent.Tell(ctx, *data, order, lasting)
			if errors.Is(err, agent.ErrNotRunning) {
				if err = orderOffline(cmd, env, *data, order, lasting); err == nil {
					st, err = agent.Offline(*data)
				}
			}
			if order == agent.OrderLeave && errors.Is(err, agent.ErrNotEnrolled) {
				err = nil
			}
			if order == agent.OrderLeave && err == nil && format == "table" {
				_, err = fmt.Fprintln(env.Stdout, "This machine left the grid. Its identity is removed.")
				return err
			}
			if err != nil {
				return err
			}
			return showStatus(env, format, st)
		},
	}
	cmd.Flags().StringVarP(&format, "format", "o", "table", "print `table` or json")
	if order == agent.OrderPause {
		cmd.Flags().DurationVar(&lasting, "for", 0, "how long, for example 2h (default until resume)")
	}
	return cmd
}

// orderOffline does what can be done without a running agent: orders are kept
// for the next one, and a node can leave.
func orderOffline(cmd *cobra.Command, env Env, data string, order agent.Order, lasting time.Duration) error {
	cfg := agent.Config{Data: data, Version: build(env.Version).Version}
	world, err := agentEnv(cfg, machine{gpus: "all"}, supervisor.Found{}, quiet(env))
	if err != nil {
		return err
	}
	if order == agent.OrderLeave {
		return agent.Leave(cmd.Context(), cfg, world)
	}
	if err := agent.Enrolled(data, world.Log); err != nil {
		return err
	}
	return agent.Keep(cfg, world, order, lasting)
}

func showStatus(env Env, format string, st agent.Status) error {
	if format == "json" {
		e := json.NewEncoder(env.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(st)
	}
	t := tabwriter.NewWriter(env.Stdout, 0, 8, 2, ' ', 0)
	row := func(name, text string) { fmt.Fprintf(t, "%s\t%s\n", name, text) }
	if st.Running {
		row("Agent", fmt.Sprintf("running, pid %d, version %s", st.PID, st.Version))
	} else {
		row("Agent", "not running")
	}
	if st.Node != "" {
		row("Node", fmt.Sprintf("%q (%s)", st.Name, st.Node))
		row("Hub", strings.Join(st.Hubs, ", ")+connection(st))
	}
	if state := stateText(st); state != "" {
		row("State", state)
	}
	if st.Problem != "" {
		row("Problem", strings.ReplaceAll(st.Problem, "\n", "; "))
	}
	for i, l := range st.Leases {
		name := ""
		if i == 0 {
			name = "Jobs"
		}
		row(name, leaseText(l))
	}
	if len(st.Leases) == 0 && st.Running {
		row("Jobs", "none")
	}
	return t.Flush()
}

func connection(st agent.Status) string {
	switch {
	case !st.Running:
		return ""
	case st.Connected:
		return ", connected"
	case st.Heard.IsZero():
		return ", not connected yet"
	}
	return ", not connected since " + st.Heard.Format(time.DateTime)
}

func stateText(st agent.Status) string {
	switch {
	case st.Conflict:
		return "held: another agent uses this node's identity; stop one of the two, remove its data folder and join it again"
	case st.Draining:
		return "draining: takes no new work, pauses once its jobs have ended"
	case st.Why == offpeak.EndPaused && !st.Until.IsZero():
		return "paused until " + st.Until.Local().Format(time.DateTime)
	case st.Why == offpeak.EndPaused:
		return "paused: takes no work before `offpeak agent resume`"
	case st.Why != "":
		return "in use: " + strings.ReplaceAll(string(st.Why), "_", " ")
	}
	return string(st.Availability)
}

func leaseText(l agent.LeaseStatus) string {
	text := fmt.Sprintf("%s attempt %d, %s, ran %s", l.Job, l.Attempt, l.Phase, (time.Duration(l.Ran) * time.Millisecond).Round(time.Second))
	if l.Frozen {
		text += ", frozen"
	}
	if l.Stop != "" {
		text += ", asked to go: " + strings.ReplaceAll(string(l.Stop), "_", " ")
	}
	return text
}
