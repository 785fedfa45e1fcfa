package cli

import (
	"context"
	"log/slog"
	"path/filepath"

	"github.com/spf13/pflag"

	"offpeak/agent"
	"offpeak/agent/supervisor"
	owner "offpeak/cmd/offpeak/cli/machine"
	"offpeak/cmd/offpeak/cli/machine/doctor"
	"offpeak/internal/local"
)

// setUp reads how an agent would be set up, as far as files and the environment say it,
// and makes what it would be given. What can't be read stands at its default.
func setUp(env Env) func(data string) (owner.Setup, error) {
	return func(data string) (owner.Setup, error) {
		o := agentOptions{data: data}
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		flags.String("data", data, "")
		o.runFlags(flags)
		err := configure(flags, env.Getenv("OFFPEAK_CONFIG"), filepath.Join(local.Home(env.Getenv), "agent.yaml"), env.Getenv)
		if kept := filepath.Join(data, agent.SettingsFile); err == nil && exists(kept) {
			err = configure(flags, kept, "", func(string) string { return "" })
		}
		if err == nil {
			err = o.machine.validate()
		}
		silent := slog.New(slog.DiscardHandler)
		// The disk that will hold the folder counts where it is not there yet.
		disk := data
		for !exists(disk) && disk != filepath.Dir(disk) {
			disk = filepath.Dir(disk)
		}
		return owner.Setup{
			Said: doctor.Settings{NoLimits: o.noLimits, Presence: o.presence, Accept: o.machine.accept, GPUs: o.machine.gpus},
			Hubs: o.hubs,
			World: func() (agent.Env, error) {
				// The network of jobs is tried apart.
				m := o.machine
				m.network.allow = nil
				return agentEnv(context.Background(), agent.Config{Data: disk, Version: build(env.Version).Version}, m, supervisor.Found{}, silent)
			},
			Egress: func(ctx context.Context, dir string) error {
				return o.machine.network.try(ctx, agent.Config{Data: dir}, silent)
			},
			Fences: func(ctx context.Context, dir string) (supervisor.Found, error) {
				return findFences(ctx, agent.Config{Data: dir}, silent)
			},
		}, err
	}
}
