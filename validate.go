package offpeak

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bounds of a spec. MaxSpec bounds the whole manifest as it arrives.
const (
	MaxSpec       = 1 * MiB
	maxName       = 128
	maxArgs       = 1024
	maxArgBytes   = 128 * 1024
	maxEnv        = 256
	maxEnvBytes   = 128 * 1024
	maxOutputs    = 64
	maxLabels     = 32
	maxLabel      = 128
	maxPath       = 1024
	maxGPUs       = 16
	maxNamed      = 64
	maxGuests     = 1024
	maxCPU        = 4096 * 1000
	maxProcesses  = 1 << 20
	minCheckpoint = Duration(100 * time.Millisecond)
	maxGrace      = Duration(10 * time.Minute)
)

// WithDefaults returns the spec with every value filled in that it leaves out.
func (s Spec) WithDefaults() Spec {
	or(&s.Task.Checkpoint.Dir, "checkpoints")
	or(&s.Task.Checkpoint.Every, Duration(time.Minute))
	or(&s.Task.Grace, Duration(10*time.Second))
	or(&s.Requirements.CPU, 1000)
	or(&s.Requirements.Memory, 256*MiB)
	or(&s.Requirements.Disk, GiB)
	or(&s.Requirements.Trust, TrustAny)
	// Apple makes no GPU with memory of its own, so who asks for one means the other.
	// Here and not where it is matched: there each word of a request narrows.
	gpus := s.Requirements.GPUs
	for i := range gpus {
		if gpus[i].Vendor == "apple" && gpus[i].Kind == "" {
			s.Requirements.GPUs = slices.Clone(s.Requirements.GPUs)
			s.Requirements.GPUs[i].Kind = GPUUnified
		}
	}
	or(&s.Limits.Time, Duration(24*time.Hour))
	or(&s.Limits.Prepare, Duration(15*time.Minute))
	or(&s.Limits.Log, 64*MiB)
	or(&s.Limits.Processes, 4096)
	or(&s.Limits.KeepFrozen, Duration(15*time.Minute))
	if s.Retry == nil {
		p := DefaultRetryPolicy()
		s.Retry = &p
	}
	return s
}

func or[T comparable](v *T, fallback T) {
	var zero T
	if *v == zero {
		*v = fallback
	}
}

// Validate returns nil or every rule that the spec breaks, as *FieldError
// values joined into one error. It expects a spec WithDefaults.
func (s Spec) Validate() error {
	var v validator
	v.text("name", s.Name, maxName)
	s.Task.validate(&v)
	s.Requirements.validate(&v)
	l := s.Limits
	v.span("limits.time", l.Time, Duration(time.Second), MaxDuration)
	v.span("limits.prepare", l.Prepare, Duration(time.Second), MaxDuration)
	v.span("limits.reconnect_grace", l.ReconnectGrace, 0, Duration(7*24*time.Hour))
	v.span("limits.keep_frozen", l.KeepFrozen, 0, Duration(7*24*time.Hour))
	v.within("limits.log_bytes", int64(l.Log), 0, int64(64*GiB))
	if l.Budget != nil {
		if n := *l.Budget; n < 1 || n > MaxAmount {
			v.add("limits.budget", fmt.Sprint(int64(n)), fmt.Sprintf("is a whole number of micro-credits, from 1 to %d (%s to %s credits)", MaxAmount, MicroCredits(1), MaxAmount))
		}
	}
	v.within("limits.processes", int64(l.Processes), 1, maxProcesses)
	if r := s.Retry; r != nil {
		v.within("retry.user", int64(r.User), 0, 1000)
		v.within("retry.node", int64(r.Node), 0, 1000)
		v.within("retry.interruption", int64(r.Interruption), 0, 100_000)
	}
	v.within("priority", int64(s.Priority), -100, 100)
	if !s.Policy.Valid() {
		v.add("policy", string(s.Policy), "is cheapest, balanced or fastest; without one the grid's holds")
	}
	if s.Task.Driver == "wasm" && len(s.Requirements.Egress) > 0 {
		v.add("requirements.egress", "", "is not for wasm: a module has no network whatever it asks for")
	}
	v.labels("labels", s.Labels)
	return errors.Join(v.errs...)
}

func (t Task) validate(v *validator) {
	if t.Driver != "process" && t.Driver != "wasm" {
		v.add("task.driver", t.Driver, "is process or wasm")
	}
	size := 0
	for i, a := range t.Command {
		size += len(a)
		if strings.ContainsRune(a, 0) {
			v.add(fmt.Sprintf("task.command[%d]", i), a, "holds no NUL byte")
		}
	}
	switch {
	case len(t.Command) == 0 || t.Command[0] == "":
		v.add("task.command", "", "names what to run")
	case len(t.Command) > maxArgs || size > maxArgBytes:
		v.add("task.command", "", fmt.Sprintf("has at most %d arguments of together %d bytes; put more into an input file", maxArgs, maxArgBytes))
	case t.Driver == "wasm" && !local(t.Command[0]):
		v.add("task.command[0]", t.Command[0], "is the module's path inside the job's folder, without ..")
	}
	size = 0
	for _, k := range slices.Sorted(maps.Keys(t.Env)) {
		val := t.Env[k]
		size += len(k) + len(val)
		field := "task.env." + key(k)
		switch {
		case k == "" || strings.ContainsAny(k, "=\x00") || !printable(k):
			v.add(field, k, "is a name of printable characters without =")
		case strings.HasPrefix(strings.ToUpper(k), "OFFPEAK_"):
			v.add(field, "", "names beginning with OFFPEAK_ are set by the agent")
		case strings.ContainsRune(val, 0):
			v.add(field, "", "holds no NUL byte")
		}
	}
	if len(t.Env) > maxEnv || size > maxEnvBytes {
		v.add("task.env", "", fmt.Sprintf("has at most %d variables of together %d bytes; put more into an input file", maxEnv, maxEnvBytes))
	}
	if t.Input != "" && !t.Input.Valid() {
		v.add("task.input", string(t.Input), "is the hash of a stored tree: 64 hex digits")
	}
	if len(t.Outputs) > maxOutputs {
		v.add("task.outputs", "", fmt.Sprintf("has at most %d paths", maxOutputs))
	}
	for i, o := range t.Outputs {
		field := fmt.Sprintf("task.outputs[%d]", i)
		if _, err := path.Match(o, ""); err != nil || !local(o) || len(o) > maxPath {
			v.add(field, o, "is a path or pattern inside the job's folder, without .. and with / between names")
		}
	}
	// The agent keeps its own in .offpeak.
	if d := t.Checkpoint.Dir; !local(d) || d == "." || len(d) > maxPath || !printable(d) || d == ".offpeak" || strings.HasPrefix(d, ".offpeak/") {
		v.add("task.checkpoint.dir", d, "is a folder inside the job's folder, without .., and not in .offpeak")
	}
	v.span("task.checkpoint.every", t.Checkpoint.Every, minCheckpoint, MaxDuration)
	v.span("task.grace", t.Grace, 0, maxGrace)
}

func (r Requirements) validate(v *validator) {
	v.within("requirements.cpu_milli", r.CPU, 1, maxCPU)
	v.within("requirements.memory_bytes", int64(r.Memory), int64(MiB), int64(MaxBytes))
	v.within("requirements.disk_bytes", int64(r.Disk), 0, int64(MaxBytes))
	if len(r.GPUs) > maxGPUs {
		v.add("requirements.gpus", "", fmt.Sprintf("asks for at most %d devices", maxGPUs))
	}
	for i, g := range r.GPUs {
		field := fmt.Sprintf("requirements.gpus[%d]", i)
		if g.VRAM != 0 {
			v.within(field+".vram_bytes", int64(g.VRAM), int64(MB), int64(TiB))
		}
		if !slices.Contains([]string{"", "nvidia", "amd", "intel", "apple"}, g.Vendor) {
			v.add(field+".vendor", g.Vendor, "is nvidia, amd, intel or apple")
		}
		v.text(field+".model", g.Model, maxLabel)
		if !slices.Contains([]GPUKind{"", GPUDiscrete, GPUUnified, GPUAny}, g.Kind) {
			v.add(field+".kind", string(g.Kind), "is discrete, unified or any")
		}
		v.version(field+".compute", g.Compute, "8.6")
		v.version(field+".driver", g.Driver, "535.0")
	}
	if !slices.Contains([]string{"", "linux", "windows", "darwin"}, r.OS) {
		v.add("requirements.os", r.OS, "is linux, windows or darwin")
	}
	if !slices.Contains([]string{"", "amd64", "arm64"}, r.Arch) {
		v.add("requirements.arch", r.Arch, "is amd64 or arm64")
	}
	v.where("requirements", r.Where, r.Match)
	v.ids("requirements.nodes", "node_", texts(r.Nodes), maxNamed)
	for i, n := range r.NotNodes {
		if slices.Contains(r.Nodes, n) {
			v.add(fmt.Sprintf("requirements.not_nodes[%d]", i), string(n), "is one of the nodes that it must run on: name it once")
		}
	}
	v.ids("requirements.not_nodes", "node_", texts(r.NotNodes), maxNamed)
	v.ids("requirements.not_accounts", "acct_", texts(r.NotAccounts), maxNamed)
	v.egress("requirements.egress", r.Egress)
	if r.MaxPrice != nil {
		if n := *r.MaxPrice; n < 0 || n > MaxPrice {
			v.add("requirements.max_price", fmt.Sprint(int64(n)), fmt.Sprintf("is a whole number of micro-credits per hour, from 0 to %d (%s)", MaxPrice, MaxPrice))
		}
	}
	if !slices.Contains([]Trust{TrustAny, TrustValidated, TrustOwn}, r.Trust) {
		v.add("requirements.trust", string(r.Trust), "is any, validated or own")
	}
}

type validator struct{ errs []error }

func (v *validator) add(field, value, rule string) {
	v.errs = append(v.errs, &FieldError{Field: field, Value: value, Rule: rule})
}

func (v *validator) text(field, s string, most int) {
	if len(s) > most || !printable(s) {
		v.add(field, s, fmt.Sprintf("is at most %d bytes of printable UTF-8", most))
	}
}

func (v *validator) within(field string, n, least, most int64) {
	if n < least || n > most {
		v.add(field, fmt.Sprint(n), fmt.Sprintf("is from %d to %d", least, most))
	}
}

func (v *validator) span(field string, d, least, most Duration) {
	if d < least || d > most {
		v.add(field, d.String(), fmt.Sprintf("is from %s to %s", least, most))
	}
}

func (v *validator) labels(field string, m map[string]string) {
	if len(m) > maxLabels {
		v.add(field, "", fmt.Sprintf("has at most %d entries", maxLabels))
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if k == "" {
			v.add(field, "", "has no empty name")
		}
		v.text(field+"."+key(k), k, maxLabel)
		v.text(field+"."+key(k), m[k], maxLabel)
	}
}

// where refuses conditions that can't be read, and those that no node can meet.
func (v *validator) where(field string, pairs map[string]string, list []string) {
	for name, n := range map[string]int{"where": len(pairs), "match": len(list)} {
		if n > maxLabels {
			v.add(field+"."+name, "", fmt.Sprintf("has at most %d entries", maxLabels))
			return
		}
	}
	type said struct {
		condition
		text string
	}
	var all []said
	and := func(at string, c said) {
		for i := range all {
			if o := &all[i]; c.contradicts(&o.condition) {
				v.add(at, c.text, fmt.Sprintf("contradicts %s: no node can meet both", o.text))
				return
			}
		}
		all = append(all, c)
	}
	for _, k := range slices.Sorted(maps.Keys(pairs)) {
		c := said{condition{key: k, value: pairs[k], valued: true}, k + "=" + pairs[k]}
		at := field + ".where"
		if k != "" {
			at += "." + key(k)
		}
		switch rule := LabelRule(k, c.value); {
		case rule != "":
			v.add(at, c.text, rule)
		case c.value == "":
			v.add(at, "", "is not empty; match with !k says that there is no such label")
		default:
			and(at, c)
		}
	}
	for i, text := range list {
		at := fmt.Sprintf("%s.match[%d]", field, i)
		c, ok := parseCondition(text)
		if !ok {
			v.add(at, text, "is k, !k, k=v or k!=v; !k says that there is no such label")
		} else if rule := LabelRule(c.key, c.value); rule != "" {
			v.add(at, text, rule)
		} else {
			and(at, said{c, text})
		}
	}
}

// egress refuses destinations that can't be read, and those that are not public.
func (v *validator) egress(field string, list []string) {
	if len(list) > maxEgress {
		v.add(field, "", fmt.Sprintf("names at most %d", maxEgress))
		return
	}
	for i, text := range list {
		if _, err := ParseDestination(text); err != nil {
			rule := err.Error()
			if bad, ok := errors.AsType[*ValueError](err); ok {
				rule = bad.Rule
			}
			v.add(fmt.Sprintf("%s[%d]", field, i), text, rule)
		}
	}
}

// Validate returns nil or every rule that the list breaks, as *FieldError values
// that call it by the name given.
func (e *Egress) Validate(hosts string) error {
	if e == nil || slices.Equal(e.Hosts, []string{EgressAny}) {
		return nil
	}
	var v validator
	v.egress(hosts, e.Hosts)
	return errors.Join(v.errs...)
}

func (v *validator) version(field, s, example string) {
	if _, ok := version(s); s != "" && !ok {
		v.add(field, s, "is a version: one to four numbers with dots between, for example "+example)
	}
}

func texts[T ~string](list []T) []string {
	out := make([]string, len(list))
	for i := range list {
		out[i] = string(list[i])
	}
	return out
}

func (v *validator) ids(field, prefix string, list []string, most int) {
	if len(list) > most {
		v.add(field, "", fmt.Sprintf("names at most %d", most))
		return
	}
	for i, id := range list {
		name, ok := strings.CutPrefix(id, prefix)
		if !ok || name == "" || len(id) > 64 || strings.ContainsFunc(name, func(c rune) bool {
			return (c < '0' || c > '9') && (c < 'a' || c > 'z') && c != '_' && c != '-'
		}) {
			v.add(fmt.Sprintf("%s[%d]", field, i), id, "is an id that begins with "+prefix)
		}
	}
}

// Validate returns nil or every rule that the lists break, as *FieldError values
// that call them by the names given.
func (g *Guests) Validate(allow, deny string) error {
	if g == nil {
		return nil
	}
	var v validator
	v.ids(allow, "acct_", texts(g.Allow), maxGuests)
	v.ids(deny, "acct_", texts(g.Deny), maxGuests)
	return errors.Join(v.errs...)
}

// key makes a map's key fit for a field's path, which is printed as it is.
func key(k string) string {
	if printable(k) {
		return clip(k)
	}
	return strconv.QuoteToASCII(clip(k))
}

// ValidName returns nil for a name of 1 to 64 printable characters, else a
// *FieldError for field. Accounts, members, nodes and tokens are named so.
func ValidName(field, s string) error {
	if s == "" || len(s) > 64 || !printable(s) || strings.TrimSpace(s) != s {
		return &FieldError{Field: field, Value: s, Rule: "is 1 to 64 bytes of printable UTF-8 without space at its ends"}
	}
	return nil
}

// Valid says that h has the form of a hash.
func (h Hash) Valid() bool {
	if len(h) != 64 {
		return false
	}
	for _, c := range []byte(h) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// Valid says that id has the form of an operation id.
func (id OpID) Valid() bool {
	if id == "" || len(id) > 64 {
		return false
	}
	for _, c := range []byte(id) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

// printable refuses control characters, invalid UTF-8 and characters that
// change how text around them is shown (bidirectional overrides and the like).
func printable(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

// local says that p is a slash-separated relative path that stays where it is
// rooted, on every operating system.
func local(p string) bool {
	return p != "" && !path.IsAbs(p) && !strings.ContainsAny(p, "\\:\x00") &&
		p == path.Clean(p) && p != ".." && !strings.HasPrefix(p, "../")
}
