package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"offpeak/agent"
	"offpeak/agent/supervisor"
	owner "offpeak/cmd/offpeak/cli/machine"
)

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
			st, err := obey(env)(ctx, *data, order, lasting)
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
			return owner.ShowStatus(env, format, st)
		},
	}
	cmd.Flags().StringVarP(&format, "format", "o", "table", "print `table` or json")
	if order == agent.OrderPause {
		cmd.Flags().DurationVar(&lasting, "for", 0, "how long, for example 2h (default until resume)")
	}
	return cmd
}

// obey gives an order to the agent that runs, or keeps it for the next one.
func obey(env Env) owner.Obey {
	return func(ctx context.Context, data string, order agent.Order, lasting time.Duration) (agent.Status, error) {
		st, err := agent.Tell(ctx, data, order, lasting)
		if errors.Is(err, agent.ErrNotRunning) {
			if err = orderOffline(ctx, env, data, order, lasting); err == nil {
				st, err = agent.Offline(data)
			}
		}
		return st, err
	}
}

// orderOffline does what can be done without a running agent: orders are kept
// for the next one, and a node can leave.
func orderOffline(ctx context.Context, env Env, data string, order agent.Order, lasting time.Duration) error {
	cfg := agent.Config{Data: data, Version: build(env.Version).Version}
	world, err := agentEnv(ctx, cfg, machine{gpus: "all"}, supervisor.Found{}, quiet(env))
	if err != nil {
		return err
	}
	if order == agent.OrderLeave {
		return agent.Leave(ctx, cfg, world)
	}
	if err := agent.Enrolled(data, world.Log); err != nil {
		return err
	}
	return agent.Keep(cfg, world, order, lasting)
}
