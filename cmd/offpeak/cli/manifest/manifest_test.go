package manifest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"offpeak"
)

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
  max_price: 0.40/h
retry: {user: 1, node: 2, interruption: 3}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	spec, err := Read(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	var s Flags
	cmd := &cobra.Command{}
	s.Bind(cmd)
	args := []string{"--name", "from flag", "--gpu-model", "3090", "--retries", "7", "--env", "B=2", "--env", "HOME", "--cpu", "0.5", "--label", "k=v"}
	if err := cmd.Flags().Parse(args); err != nil {
		t.Fatal(err)
	}
	got, err := s.Apply(spec, nil, func(k string) string { return "my " + k })
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
		{[]string{"--gpu", "24GB:nvidia:RTX 4090", "--gpu", "16GB::RTX", "--gpu", "8GiB:amd", "--gpu-vendor", "nvidia", "--gpu-driver", "535.0"}, []offpeak.GPURequest{
			{VRAM: 24 * offpeak.GB, Vendor: "nvidia", Model: "RTX 4090", Driver: "535.0"}, {VRAM: 16 * offpeak.GB, Vendor: "nvidia", Model: "RTX", Driver: "535.0"}, {VRAM: 8 * offpeak.GiB, Vendor: "amd", Driver: "535.0"},
		}},
		{[]string{"--compute-capability", "8.6"}, []offpeak.GPURequest{{Compute: "8.6"}}},
		{[]string{"--gpu-driver", "535.0", "--gpus", "2"}, []offpeak.GPURequest{{Driver: "535.0"}, {Driver: "535.0"}}},
		{[]string{"--gpu-kind", "any", "--vram", "16GB"}, []offpeak.GPURequest{{VRAM: 16 * offpeak.GB, Kind: offpeak.GPUAny}}},
		{[]string{"--gpu-model", "4090"}, []offpeak.GPURequest{{Model: "4090"}}},
		{nil, nil},
	} {
		var s Flags
		cmd := &cobra.Command{}
		s.Bind(cmd)
		if err := cmd.Flags().Parse(tt.args); err != nil {
			t.Fatal(err)
		}
		spec, err := s.Apply(offpeak.Spec{}, []string{"x.wasm"}, nil)
		if err != nil || spec.Task.Driver != "wasm" {
			t.Fatalf("%v: driver %q, %v", tt.args, spec.Task.Driver, err)
		}
		if diff := cmp.Diff(tt.want, spec.Requirements.GPUs); diff != "" {
			t.Errorf("%v: -want +got:\n%s", tt.args, diff)
		}
	}
}

// What says where a job may run: conditions on labels, nodes by id and by name,
// accounts.
func TestWhere(t *testing.T) {
	var s Flags
	cmd := &cobra.Command{}
	s.Bind(cmd)
	err := cmd.Flags().Parse([]string{
		"--where", "region = eu, !metered", "--where", "gpu-room,zone!=b", "--where", "a=b=c",
		"--node", "node_1", "--node", "attic", "--not-node", "cellar", "--not-account", "acct_x",
	})
	if err != nil {
		t.Fatal(err)
	}
	from := offpeak.Spec{Requirements: offpeak.Requirements{Where: map[string]string{"rack": "7"}, Match: []string{"quiet"}, Nodes: []offpeak.NodeID{"node_9"}}}
	spec, err := s.Apply(from, []string{"x"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	spec, err = s.Resolve(spec, func(ref string) (offpeak.NodeID, error) { return offpeak.NodeID("node_" + ref), nil })
	if err != nil {
		t.Fatal(err)
	}
	want := offpeak.Requirements{
		Where: map[string]string{"rack": "7", "region": "eu", "a": "b=c"}, Match: []string{"quiet", "!metered", "gpu-room", "zone!=b"},
		Nodes: []offpeak.NodeID{"node_1", "node_attic"}, NotNodes: []offpeak.NodeID{"node_cellar"}, NotAccounts: []offpeak.AccountID{"acct_x"},
	}
	if diff := cmp.Diff(want, spec.Requirements); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// All that a job file may say of what it needs, in the API's words.
func TestNeedsFromFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "job.yaml")
	text := `
task: {command: [x], driver: process}
requirements:
  gpus: [{vram_bytes: 24GB, kind: any, compute: "8.6", driver: "535.0"}]
  match: ["!metered", gpu-room, zone!=b]
  nodes: [node_1]
  not_nodes: [node_2]
  not_accounts: [acct_x]
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	spec, err := Read(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := offpeak.Requirements{
		GPUs:  []offpeak.GPURequest{{VRAM: 24 * offpeak.GB, Kind: offpeak.GPUAny, Compute: "8.6", Driver: "535.0"}},
		Match: []string{"!metered", "gpu-room", "zone!=b"}, Nodes: []offpeak.NodeID{"node_1"}, NotNodes: []offpeak.NodeID{"node_2"}, NotAccounts: []offpeak.AccountID{"acct_x"},
	}
	if diff := cmp.Diff(want, spec.Requirements); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
