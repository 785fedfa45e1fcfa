package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"offpeak"
)

func TestSafe(t *testing.T) {
	for in, want := range map[string]string{
		"plain äö 漢":   "plain äö 漢",
		"\x1b[2J\r\n":  `\x1b[2J\r\n`,
		"a\x00\x7f":    `a\x00\x7f`,
		"bad\xffbyte":  `bad\xffbyte`,
		"\u202egpj":    `\u202egpj`,
		"c1 \u009b2J":  `c1 \u009b2J`,
		"\ufffd stays": "\ufffd stays",
	} {
		if got := safe(in); got != want {
			t.Errorf("safe(%q) = %q, want %q", in, got, want)
		}
	}
}

// What a log writes reaches a terminal without its control characters, however
// the bytes are cut into pieces.
func TestHarmlessOverAnyCut(t *testing.T) {
	in := []byte("ok\täö\n\x1b[31mred\r\xff漢\xe6\xbc")
	want := "ok\täö\n" + `\x1b[31mred\r\xff漢\xe6\xbc`
	for size := 1; size <= len(in); size++ {
		var out bytes.Buffer
		h := &harmless{w: &out}
		for piece := range slices.Chunk(in, size) {
			if n, err := h.Write(piece); n != len(piece) || err != nil {
				t.Fatal(n, err)
			}
		}
		if err := h.close(); err != nil {
			t.Fatal(err)
		}
		if out.String() != want {
			t.Errorf("in pieces of %d: %q, want %q", size, out.String(), want)
		}
	}
}

func TestAbout(t *testing.T) {
	for in, want := range map[offpeak.Bytes]string{0: "0B", 24 * offpeak.GB: "24GB", 24683568 * offpeak.KiB: "23.54GiB", 12345678: "11.77MiB", 512 * offpeak.MiB: "512MiB"} {
		if got := about(in); got != want {
			t.Errorf("about(%d) = %s, want %s", in, got, want)
		}
	}
}

func TestPick(t *testing.T) {
	ids, names := []string{"node_01a", "node_01b", "node_02a"}, []string{"tower", "laptop", "tower"}
	for _, tt := range []struct{ ref, want, err string }{
		{"node_01b", "node_01b", ""}, {"laptop", "node_01b", ""}, {"1b", "node_01b", ""},
		{"tower", "", "fits 2 of them"}, {"node_01", "", "fits 2 of them"}, {"", "", "not found"}, {"x", "", "not found"},
	} {
		got, err := pick("NODE", tt.ref, ids, names)
		if got != tt.want || (err == nil) != (tt.err == "") || (err != nil && !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("pick(%q) = %q, %v", tt.ref, got, err)
		}
	}
}

func TestDeclared(t *testing.T) {
	for _, tt := range []struct {
		path     string
		patterns []string
		want     bool
	}{
		{"model.json", []string{"model.json"}, true},
		{"out", []string{"out/*.csv"}, true},
		{"out/a.csv", []string{"out/*.csv"}, true},
		{"out/a.txt", []string{"out/*.csv"}, false},
		{"out/deep/a", []string{"out"}, true},
		{".bashrc", []string{"out", "*.json"}, false},
		{".git/hooks/pre-commit", []string{"model.json"}, false},
		{"anything/at/all", []string{"."}, true},
	} {
		if got := declared(tt.path, tt.patterns); got != tt.want {
			t.Errorf("declared(%q, %q) = %v", tt.path, tt.patterns, got)
		}
	}
}

func TestInputs(t *testing.T) {
	dir := t.TempDir()
	for _, f := range []string{"here/train.py", "here/data/a[1].csv", "there/b"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, f)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, f), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(filepath.Join(dir, "here"))
	for _, tt := range []struct {
		given []string
		root  string
		paths []string
		bad   bool
	}{
		{given: []string{"."}, root: "."},
		{given: []string{"data/"}, root: "data/"},
		{given: []string{"data", "./train.py"}, root: ".", paths: []string{"data", "train.py"}},
		{given: []string{"data/a[1].csv"}, root: ".", paths: []string{`data/a\[1].csv`}},
		{given: []string{"../there"}, root: dir, paths: []string{"there"}},
		{given: []string{"../there/"}, root: "../there/"},
		{given: []string{"data/", "train.py"}, bad: true},
		{given: []string{"data", "../there"}, bad: true},
		{given: []string{"train.py/"}, bad: true},
		{given: []string{"nothing"}, bad: true},
	} {
		root, paths, err := inputs(tt.given)
		if (err != nil) != tt.bad || (err == nil && (root != tt.root || !slices.Equal(paths, tt.paths))) {
			t.Errorf("inputs(%q) = %q, %q, %v", tt.given, root, paths, err)
		}
	}
}

// Flags win over the job file, and both say what they mean in the API's words.
func TestSpecFromFileAndFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "job.yaml")
	text := `
name: from file
task:
  command: [python3, train.py]
  env: {A: 1, B: true, C: "x y"}
  grace: 1m
requirements:
  memory_bytes: 4GB
  disk_bytes: 1000000
  gpus: [{vram_bytes: 8GiB, vendor: nvidia}, {vram_bytes: 24GB}]
  max_price: 0.40
retry: {user: 1, node: 2, interruption: 3}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	spec, err := readManifest(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	var s submission
	cmd := newSubmit(Env{Getenv: func(string) string { return "" }})
	cmd.ResetFlags()
	s.bind(cmd)
	args := []string{"--name", "from flag", "--gpu-model", "3090", "--retries", "7", "--env", "B=2", "--env", "HOME", "--cpu", "0.5", "--label", "k=v"}
	if err := cmd.Flags().Parse(args); err != nil {
		t.Fatal(err)
	}
	got, err := s.apply(spec, nil, func(k string) string { return "my " + k })
	if err != nil {
		t.Fatal(err)
	}
	price := offpeak.Price(400_000)
	want := offpeak.Spec{
		Name: "from flag",
		Task: offpeak.Task{Driver: "process", Command: []string{"python3", "train.py"}, Grace: offpeak.Duration(60e9),
			Env: map[string]string{"A": "1", "B": "2", "C": "x y", "HOME": "my HOME"}},
		Requirements: offpeak.Requirements{CPU: 500, Memory: 4 * offpeak.GB, Disk: offpeak.MB, MaxPrice: &price,
			GPUs: []offpeak.GPURequest{{VRAM: 8 * offpeak.GiB, Vendor: "nvidia", Model: "3090"}, {VRAM: 24 * offpeak.GB, Model: "3090"}}},
		Retry:  &offpeak.RetryPolicy{User: 7, Node: 2, Interruption: 3},
		Labels: map[string]string{"k": "v"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestGPUFlags(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want []offpeak.GPURequest
	}{
		{[]string{"--vram", "24GB"}, []offpeak.GPURequest{{VRAM: 24 * offpeak.GB}}},
		{[]string{"--gpus", "2"}, []offpeak.GPURequest{{}, {}}},
		{[]string{"--gpus", "2", "--vram", "8GB", "--gpu-vendor", "amd"}, []offpeak.GPURequest{{VRAM: 8 * offpeak.GB, Vendor: "amd"}, {VRAM: 8 * offpeak.GB, Vendor: "amd"}}},
		{[]string{"--gpu", "24GB", "--gpu", "8GB"}, []offpeak.GPURequest{{VRAM: 24 * offpeak.GB}, {VRAM: 8 * offpeak.GB}}},
		{[]string{"--gpu-model", "4090"}, []offpeak.GPURequest{{Model: "4090"}}},
		{nil, nil},
	} {
		var s submission
		cmd := newSubmit(Env{Getenv: func(string) string { return "" }})
		cmd.ResetFlags()
		s.bind(cmd)
		if err := cmd.Flags().Parse(tt.args); err != nil {
			t.Fatal(err)
		}
		spec, err := s.apply(offpeak.Spec{}, []string{"x.wasm"}, nil)
		if err != nil || spec.Task.Driver != "wasm" {
			t.Fatalf("%v: driver %q, %v", tt.args, spec.Task.Driver, err)
		}
		if diff := cmp.Diff(tt.want, spec.Requirements.GPUs); diff != "" {
			t.Errorf("%v: -want +got:\n%s", tt.args, diff)
		}
	}
}
