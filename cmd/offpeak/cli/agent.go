package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"offpeak"
	"offpeak/agent"
	"offpeak/agent/presence"
	owner "offpeak/cmd/offpeak/cli/machine"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/internal/local"
	"offpeak/wire"
)

// agentOptions is what the flags of the agent commands say.
type agentOptions struct {
	data, config, name string
	hubs               []string
	warm               int
	stopJobs, noLimits bool
	look               time.Duration
	presence           bool
	machine            machine
	logging            logging
}

// nearbyWait is how long an agent that is not enrolled waits for a hub on its
// own machine, so that the two may be started at once.
const nearbyWait = 5 * time.Second

func newAgent(env Env) *cobra.Command {
	var o agentOptions
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Let this machine work for a grid",
		Long: `Let this machine work for a grid. Enrol it once with "offpeak agent join TOKEN";
beside a hub on the same machine no token is needed. Without a subcommand the
agent runs, as with "offpeak agent run".`,
		Example: `  offpeak agent join offpeak_join_…
  offpeak agent
  offpeak agent pause --for 2h`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd, env) },
	}
	cmd.PersistentFlags().StringVar(&o.data, "data", filepath.Join(local.Home(env.Getenv), "agent"), "folder that holds the node's identity and its jobs")
	o.runFlags(cmd.Flags())
	cmd.AddCommand(
		newAgentRun(env), newAgentJoin(env), owner.NewStatus(env, &o.data, obey(env)), owner.NewPolicy(env, &o.data), owner.NewDoctor(env, &o.data, setUp(env)),
		newAgentOrder(env, &o.data, agent.OrderPause, "Take jobs off this machine now and take no new ones",
			"Pause gives running jobs notice, so that they can save their state, and takes no new ones.\nIt works while no hub can be reached and outlives a restart."),
		newAgentOrder(env, &o.data, agent.OrderResume, "End a pause or a drain", "Resume lets the machine work again."),
		newAgentOrder(env, &o.data, agent.OrderDrain, "Take no new work, and pause once the running jobs have ended",
			"Drain lets running jobs end in their own time and takes no new ones."),
		newAgentOrder(env, &o.data, agent.OrderLeave, "Take this machine out of the grid",
			"Leave gives running jobs notice, removes the node from its hub and its identity from this machine."),
	)
	return cmd
}

func (o *agentOptions) runFlags(f *pflag.FlagSet) {
	f.StringVar(&o.config, "config", "", "`file` of settings in YAML (default agent.yaml beside the data folder, if there is one)")
	f.BoolVar(&o.noLimits, "no-limits", false, "don't hold jobs to the CPU, memory and processes they asked for")
	f.BoolVar(&o.presence, "presence", true, "look who else uses this machine, and go by \"offpeak agent policy\"; false on a machine that is nobody's desk, where only your hours count")
	f.IntVar(&o.warm, "warm", 2, "supervisors that are kept ready, so that jobs start at once")
	f.BoolVar(&o.stopJobs, "stop-jobs", false, "when the agent is stopped, give running jobs notice and wait for them, instead of leaving them to the next agent")
	f.DurationVar(&o.look, "look", 15*time.Second, "how often GPUs are looked at, for what others take of them, and for those that vanished or came")
	o.joinFlags(f)
}

func (o *agentOptions) joinFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.hubs, "hub", nil, "`addresses` of hubs to use instead of those in the join token")
	f.StringVar(&o.name, "name", "", "the node's name when it is enrolled (default the host name)")
	o.machine.flags(f)
	o.logging.flags(f)
}

func newAgentRun(env Env) *cobra.Command {
	var o agentOptions
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the agent",
		Long: `Run keeps the machine in its grid and runs the jobs it is given. Told to stop, it
leaves running jobs to their supervisors, where the next agent finds them again;
without one they freeze when their lease is about to end.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.data = cmd.Flag("data").Value.String()
			return o.run(cmd, env)
		},
	}
	o.runFlags(cmd.Flags())
	return cmd
}

// prepare reads the settings and makes what an agent is given of the world.
func (o *agentOptions) prepare(cmd *cobra.Command, env Env) (agent.Config, agent.Env, error) {
	if o.config == "" {
		o.config = env.Getenv("OFFPEAK_CONFIG")
	}
	if err := configure(cmd.Flags(), o.config, filepath.Join(local.Home(env.Getenv), "agent.yaml"), env.Getenv); err != nil {
		return agent.Config{}, agent.Env{}, err
	}
	// What was said when the machine joined holds where nothing else is said.
	if kept := filepath.Join(o.data, agent.SettingsFile); exists(kept) {
		if err := configure(cmd.Flags(), kept, "", func(string) string { return "" }); err != nil {
			return agent.Config{}, agent.Env{}, err
		}
	}
	if o.warm < 0 || o.warm > 64 {
		return agent.Config{}, agent.Env{}, badInput("--warm: %d: is 0 to 64", o.warm)
	}
	if o.look != 0 && o.look < 100*time.Millisecond {
		return agent.Config{}, agent.Env{}, badInput("--look: %v: is at least 100ms", o.look)
	}
	for _, hub := range o.hubs {
		if err := remote.CheckAddress("--hub", hub); err != nil {
			return agent.Config{}, agent.Env{}, err
		}
	}
	if err := o.machine.validate(); err != nil {
		return agent.Config{}, agent.Env{}, err
	}
	log, err := o.logging.logger(env.Stderr)
	if err != nil {
		return agent.Config{}, agent.Env{}, err
	}
	cfg := agent.Config{
		Data: o.data, Hubs: o.hubs, Warm: o.warm, NoLimits: o.noLimits, StopJobs: o.stopJobs, Version: build(env.Version).Version,
		Times: agent.Times{Devices: o.look},
	}
	if o.machine.fake != "" {
		// Looking at a folder costs little, and who tries something out waits for it.
		cfg.Times.Devices, cfg.Times.Readings = time.Second, time.Second
	}
	found, err := findFences(cmd.Context(), cfg, log)
	if err != nil {
		return agent.Config{}, agent.Env{}, err
	}
	world, err := agentEnv(cmd.Context(), cfg, o.machine, found, log)
	return cfg, world, err
}

// run is the agent's life in this process.
func (o *agentOptions) run(cmd *cobra.Command, env Env) error {
	cfg, world, err := o.prepare(cmd, env)
	if err != nil {
		return err
	}
	ctx, restore := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer restore()
	// With the first signal the default comes back, so that a second one ends
	// the process at once.
	defer context.AfterFunc(ctx, restore)()
	// The owner's memory is worth more than the time of a collection.
	debug.SetGCPercent(50)
	// So are the machine's other cores: what an agent does for itself keeps to
	// one, and is done in a tenth less processor time for it.
	runtime.GOMAXPROCS(1)
	if err := agent.Enrolled(cfg.Data, world.Log); errors.Is(err, agent.ErrNotEnrolled) || errors.Is(err, agent.ErrIdentityLost) {
		if joined := o.joinNearby(ctx, cfg, world, env); errors.Is(joined, fs.ErrNotExist) {
			return err
		} else if joined != nil {
			return joined
		}
	} else if err != nil {
		return err
	}
	if o.presence {
		var done func()
		world.Presence, world.Announce, done = presence.Sources(presence.Options{Getenv: env.Getenv})
		defer done()
	}
	return agent.New(cfg, world).Run(ctx)
}

// joinNearby enrols at the hub that this user runs on this machine: whoever can
// read its local file may make a join token. fs.ErrNotExist: there is none.
func (o *agentOptions) joinNearby(ctx context.Context, cfg agent.Config, world agent.Env, env Env) error {
	here, err := waitNearby(ctx, local.Path(env.Getenv))
	if err != nil {
		return err
	}
	client := world.Client(here.Fingerprint)
	defer client.CloseIdleConnections()
	op := offpeak.OpID("op_" + rand.Text())
	var errs []error
	for _, hub := range here.Hubs {
		once, cancel := context.WithTimeout(ctx, nearbyWait)
		d := &wire.Direct{Client: client, Base: hub, Token: here.Token, Agent: "offpeak-agent/" + cfg.Version}
		made, err := d.CreateToken(once, op, wire.NewToken{Name: "agent on this machine", Role: offpeak.RoleJoin})
		cancel()
		if err != nil {
			errs = append(errs, fmt.Errorf("make a join token at %s: %w", hub, err))
			continue
		}
		token, err := wire.DecodeJoinToken(made.Secret)
		if err != nil {
			return fmt.Errorf("read join token of %s: %w", hub, err)
		}
		// The hub is reached the way it was found, whatever it advertises.
		token.Hubs, token.Fingerprint = here.Hubs, here.Fingerprint
		name, err := agent.Join(ctx, cfg, world, token, o.name)
		if err == nil {
			world.Log.Info("enrolled at the hub on this machine", "name", name)
		}
		return err
	}
	return errors.Join(errs...)
}

func waitNearby(ctx context.Context, path string) (wire.Local, error) {
	ctx, cancel := context.WithTimeout(ctx, nearbyWait)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		here, err := local.Read(path)
		if !errors.Is(err, fs.ErrNotExist) {
			return here, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return here, err
		}
	}
}

func newAgentJoin(env Env) *cobra.Command {
	var o agentOptions
	cmd := &cobra.Command{
		Use:   "join [TOKEN]",
		Short: "Enrol this machine as a node",
		Long: `Join enrols this machine with a token from "offpeak token join". The token works
once; it holds the hub's addresses and key. Beside a hub of the same user on this
machine no token is needed. The key that the node is known by is made here.

What flags say of the machine here (--cpu, --memory, --disk, --gpus, --label,
--region, --accept, --allow-account, --deny-account, --allow-egress and the like) holds for "offpeak agent
run" too, unless that says else.`,
		Example: `  offpeak agent join offpeak_join_… --name attic --label room=attic`,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.data = cmd.Flag("data").Value.String()
			said := o.machine.said(cmd.Flags())
			var token wire.JoinToken
			if len(args) > 0 {
				var err error
				if token, err = wire.DecodeJoinToken(strings.TrimSpace(args[0])); err != nil {
					return err
				}
			}
			cfg, world, err := o.prepare(cmd, env)
			if err != nil {
				return err
			}
			if len(args) == 0 {
				if err := o.joinNearby(cmd.Context(), cfg, world, env); errors.Is(err, fs.ErrNotExist) {
					return badInput("no hub of yours runs on this machine: give the token that `offpeak token join` printed on the hub's side")
				} else if err != nil {
					return err
				}
			} else if _, err := agent.Join(cmd.Context(), cfg, world, token, o.name); err != nil {
				return err
			}
			if err := keepSettings(cfg.Data, said); err != nil {
				return err
			}
			st, err := agent.Offline(cfg.Data)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(env.Stdout, "This machine is node %q (%s) now. Let it work with `offpeak agent`.\n", st.Name, st.Node)
			return err
		},
	}
	o.joinFlags(cmd.Flags())
	return cmd
}

// quiet is the log of commands that say themselves what they did.
func quiet(env Env) *slog.Logger {
	return slog.New(slog.NewTextHandler(env.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}
