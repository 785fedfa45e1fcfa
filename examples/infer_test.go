package examples

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The members of an array read with the weights that were trained, each its part, and
// together they read as many right as the training said.
func TestInferInParts(t *testing.T) {
	t.Parallel()
	requirePython(t, "sklearn", "python3-sklearn")
	dir := folder(t)
	if a := run(t, "digits/train.py", dir, 1, []string{"--steps=12"}, nil); a.code != 0 {
		t.Fatalf("training: exit code %d\n%s", a.code, a.printed)
	}
	text, err := os.ReadFile(filepath.Join(dir, "outputs", "metrics.json"))
	if err != nil {
		t.Fatal(err)
	}
	var trained struct {
		Accuracy float64 `json:"test_accuracy"`
	}
	if err := json.Unmarshal(text, &trained); err != nil {
		t.Fatal(err)
	}
	script, err := filepath.Abs("infer/infer.py")
	if err != nil {
		t.Fatal(err)
	}
	python3 := func(in string, env []string, args ...string) string {
		t.Helper()
		c := exec.Command(python, append([]string{script}, args...)...)
		c.Dir, c.Env = in, slices.Concat(env, []string{"PATH=/usr/bin:/bin", "OMP_NUM_THREADS=1"})
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	const size = 7
	parts := t.TempDir()
	for i := range size {
		member := filepath.Join(parts, fmt.Sprint(i))
		if err := os.Mkdir(member, 0o755); err != nil {
			t.Fatal(err)
		}
		said := python3(member, []string{fmt.Sprintf("OFFPEAK_ARRAY_INDEX=%d", i), fmt.Sprintf("OFFPEAK_ARRAY_SIZE=%d", size)},
			"--data", filepath.Join(dir, "digits.csv.gz"), "--model", filepath.Join(dir, "outputs", "model.json"))
		if !strings.Contains(said, " right") {
			t.Errorf("member %d said %q", i, said)
		}
	}
	if said, want := python3(parts, nil, "--join", "."), fmt.Sprintf("%d parts, test accuracy %.4f\n", size, trained.Accuracy); said != want {
		t.Errorf("joined: %q, want %q", said, want)
	}
}
