package offpeak

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func goodSpec() Spec {
	return Spec{
		Name: "digits",
		Task: Task{
			Driver: "process", Command: []string{"./train", "--epochs", "3"}, Env: map[string]string{"SEED": "1"},
			Input: Hash(strings.Repeat("a", 64)), Outputs: []string{"model.bin", "out/*.png"},
		},
		Requirements: Requirements{GPUs: []GPURequest{{VRAM: 24 * GB, Vendor: "nvidia"}}, OS: "linux", Where: map[string]string{"region": "fsn"}, MaxPrice: price(400_000)},
		Labels:       map[string]string{"team": "vision"},
	}.WithDefaults()
}

func amount(m MicroCredits) *MicroCredits { return &m }

func TestValidateTakesGoodSpecs(t *testing.T) {
	for name, s := range map[string]Spec{
		"full":     goodSpec(),
		"smallest": Spec{Task: Task{Driver: "process", Command: []string{"true"}}}.WithDefaults(),
		"wasm":     Spec{Task: Task{Driver: "wasm", Command: []string{"bin/train.wasm"}}}.WithDefaults(),
		"foreign":  Spec{Name: "Überträger 数字 🚀", Task: Task{Driver: "process", Command: []string{"/usr/bin/python3", "a b", ""}}}.WithDefaults(),
	} {
		if err := s.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestValidateNamesTheField breaks one rule at a time.
func TestValidateNamesTheField(t *testing.T) {
	many := func(n int) map[string]string {
		m := map[string]string{}
		for i := range n {
			m[fmt.Sprint("k", i)] = "v"
		}
		return m
	}
	long := strings.Repeat("x", 200)
	for _, c := range []struct {
		field string
		bend  func(s *Spec)
	}{
		{"name", func(s *Spec) { s.Name = long }},
		{"name", func(s *Spec) { s.Name = "a\x00b" }},
		{"name", func(s *Spec) { s.Name = "\x1b[31mred" }},
		{"name", func(s *Spec) { s.Name = "a\u202eb" }},
		{"name", func(s *Spec) { s.Name = "a\xffb" }},
		{"task.driver", func(s *Spec) { s.Task.Driver = "" }},
		{"task.driver", func(s *Spec) { s.Task.Driver = "docker" }},
		{"task.command", func(s *Spec) { s.Task.Command = nil }},
		{"task.command", func(s *Spec) { s.Task.Command = []string{""} }},
		{"task.command", func(s *Spec) { s.Task.Command = slices.Repeat([]string{"x"}, maxArgs+1) }},
		{"task.command", func(s *Spec) { s.Task.Command = []string{"x", strings.Repeat("x", maxArgBytes)} }},
		{"task.command[1]", func(s *Spec) { s.Task.Command = []string{"x", "a\x00"} }},
		{"task.command[0]", func(s *Spec) { s.Task.Driver, s.Task.Command = "wasm", []string{"/etc/x.wasm"} }},
		{"task.command[0]", func(s *Spec) { s.Task.Driver, s.Task.Command = "wasm", []string{"../x.wasm"} }},
		{"task.env." + `"a\x1b"`, func(s *Spec) { s.Task.Env = map[string]string{"a\x1b": ""} }},
		{"task.env.", func(s *Spec) { s.Task.Env = map[string]string{"": "x"} }},
		{"task.env.a=b", func(s *Spec) { s.Task.Env = map[string]string{"a=b": "x"} }},
		{"task.env.OFFPEAK_LEASE", func(s *Spec) { s.Task.Env = map[string]string{"OFFPEAK_LEASE": "x"} }},
		{"task.env.offpeak_x", func(s *Spec) { s.Task.Env = map[string]string{"offpeak_x": "x"} }},
		{"task.env.A", func(s *Spec) { s.Task.Env = map[string]string{"A": "a\x00"} }},
		{"task.env", func(s *Spec) { s.Task.Env = many(maxEnv + 1) }},
		{"task.env", func(s *Spec) { s.Task.Env = map[string]string{"A": strings.Repeat("x", maxEnvBytes)} }},
		{"task.input", func(s *Spec) { s.Task.Input = "abc" }},
		{"task.input", func(s *Spec) { s.Task.Input = Hash(strings.Repeat("A", 64)) }},
		{"task.input", func(s *Spec) { s.Task.Input = Hash("../" + strings.Repeat("a", 61)) }},
		{"task.outputs", func(s *Spec) { s.Task.Outputs = slices.Repeat([]string{"x"}, maxOutputs+1) }},
		{"task.outputs[1]", func(s *Spec) { s.Task.Outputs = []string{"x", ""} }},
		{"task.outputs[0]", func(s *Spec) { s.Task.Outputs = []string{"/etc/passwd"} }},
		{"task.outputs[0]", func(s *Spec) { s.Task.Outputs = []string{"../x"} }},
		{"task.outputs[0]", func(s *Spec) { s.Task.Outputs = []string{"a/../../x"} }},
		{"task.outputs[0]", func(s *Spec) { s.Task.Outputs = []string{".."} }},
		{"task.outputs[0]", func(s *Spec) { s.Task.Outputs = []string{"a\\b"} }},
		{"task.outputs[0]", func(s *Spec) { s.Task.Outputs = []string{"[a"} }},
		{"task.outputs[0]", func(s *Spec) { s.Task.Outputs = []string{"C:/x"} }},
		{"task.outputs[0]", func(s *Spec) { s.Task.Outputs = []string{strings.Repeat("x", maxPath+1)} }},
		{"task.checkpoint.dir", func(s *Spec) { s.Task.Checkpoint.Dir = "../c" }},
		{"task.checkpoint.dir", func(s *Spec) { s.Task.Checkpoint.Dir = "/tmp/c" }},
		{"task.checkpoint.dir", func(s *Spec) { s.Task.Checkpoint.Dir = "." }},
		{"task.checkpoint.dir", func(s *Spec) { s.Task.Checkpoint.Dir = "a/" }},
		{"task.checkpoint.dir", func(s *Spec) { s.Task.Checkpoint.Dir = "c\x00" }},
		{"task.checkpoint.dir", func(s *Spec) { s.Task.Checkpoint.Dir = ".offpeak/tmp" }},
		{"task.checkpoint.every", func(s *Spec) { s.Task.Checkpoint.Every = Duration(time.Millisecond) }},
		{"task.checkpoint.every", func(s *Spec) { s.Task.Checkpoint.Every = -1 }},
		{"task.grace", func(s *Spec) { s.Task.Grace = Duration(time.Hour) }},
		{"task.grace", func(s *Spec) { s.Task.Grace = -1 }},
		{"requirements.cpu_milli", func(s *Spec) { s.Requirements.CPU = -1 }},
		{"requirements.cpu_milli", func(s *Spec) { s.Requirements.CPU = math.MaxInt64 }},
		{"requirements.memory_bytes", func(s *Spec) { s.Requirements.Memory = KiB }},
		{"requirements.memory_bytes", func(s *Spec) { s.Requirements.Memory = MaxBytes + 1 }},
		{"requirements.disk_bytes", func(s *Spec) { s.Requirements.Disk = -1 }},
		{"requirements.disk_bytes", func(s *Spec) { s.Requirements.Disk = MaxBytes + 1 }},
		{"requirements.gpus", func(s *Spec) { s.Requirements.GPUs = make([]GPURequest, maxGPUs+1) }},
		{"requirements.gpus[1].vram_bytes", func(s *Spec) { s.Requirements.GPUs = []GPURequest{{}, {VRAM: -1}} }},
		{"requirements.gpus[0].vram_bytes", func(s *Spec) { s.Requirements.GPUs = []GPURequest{{VRAM: TiB + 1}} }},
		{"requirements.gpus[0].vendor", func(s *Spec) { s.Requirements.GPUs = []GPURequest{{Vendor: "NVIDIA"}} }},
		{"requirements.gpus[0].model", func(s *Spec) { s.Requirements.GPUs = []GPURequest{{Model: long}} }},
		{"requirements.gpus[0].kind", func(s *Spec) { s.Requirements.GPUs = []GPURequest{{Kind: "shared"}} }},
		{"requirements.gpus[0].compute", func(s *Spec) { s.Requirements.GPUs = []GPURequest{{Compute: "NaN"}} }},
		{"requirements.gpus[0].compute", func(s *Spec) { s.Requirements.GPUs = []GPURequest{{Compute: "-8.6"}} }},
		{"requirements.gpus[0].driver", func(s *Spec) { s.Requirements.GPUs = []GPURequest{{Driver: "535.x"}} }},
		{"requirements.gpus[0].driver", func(s *Spec) { s.Requirements.GPUs = []GPURequest{{Driver: long}} }},
		{"requirements.match", func(s *Spec) { s.Requirements.Match = make([]string, maxLabels+1) }},
		{"requirements.match[0]", func(s *Spec) { s.Requirements.Match = []string{""} }},
		{"requirements.match[1]", func(s *Spec) { s.Requirements.Match = []string{"a", "!"} }},
		{"requirements.match[0]", func(s *Spec) { s.Requirements.Match = []string{"a="} }},
		{"requirements.match[0]", func(s *Spec) { s.Requirements.Match = []string{"!a=b"} }},
		{"requirements.match[0]", func(s *Spec) { s.Requirements.Match = []string{"a=" + long} }},
		{"requirements.match[0]", func(s *Spec) { s.Requirements.Match = []string{"a==b"} }},
		{"requirements.match[0]", func(s *Spec) { s.Requirements.Match = []string{" a"} }},
		{"requirements.match[0]", func(s *Spec) { s.Requirements.Match = []string{"a=b "} }},
		{"requirements.match[1]", func(s *Spec) { s.Requirements.Match = []string{"a=b", "a=c"} }},
		{"requirements.match[1]", func(s *Spec) { s.Requirements.Match = []string{"a=b", "a!=b"} }},
		{"requirements.match[1]", func(s *Spec) { s.Requirements.Match = []string{"!a", "a"} }},
		{"requirements.match[1]", func(s *Spec) { s.Requirements.Match = []string{"a=b", "!a"} }},
		{"requirements.match[0]", func(s *Spec) {
			s.Requirements.Where, s.Requirements.Match = map[string]string{"a": "b"}, []string{"a=c"}
		}},
		{"requirements.where.!a", func(s *Spec) { s.Requirements.Where = map[string]string{"!a": "b"} }},
		{"requirements.where.a", func(s *Spec) { s.Requirements.Where = map[string]string{"a": ""} }},
		{"requirements.match[0]", func(s *Spec) { s.Requirements.Match = []string{"!\x07"} }},
		{"requirements.nodes", func(s *Spec) { s.Requirements.Nodes = make([]NodeID, maxNamed+1) }},
		{"requirements.nodes[0]", func(s *Spec) { s.Requirements.Nodes = []NodeID{"attic"} }},
		{"requirements.nodes[0]", func(s *Spec) { s.Requirements.Nodes = []NodeID{"node_"} }},
		{"requirements.not_nodes[0]", func(s *Spec) { s.Requirements.NotNodes = []NodeID{"node_a b"} }},
		{"requirements.not_accounts[0]", func(s *Spec) { s.Requirements.NotAccounts = []AccountID{AccountID("acct_" + long)} }},
		{"requirements.os", func(s *Spec) { s.Requirements.OS = "windowz" }},
		{"requirements.arch", func(s *Spec) { s.Requirements.Arch = "x86" }},
		{"requirements.arch", func(s *Spec) { s.Requirements.Arch = long }},
		{"requirements.where", func(s *Spec) { s.Requirements.Where = many(maxLabels + 1) }},
		{"requirements.where", func(s *Spec) { s.Requirements.Where = map[string]string{"": "x"} }},
		{"requirements.where.a", func(s *Spec) { s.Requirements.Where = map[string]string{"a": "\x07"} }},
		{`requirements.where."\a"`, func(s *Spec) { s.Requirements.Where = map[string]string{"\x07": "a"} }},
		{"requirements.max_price", func(s *Spec) { s.Requirements.MaxPrice = price(-1) }},
		{"requirements.max_price", func(s *Spec) { s.Requirements.MaxPrice = price(MaxPrice + 1) }},
		{"requirements.trust", func(s *Spec) { s.Requirements.Trust = "everyone" }},
		{"limits.time", func(s *Spec) { s.Limits.Time = Duration(time.Millisecond) }},
		{"limits.time", func(s *Spec) { s.Limits.Time = MaxDuration + 1 }},
		{"limits.prepare", func(s *Spec) { s.Limits.Prepare = -1 }},
		{"limits.budget", func(s *Spec) { s.Limits.Budget = new(MicroCredits) }},
		{"limits.budget", func(s *Spec) { s.Limits.Budget = amount(-1) }},
		{"limits.budget", func(s *Spec) { s.Limits.Budget = amount(MaxAmount + 1) }},
		{"limits.log_bytes", func(s *Spec) { s.Limits.Log = 65 * GiB }},
		{"limits.log_bytes", func(s *Spec) { s.Limits.Log = -1 }},
		{"limits.processes", func(s *Spec) { s.Limits.Processes = -1 }},
		{"limits.processes", func(s *Spec) { s.Limits.Processes = maxProcesses + 1 }},
		{"limits.reconnect_grace", func(s *Spec) { s.Limits.ReconnectGrace = -1 }},
		{"limits.reconnect_grace", func(s *Spec) { s.Limits.ReconnectGrace = MaxDuration }},
		{"limits.keep_frozen", func(s *Spec) { s.Limits.KeepFrozen = -1 }},
		{"limits.keep_frozen", func(s *Spec) { s.Limits.KeepFrozen = MaxDuration }},
		{"retry.user", func(s *Spec) { s.Retry.User = -1 }},
		{"retry.node", func(s *Spec) { s.Retry.Node = 1001 }},
		{"retry.interruption", func(s *Spec) { s.Retry.Interruption = 100_001 }},
		{"priority", func(s *Spec) { s.Priority = 101 }},
		{"priority", func(s *Spec) { s.Priority = -101 }},
		{"policy", func(s *Spec) { s.Policy = "dearest" }},
		{"labels", func(s *Spec) { s.Labels = many(maxLabels + 1) }},
		{"labels.k", func(s *Spec) { s.Labels = map[string]string{"k": long} }},
	} {
		s := goodSpec()
		c.bend(&s)
		errs := broken(s.Validate())
		if len(errs) != 1 || errs[0].Field != c.field || errs[0].Rule == "" {
			t.Errorf("%s: %v", c.field, errs)
			continue
		}
		if text := errs[0].Error(); !printable(text) || len(text) > 600 {
			t.Errorf("%s: not fit to be shown: %q", c.field, text)
		}
	}
}

// broken unpacks what Validate joined.
func broken(err error) []*FieldError {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil
	}
	var out []*FieldError
	for _, e := range joined.Unwrap() {
		var f *FieldError
		if errors.As(e, &f) && errors.Is(e, ErrInvalid) {
			out = append(out, f)
		}
	}
	return out
}

func TestValidateListsAllAtOnceInOrder(t *testing.T) {
	s := goodSpec()
	s.Name, s.Task.Driver, s.Priority = "\x00", "x", 500
	s.Labels = map[string]string{"b": "\x00", "a": "\x00"}
	for range 20 {
		var fields []string
		for _, f := range broken(s.Validate()) {
			fields = append(fields, f.Field)
		}
		if want := []string{"name", "task.driver", "priority", "labels.a", "labels.b"}; !slices.Equal(fields, want) {
			t.Fatalf("%q, want %q", fields, want)
		}
	}
}

func TestWithDefaults(t *testing.T) {
	s := Spec{Task: Task{Driver: "process", Command: []string{"true"}}}
	d := s.WithDefaults()
	if s.Retry != nil || s.Requirements.CPU != 0 {
		t.Error("the spec itself was changed")
	}
	if d.Requirements.CPU != 1000 || d.Requirements.Memory != 256*MiB || d.Requirements.Disk != GiB || d.Requirements.Trust != TrustAny ||
		d.Task.Checkpoint.Dir != "checkpoints" || d.Task.Checkpoint.Every != Duration(time.Minute) || d.Task.Grace != Duration(10*time.Second) ||
		d.Limits.Time != Duration(24*time.Hour) || d.Limits.Prepare != Duration(15*time.Minute) || d.Limits.Log != 64*MiB ||
		d.Limits.Processes != 4096 || d.Limits.KeepFrozen != Duration(15*time.Minute) || d.Limits.ReconnectGrace != 0 || *d.Retry != DefaultRetryPolicy() {
		t.Errorf("%+v", d)
	}
	// What is given stays, and defaults are a fixed point.
	full := goodSpec()
	full.Requirements.CPU, full.Limits.Time, full.Retry = 4000, Duration(time.Hour), &RetryPolicy{User: 3}
	a, _ := full.Canonical()
	b, _ := full.WithDefaults().Canonical()
	if string(a) != string(b) {
		t.Errorf("%s\nbecame\n%s", a, b)
	}
	var back Spec
	if err := json.Unmarshal(a, &back); err != nil {
		t.Fatal(err)
	}
	if c, _ := back.Canonical(); string(c) != string(a) {
		t.Errorf("%s\nread and written\n%s", a, c)
	}
}

func TestValidName(t *testing.T) {
	for _, s := range []string{"a", "lab 7", "Überträger", strings.Repeat("x", 64)} {
		if err := ValidName("name", s); err != nil {
			t.Errorf("%q: %v", s, err)
		}
	}
	for _, s := range []string{"", " a", "a ", "a\tb", "a\x00", "\u202e", "a\xff", strings.Repeat("x", 65), "a\u00a0b"} {
		var f *FieldError
		if err := ValidName("account.name", s); !errors.As(err, &f) || f.Field != "account.name" {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func TestValidForms(t *testing.T) {
	good := strings.Repeat("0123456789abcdef", 4)
	for _, h := range []string{"", good[1:], good + "0", strings.ToUpper(good), good[:63] + "g", good[:63] + "/"} {
		if Hash(h).Valid() {
			t.Errorf("hash %q is valid", h)
		}
	}
	if !Hash(good).Valid() {
		t.Errorf("hash %q is not valid", good)
	}
	for _, id := range []string{"", "a b", "a/b", "a\x00", "ä", strings.Repeat("a", 65)} {
		if OpID(id).Valid() {
			t.Errorf("operation id %q is valid", id)
		}
	}
	if !OpID("aZ09_-").Valid() || !OpID(strings.Repeat("a", 64)).Valid() {
		t.Error("a good operation id is not valid")
	}
}

func TestErrorsAreFitToBeShown(t *testing.T) {
	long := strings.Repeat("é", 100) + "\x1b"
	for _, err := range []error{
		&ValueError{Value: long, Rule: "is short"},
		&FieldError{Field: "name", Value: long, Rule: "is short"},
		&IllegalMoveError{Machine: "job", From: long, To: "\x1b]0;x\a"},
	} {
		if s := err.Error(); len(s) > 300 || !printable(s) {
			t.Errorf("%q", s)
		}
	}
	for err, is := range map[error]error{
		&StaleLeaseError{Lease: "lease_1"}:                                   ErrStaleLease,
		&StaleLeaseError{Lease: "lease_1", Attempt: 2, State: LeaseLost}:     ErrStaleLease,
		&LogGapError{Want: 1, Got: 2}:                                        ErrConflict,
		&IllegalMoveError{Machine: "job", From: "queued", To: "running"}:     ErrIllegalMove,
		fmt.Errorf("submit job: %w", &FieldError{Field: "name", Rule: "is"}): ErrInvalid,
		fmt.Errorf("read size: %w", &ValueError{Value: "1", Rule: "is a"}):   ErrInvalid,
		errors.Join(&FieldError{Field: "a"}, &FieldError{Field: "b"}, nil):   ErrInvalid,
	} {
		if !errors.Is(err, is) {
			t.Errorf("%v is not %v", err, is)
		}
		if text := err.Error(); text == "" {
			t.Errorf("%T says nothing", err)
		}
	}
}
