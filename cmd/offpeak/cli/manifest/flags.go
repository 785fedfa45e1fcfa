package manifest

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"offpeak/cmd/offpeak/cli/world"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"offpeak"
)

// Flags are the flags that make up a job.
type Flags struct {
	set *pflag.FlagSet

	name, driver string
	// Inputs are the files and folders that land in the job's folder.
	Inputs          []string
	outputs         []string
	env, where      []string
	labels          []string
	envFile         string
	cpu             milli
	memory, disk    Size
	vram, log       Size
	gpus            int
	gpu             gpus
	gpuVendor       string
	gpuModel        string
	gpuKind         string
	compute         string
	gpuDriver       string
	nodes, notNodes []string
	notAccounts     []string
	egress          []string
	os, arch, trust string
	policy          string
	maxPrice        Price
	steady          bool
	budget          Credits
	timeLimit       offpeak.Duration
	prepareLimit    offpeak.Duration
	checkpointEvery offpeak.Duration
	grace           offpeak.Duration
	reconnectGrace  offpeak.Duration
	keepFrozen      offpeak.Duration
	checkpointDir   string
	retries         int
	priority        int
}

// BindNeeds adds the flags that say what a job needs of a node, for commands that
// have no job.
func (s *Flags) BindNeeds(cmd *cobra.Command) {
	f := cmd.Flags()
	s.set = f
	f.StringVar(&s.driver, "driver", "", "process or wasm (default wasm for a command that ends in .wasm, else process)")
	f.Var(&s.cpu, "cpu", "`cores`, for example 2 or 0.5 (default 1)")
	f.Var(&s.memory, "memory", "main memory, for example 4GB; also the job's limit (default 256MiB)")
	f.Var(&s.disk, "disk", "room for the job's folder; also its limit (default 1GiB)")
	f.Var(&s.vram, "vram", "memory that a job can have of each GPU, for example 24GB; a card that tells up to 2 % less counts too; asks for one GPU unless --gpus says more")
	f.IntVar(&s.gpus, "gpus", 0, "number `n` of GPUs")
	f.Var(&s.gpu, "gpu", "one GPU with this memory, as SIZE[:VENDOR[:MODEL]], for example 24GB or 24GB:nvidia:RTX; repeat it for GPUs that differ")
	f.StringVar(&s.gpuVendor, "gpu-vendor", "", "`vendor` of every GPU, but of those that --gpu names one for: nvidia, amd, intel or apple")
	f.StringVar(&s.gpuModel, "gpu-model", "", "part of the `model` name of every GPU, but of those that --gpu names one for")
	f.StringVar(&s.gpuKind, "gpu-kind", "", "whose memory the GPUs work in, `kind` discrete (their own), unified (the main memory) or any (default discrete; unified for vendor apple)")
	f.StringVar(&s.compute, "compute-capability", "", "least compute capability of every GPU, a `version` like 8.6")
	f.StringVar(&s.gpuDriver, "gpu-driver", "", "least driver of every GPU, a `version` like 535.0")
	f.StringVar(&s.os, "os", "", "operating `system`: linux, windows or darwin")
	f.StringVar(&s.arch, "arch", "", "`architecture`: amd64 or arm64")
	f.StringArrayVar(&s.where, "where", nil, "`conditions` on the node's labels, with commas between: k=v, k!=v, k (it has the label) or !k (it has not); the region is one, region=… (repeatable)")
	f.StringArrayVar(&s.nodes, "node", nil, "run on this node only, `NODE` by id or name (repeatable: on one of these)")
	f.StringArrayVar(&s.notNodes, "not-node", nil, "don't run on this node, `NODE` by id or name (repeatable)")
	f.StringArrayVar(&s.notAccounts, "not-account", nil, "don't run on nodes of this account, `ACCOUNT` by id (repeatable)")
	f.StringSliceVar(&s.egress, "egress", nil, "`hosts` that the job may reach, with commas between: host:port, *.host:port or address:port, through the HTTP proxy in its environment; without it the job has no network")
	f.Var(&s.maxPrice, "max-price", "most to pay in credits per hour for the whole job, all its GPUs together, for example 0.40/h; it is also the job's bid where machines are scarce (default no limit, and no bid)")
	f.BoolVar(&s.steady, "non-interruptible", false, "no higher bid displaces the job; it pays the operator's premium on top of the ask")
	f.StringVar(&s.trust, "trust", "", "`floor` of trust in the node: any, validated or own (default any)")
	for name, words := range map[string][]string{
		"driver": {"process", "wasm"}, "trust": {"any", "validated", "own"},
		"gpu-vendor": {"nvidia", "amd", "intel", "apple"}, "gpu-kind": {"discrete", "unified", "any"}, "os": {"linux", "windows", "darwin"}, "arch": {"amd64", "arm64"},
	} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	}
}

// Bind adds the flags to a command.
func (s *Flags) Bind(cmd *cobra.Command) {
	s.BindNeeds(cmd)
	f := cmd.Flags()
	// What follows the job's command belongs to the job.
	f.SetInterspersed(false)
	f.StringVar(&s.name, "name", "", "`name` for people")
	f.StringArrayVar(&s.Inputs, "input", nil, "file or folder that lands in the job's folder; `path` . is the current folder without what .offpeakignore names (repeatable)")
	f.StringArrayVar(&s.outputs, "output", nil, "file, folder or `pattern` in the job's folder to keep at the end (repeatable)")
	f.StringArrayVar(&s.env, "env", nil, "environment variable `K=V`, or K to pass on one's own (repeatable)")
	f.StringVar(&s.envFile, "env-file", "", "`file` with a K=V a line; --env wins over it")
	f.Var(&s.budget, "budget", "most credits that all attempts of the job may cost together, for example 5.00; a job that has spent them is stopped with notice (default no limit but the balance)")
	duration := func(v *offpeak.Duration, name, help string) { f.Var((*Duration)(v), name, help) }
	duration(&s.timeLimit, "time-limit", "how long an attempt may run (default 24h)")
	duration(&s.prepareLimit, "prepare-limit", "how long fetching inputs and restoring may take, and storing outputs at the end (default 15m)")
	f.IntVar(&s.retries, "retries", 0, "tries `n` after failures of the job's own; lost nodes do not count (default 0)")
	f.StringVar(&s.checkpointDir, "checkpoint-dir", "", "`folder` in the job's folder where checkpoints appear (default checkpoints)")
	duration(&s.checkpointEvery, "checkpoint-every", "how often a new checkpoint is stored (default 1m)")
	duration(&s.grace, "grace", "time between notice and kill (default 10s)")
	duration(&s.reconnectGrace, "reconnect-grace", "wait this much longer for a silent node before another one begins (default 0s)")
	duration(&s.keepFrozen, "keep-frozen", "how long the job stays frozen on a node that can't reach a hub (default 15m)")
	f.Var(&s.log, "log-limit", "cap on each of stdout and stderr (default 64MiB)")
	f.IntVar(&s.priority, "priority", 0, "`n` from -100 to 100; higher runs first (default 0)")
	f.StringVar(&s.policy, "policy", "", "`order` of the nodes that fit: cheapest, balanced or fastest (default the grid's, see offpeak weights show)")
	_ = cmd.RegisterFlagCompletionFunc("policy", cobra.FixedCompletions([]string{"cheapest", "balanced", "fastest"}, cobra.ShellCompDirectiveNoFileComp))
	f.StringArrayVarP(&s.labels, "label", "l", nil, "label `k=v` to find the job again (repeatable)")
}

// Apply puts what the flags say over spec. command is the job's command, empty
// to keep the spec's.
func (s *Flags) Apply(spec offpeak.Spec, command []string, getenv func(string) string) (offpeak.Spec, error) {
	over := func(name string, set func()) {
		if s.set.Changed(name) {
			set()
		}
	}
	t, r, l := &spec.Task, &spec.Requirements, &spec.Limits
	if len(command) > 0 {
		t.Command = command
	}
	over("name", func() { spec.Name = s.name })
	over("driver", func() { t.Driver = s.driver })
	if t.Driver == "" {
		t.Driver = "process"
		if len(t.Command) > 0 && strings.HasSuffix(t.Command[0], ".wasm") {
			t.Driver = "wasm"
		}
	}
	over("output", func() { t.Outputs = s.outputs })
	over("cpu", func() { r.CPU = int64(s.cpu) })
	over("memory", func() { r.Memory = offpeak.Bytes(s.memory) })
	over("disk", func() { r.Disk = offpeak.Bytes(s.disk) })
	over("os", func() { r.OS = s.os })
	over("arch", func() { r.Arch = s.arch })
	over("trust", func() { r.Trust = offpeak.Trust(s.trust) })
	over("policy", func() { spec.Policy = offpeak.Policy(s.policy) })
	over("max-price", func() { p := offpeak.Price(s.maxPrice); r.MaxPrice = &p })
	over("non-interruptible", func() { r.NonInterruptible = s.steady })
	over("budget", func() { m := offpeak.MicroCredits(s.budget); l.Budget = &m })
	over("time-limit", func() { l.Time = s.timeLimit })
	over("prepare-limit", func() { l.Prepare = s.prepareLimit })
	over("reconnect-grace", func() { l.ReconnectGrace = s.reconnectGrace })
	over("keep-frozen", func() { l.KeepFrozen = s.keepFrozen })
	over("log-limit", func() { l.Log = offpeak.Bytes(s.log) })
	over("checkpoint-dir", func() { t.Checkpoint.Dir = s.checkpointDir })
	over("checkpoint-every", func() { t.Checkpoint.Every = s.checkpointEvery })
	over("grace", func() { t.Grace = s.grace })
	over("priority", func() { spec.Priority = s.priority })
	over("retries", func() {
		policy := offpeak.DefaultRetryPolicy()
		if spec.Retry != nil {
			policy = *spec.Retry
		}
		policy.User = s.retries
		spec.Retry = &policy
	})
	if err := s.zero(); err != nil {
		return spec, err
	}
	var err error
	if r.GPUs, err = s.devices(r.GPUs); err != nil {
		return spec, err
	}
	if t.Env, err = s.environment(t.Env, getenv); err != nil {
		return spec, err
	}
	if err = s.placed(r); err != nil {
		return spec, err
	}
	if spec.Labels, err = Pairs("--label", spec.Labels, s.labels); err != nil {
		return spec, err
	}
	return spec, s.written(spec.WithDefaults().Validate())
}

// zero refuses to be asked for none of what a job has some of: the default would take
// its place without a word.
func (s *Flags) zero() error {
	for _, f := range []struct {
		name string
		none bool
	}{
		{"memory", s.memory == 0}, {"disk", s.disk == 0}, {"vram", s.vram == 0}, {"log-limit", s.log == 0},
		{"time-limit", s.timeLimit == 0}, {"prepare-limit", s.prepareLimit == 0}, {"checkpoint-every", s.checkpointEvery == 0},
		{"grace", s.grace == 0}, {"keep-frozen", s.keepFrozen == 0},
	} {
		if f.none && s.set.Changed(f.name) {
			value := "0B"
			if s.set.Lookup(f.name).Value.Type() == "duration" {
				value = "0s"
			}
			return &offpeak.FieldError{Field: "--" + f.name, Value: value, Rule: "is more than nothing; leave it out for the default"}
		}
	}
	if s.set.Changed("budget") && s.budget == 0 {
		return &offpeak.FieldError{Field: "--budget", Value: "0", Rule: fmt.Sprintf("is credits, from %s to %s; leave it out for no limit but the balance", offpeak.MicroCredits(1), offpeak.MaxAmount)}
	}
	return nil
}

// field is where in a spec rules look for what a flag says, "" for one that Apply
// holds to its own rules.
func field(flag string) string {
	switch flag {
	case "name", "priority", "policy":
		return flag
	case "driver", "grace", "env":
		return "task." + flag
	case "checkpoint-dir", "checkpoint-every":
		return "task.checkpoint." + strings.TrimPrefix(flag, "checkpoint-")
	case "output":
		return "task.outputs"
	case "label":
		return "labels"
	case "os", "arch", "trust":
		return "requirements." + flag
	case "where":
		return "requirements.match"
	case "node":
		return "requirements.nodes"
	case "egress":
		return "requirements.egress"
	case "not-node", "not-account":
		return "requirements." + strings.ReplaceAll(flag, "-", "_") + "s"
	case "cpu":
		return "requirements.cpu_milli"
	case "memory", "disk":
		return "requirements." + flag + "_bytes"
	case "max-price":
		return "requirements.max_price"
	case "gpu":
		return "requirements.gpus[0]"
	case "gpu-vendor", "gpu-model", "gpu-kind", "gpu-driver":
		return "requirements.gpus[0]." + strings.TrimPrefix(flag, "gpu-")
	case "compute-capability":
		return "requirements.gpus[0].compute"
	case "vram":
		return "requirements.gpus[0].vram_bytes"
	case "budget":
		return "limits.budget"
	case "time-limit", "prepare-limit":
		return "limits." + strings.TrimSuffix(flag, "-limit")
	case "log-limit":
		return "limits.log_bytes"
	case "reconnect-grace":
		return "limits.reconnect_grace"
	case "keep-frozen":
		return "limits.keep_frozen"
	case "retries":
		return "retry.user"
	}
	return ""
}

// oneGPU is where a flag describes each GPU alike.
var oneGPU = regexp.MustCompile(`gpus\[\d+\]`)

// written has what breaks a rule named by the flag that says it, where one does, and
// else by its field, which is how a file names it.
func (s *Flags) written(err error) error {
	all, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	var out []error
	for _, err := range all.Unwrap() {
		if broken, ok := errors.AsType[*offpeak.FieldError](err); ok {
			if name := s.Flag(broken.Field); name != "" {
				err = &offpeak.FieldError{Field: name, Value: broken.Value, Rule: broken.Rule}
			}
		}
		// A flag may stand for many devices.
		if !slices.ContainsFunc(out, func(said error) bool { return said.Error() == err.Error() }) {
			out = append(out, err)
		}
	}
	return errors.Join(out...)
}

// Flag is the flag that was given and says what a field of a spec does, "" for none.
func (s *Flags) Flag(of string) (name string) {
	at := strings.Replace(of, "requirements.where", field("where"), 1) // --where fills both
	at = oneGPU.ReplaceAllString(at, "gpus[0]")
	s.set.Visit(func(f *pflag.Flag) {
		in, found := strings.CutPrefix(at, field(f.Name))
		if field(f.Name) == "" || !found || in != "" && in[0] != '.' && in[0] != '[' {
			return
		}
		name = "--" + f.Name
		if key, ok := strings.CutPrefix(in, "."); ok {
			name += " " + key
		}
	})
	return name
}

// devices turns --vram, --gpus and --gpu into one request a device.
func (s *Flags) devices(from []offpeak.GPURequest) ([]offpeak.GPURequest, error) {
	changed := s.set.Changed
	uniform := changed("vram") || changed("gpus")
	switch {
	case changed("gpu") && uniform:
		return nil, &offpeak.FieldError{Field: "--gpu", Rule: "names each GPU; use it without --vram and --gpus"}
	case changed("gpus") && (s.gpus < 0 || s.gpus > 16):
		return nil, &offpeak.FieldError{Field: "--gpus", Value: fmt.Sprint(s.gpus), Rule: "is from 0 to 16"}
	case changed("gpu"):
		from = slices.Clone(s.gpu)
	case uniform || (s.described() && len(from) == 0):
		n := 1
		if changed("gpus") {
			n = s.gpus
		}
		from = nil
		for range n {
			from = append(from, offpeak.GPURequest{VRAM: offpeak.Bytes(s.vram)})
		}
		if n == 0 && (changed("vram") || s.described()) {
			return nil, &offpeak.FieldError{Field: "--gpus", Value: "0", Rule: "is at least 1 where the GPU is described"}
		}
	}
	return from, s.describe(from)
}

func (s *Flags) environment(from map[string]string, getenv func(string) string) (map[string]string, error) {
	var lines []string
	if s.envFile != "" {
		f, err := os.Open(s.envFile)
		if err != nil {
			return nil, world.Refuse(fmt.Errorf("read --env-file: %w", err))
		}
		defer f.Close()
		scan := bufio.NewScanner(f)
		for scan.Scan() {
			if line := strings.TrimSpace(scan.Text()); line != "" && !strings.HasPrefix(line, "#") {
				lines = append(lines, line)
			}
		}
		if err := scan.Err(); err != nil {
			return nil, world.Refuse(fmt.Errorf("read --env-file: %w", err))
		}
	}
	from, err := Pairs("--env-file", from, lines)
	if err != nil {
		return nil, err
	}
	var given []string
	for _, e := range s.env {
		if !strings.Contains(e, "=") {
			e += "=" + getenv(e)
		}
		given = append(given, e)
	}
	return Pairs("--env", from, given)
}

// Pairs adds k=v texts to a map, over what it has. A name has one value.
func Pairs(field string, from map[string]string, texts []string) (map[string]string, error) {
	if len(texts) == 0 {
		return from, nil
	}
	out := make(map[string]string, len(from)+len(texts))
	for k, v := range from {
		out[k] = v
	}
	said := make(map[string]string, len(texts))
	for _, text := range texts {
		k, v, ok := strings.Cut(text, "=")
		if !ok || k == "" {
			return nil, &offpeak.FieldError{Field: field, Value: text, Rule: "is written k=v"}
		}
		if first, again := said[k]; again && first != v {
			return nil, &offpeak.FieldError{Field: field, Value: text, Rule: fmt.Sprintf("contradicts %s=%s: %s has one value", k, first, k)}
		}
		said[k], out[k] = v, v
	}
	return out, nil
}
