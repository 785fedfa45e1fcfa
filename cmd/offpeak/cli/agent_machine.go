package cli

import (
	"context"
	"crypto/rand"
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"offpeak"
	"offpeak/agent"
	"offpeak/agent/driver"
	"offpeak/agent/driver/process"
	"offpeak/agent/driver/wasm"
	"offpeak/agent/hardware"
	"offpeak/agent/supervisor"
	"offpeak/agent/warm"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/wire"
)

// machine is what the owner says of the machine: how much of it the grid may
// use, and how it is found.
type machine struct {
	cpu          float64
	memory, disk string
	gpus         string
	fake         string
	labels       map[string]string
	region       string
	accept       string
	allow, deny  []string
	network      network
}

func (m *machine) flags(f *pflag.FlagSet) {
	f.Float64Var(&m.cpu, "cpu", 0, "`cores` that the grid may use (default all)")
	f.StringVar(&m.memory, "memory", "", "memory that the grid may use, for example 16GiB (default most of it)")
	f.StringVar(&m.disk, "disk", "", "disk that the grid may use, for example 200GB (default most of what is free)")
	f.StringVar(&m.gpus, "gpus", "all", "GPUs that the grid may use: all or none")
	f.StringVar(&m.fake, "fake-devices", "", "offer the made-up devices of a `folder` instead of this machine's, for tests and demos")
	_ = f.MarkHidden("fake-devices")
	f.Var((*labels)(&m.labels), "label", "labels that jobs may ask for, as `key=value`, with commas between (repeatable)")
	f.StringVar(&m.accept, "accept", "own", "whose process jobs to run: own, those of the node's account, or any; wasm jobs are fenced and run for all")
	f.StringSliceVar(&m.allow, "allow-account", nil, "`ids` of the only other accounts whose jobs to run (default all)")
	f.StringSliceVar(&m.deny, "deny-account", nil, "`ids` of accounts whose jobs not to run")
	m.network.flags(f)
	f.StringVar(&m.region, "region", "", "where the machine is, for example eu-west")
}

// labels is the value of --label: key=value with commas between.
type labels map[string]string

// Set implements pflag.Value. A label has one value, however often it is named.
func (l *labels) Set(text string) error {
	pairs, err := csv.NewReader(strings.NewReader(text)).Read()
	if err != nil {
		return &offpeak.ValueError{Value: text, Rule: "is key=value, with commas between"}
	}
	if *l == nil {
		*l = labels{}
	}
	for _, pair := range pairs {
		k, v, ok := strings.Cut(pair, "=")
		k, v = strings.TrimSpace(k), strings.TrimSpace(v)
		if !ok {
			return &offpeak.ValueError{Value: text, Rule: "is key=value, with commas between"}
		}
		if rule := offpeak.LabelRule(k, v); rule != "" {
			return &offpeak.ValueError{Value: pair, Rule: rule}
		}
		if first, again := (*l)[k]; again && first != v {
			return &offpeak.ValueError{Value: pair, Rule: fmt.Sprintf("contradicts %s=%s: %s has one value", k, first, k)}
		}
		(*l)[k] = v
	}
	return nil
}

// String implements pflag.Value: what Set reads.
func (l *labels) String() string {
	var pairs []string
	for _, k := range slices.Sorted(maps.Keys(*l)) {
		pairs = append(pairs, k+"="+(*l)[k])
	}
	if len(pairs) == 0 {
		return ""
	}
	var b strings.Builder
	w := csv.NewWriter(&b)
	_ = w.Write(pairs) // into memory
	w.Flush()
	return strings.TrimSpace(b.String())
}

// Type implements pflag.Value.
func (l *labels) Type() string { return "labels" }

// said is which of these flags were given, with their values.
func (m *machine) said(flags *pflag.FlagSet) map[string]string {
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(machine).flags(own)
	out := map[string]string{}
	flags.Visit(func(f *pflag.Flag) {
		if own.Lookup(f.Name) == nil {
			return
		}
		text := f.Value.String()
		if strings.HasPrefix(text, "[") && f.Value.Type() != "string" {
			text = strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")
		}
		out[f.Name] = text
	})
	return out
}

// keepSettings writes down what was said of the machine when it joined.
func keepSettings(data string, said map[string]string) error {
	path := filepath.Join(data, agent.SettingsFile)
	if len(said) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove settings: %w", err)
		}
		return nil
	}
	text, err := yaml.Marshal(said)
	if err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	if err := remote.WritePrivate(path, text); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (m *machine) validate() error {
	if !(m.cpu >= 0) || m.cpu > 4096 {
		return badInput("--cpu: %v: is a number of cores up to 4096, for example 4 or 0.5", m.cpu)
	}
	for flag, size := range map[string]string{"memory": m.memory, "disk": m.disk} {
		if size == "" {
			continue
		}
		if _, err := offpeak.ParseBytes(size); err != nil {
			return badInput("--%s: %w", flag, err)
		}
	}
	if m.gpus != "all" && m.gpus != "none" {
		return badInput("--gpus: %q: is all or none", m.gpus)
	}
	if m.accept != "own" && m.accept != "any" {
		return badInput("--accept: %q: is own or any", m.accept)
	}
	if err := m.network.validate(); err != nil {
		return err
	}
	if err := m.guests().Validate("--allow-account", "--deny-account"); err != nil {
		return badInput("%w", err)
	}
	return nil
}

// guests are the accounts that the owner names, nil for none.
func (m *machine) guests() *offpeak.Guests {
	if len(m.allow)+len(m.deny) == 0 {
		return nil
	}
	var g offpeak.Guests
	for _, id := range m.allow {
		g.Allow = append(g.Allow, offpeak.AccountID(id))
	}
	for _, id := range m.deny {
		g.Deny = append(g.Deny, offpeak.AccountID(id))
	}
	return &g
}

// limit takes from an inventory what the owner keeps. Other accounts' jobs get
// the drivers that fence them in; any, if the owner says so.
func (m *machine) limit(inv offpeak.Inventory) offpeak.Inventory {
	if m.cpu > 0 {
		inv.CPU = int64(m.cpu * 1000)
	}
	if b, err := offpeak.ParseBytes(m.memory); err == nil {
		inv.Memory = b
	}
	if b, err := offpeak.ParseBytes(m.disk); err == nil {
		inv.Disk = b
	}
	if m.gpus == "none" {
		inv.Devices = nil
	}
	if m.region != "" {
		inv.Region = m.region
	}
	if len(m.labels) > 0 {
		inv.Labels = maps.Clone(m.labels)
	}
	inv.Guests = m.guests()
	inv.Shared = slices.Clone(inv.Drivers)
	if m.accept != "any" {
		inv.Shared = slices.DeleteFunc(inv.Shared, func(d string) bool { return d == process.Driver{}.Name() })
	}
	return inv
}

// agentEnv is the agent's outside world on this machine. An agent that will run
// jobs first finds out, with found, how they can be fenced.
func agentEnv(ctx context.Context, cfg agent.Config, m machine, found supervisor.Found, log *slog.Logger) (agent.Env, error) {
	exe, err := os.Executable()
	if err != nil {
		return agent.Env{}, fmt.Errorf("find own binary: %w", err)
	}
	processes, warning := m.network.process(exe, found)
	if warning != "" {
		found.Warnings = append(found.Warnings, warning)
	}
	drivers := []driver.Driver{processes, wasm.Driver{Exe: exe}}
	var names []string
	for _, d := range drivers {
		if err := d.Available(); err != nil {
			log.Info("driver does not work here", "driver", d.Name(), "error", err)
			found.Warnings = append(found.Warnings, fmt.Sprintf("no %s jobs: %v", d.Name(), err))
			continue
		}
		names = append(names, d.Name())
	}
	out := m.network.open(ctx, cfg, exe, drivers, log)
	if out.refused {
		found.Warnings = append(found.Warnings, "egress: "+out.words)
	}
	src := hardware.Sources{Folder: cfg.Data, Fake: m.fake}
	look := func(ctx context.Context) (offpeak.Inventory, error) {
		inv := hardware.Probe(ctx, src)
		inv.Drivers, inv.Fences, inv.Version = names, found.Fences, cfg.Version
		inv.Egress = out.offer
		inv.Warnings = append(inv.Warnings, found.Warnings...)
		return inv, ctx.Err()
	}
	return agent.Env{
		Boot:        func() time.Duration { return time.Duration(supervisor.BootTime()) },
		Now:         time.Now,
		Random:      rand.Reader,
		Client:      wire.Client,
		Drivers:     drivers,
		Supervisors: supervisors{exe},
		Probe:       m.offered(steadyDisk(cfg.Data, look)),
		Measure:     m.measure(hardware.NewMeter(src)),
		Egress:      out.proxy,
		Network:     out.words,
		Free:        free,
		Log:         log,
	}, nil
}

// measure looks at the devices, if the owner offers them.
func (m machine) measure(meter *hardware.Meter) func(context.Context, []int) hardware.Sample {
	if m.gpus == "none" {
		return nil
	}
	return meter.Measure
}

// offered is what look finds, less what the owner keeps: the owner's word comes
// last, whatever was measured.
func (m machine) offered(look func(context.Context) (offpeak.Inventory, error)) func(context.Context) (offpeak.Inventory, error) {
	return func(ctx context.Context) (offpeak.Inventory, error) {
		inv, err := look(ctx)
		return m.limit(inv), err
	}
}

// steadyDisk keeps the disk that was found first: what jobs write meanwhile is
// theirs already, and must not make the machine seem to shrink under them.
func steadyDisk(data string, look func(context.Context) (offpeak.Inventory, error)) func(context.Context) (offpeak.Inventory, error) {
	var disk offpeak.Bytes
	return func(ctx context.Context) (offpeak.Inventory, error) {
		inv, err := look(ctx)
		if disk == 0 {
			// Whole MiB, with a tenth left to the owner.
			disk = (inv.Disk + usage(filepath.Join(data, "leases"))) * 9 / 10 / offpeak.MiB * offpeak.MiB
		}
		inv.Disk = disk
		return inv, err
	}
}

// usage sums the sizes of the files below a folder, as far as they can be read.
func usage(dir string) (sum offpeak.Bytes) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				sum += offpeak.Bytes(info.Size())
			}
		}
		return nil
	})
	return sum
}

// findFences tries what this machine offers to fence jobs.
func findFences(ctx context.Context, cfg agent.Config, log *slog.Logger) (supervisor.Found, error) {
	exe, err := os.Executable()
	if err != nil {
		return supervisor.Found{}, fmt.Errorf("find own binary: %w", err)
	}
	if err := os.MkdirAll(cfg.Data, 0o700); err != nil {
		return supervisor.Found{}, fmt.Errorf("make data folder: %w; choose another with --data", err)
	}
	found, err := supervisor.Probe(ctx, exe, cfg.Data)
	if err != nil {
		return found, err
	}
	for _, w := range found.Warnings {
		log.Warn("fencing jobs", "warning", w)
	}
	return found, nil
}

// free says how many bytes an unprivileged process may still write at path.
func free(path string) (offpeak.Bytes, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, fmt.Errorf("look at the disk: %w", err)
	}
	return offpeak.Bytes(st.Bavail) * offpeak.Bytes(st.Bsize), nil
}

// supervisors starts supervisor processes from this binary.
type supervisors struct{ exe string }

// Spawn implements warm.Starter.
func (s supervisors) Spawn(ctx context.Context, dir string) (warm.Supervisor, error) {
	// Not the agent's own stderr: a supervisor outlives the agent, and whoever
	// waits for the end of that stream would wait for the job.
	log, err := os.OpenFile(filepath.Join(dir, "supervise.log"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open supervisor's log: %w", err)
	}
	defer log.Close()
	h, err := supervisor.Spawn(ctx, supervisor.Options{Exe: s.exe, Dir: dir, Log: log})
	if err != nil {
		said, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(string(said)))
	}
	return h, nil
}

// Adopt implements warm.Starter.
func (s supervisors) Adopt(ctx context.Context, dir string) (warm.Supervisor, error) {
	h, err := supervisor.Adopt(ctx, dir)
	if err != nil {
		return nil, err
	}
	return h, nil
}

// Clear implements warm.Starter.
func (supervisors) Clear(dir string) error { return supervisor.Remove(dir) }
