package examples

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"offpeak/internal/require"
)

// python is named absolutely: only Debian's interpreter sees Debian's packages.
const python = "/usr/bin/python3"

// moved is the exit code of a job that left because it was asked to.
const moved = 75

// record is what the jobs say of themselves, one JSON object a line.
type record struct {
	Event   string
	Attempt int
	Step    int
}

// attempt is what one run of a job left behind.
type attempt struct {
	code    int
	records []record
	steps   []int
	printed string
}

func TestPythonJobs(t *testing.T) {
	for _, job := range []struct {
		script string
		needs  string
		debian string
		args   []string
		model  string
		cuts   []int
	}{
		{"digits/train.py", "sklearn", "python3-sklearn", []string{"--steps=40"}, "model.json", []int{8, 17, 26}},
		{"pytorch/train.py", "torch", "python3-torch", []string{"--epochs=12"}, "model.pt", []int{2, 4, 7}},
	} {
		t.Run(job.script, func(t *testing.T) {
			t.Parallel()
			requirePython(t, job.needs, job.debian)
			alone, cut := folder(t), folder(t)

			a := run(t, job.script, alone, 1, job.args, nil)
			if a.code != 0 {
				t.Fatalf("exit code %d\n%s", a.code, a.printed)
			}

			notice := filepath.Join(cut, "notice.json")
			interruptions := []struct {
				name string
				code int
				do   func(*os.Process) error
			}{
				{"kill", -1, (*os.Process).Kill},
				{"sigterm", moved, func(p *os.Process) error { return p.Signal(syscall.SIGTERM) }},
				{"notice", moved, func(*os.Process) error { return os.WriteFile(notice, []byte(`{"reason":"drained"}`), 0o644) }},
			}
			stored := 0
			for i, in := range interruptions {
				mark := fmt.Sprintf("step %d of ", job.cuts[i])
				a := run(t, job.script, cut, i+1, job.args, func(line string, p *os.Process) {
					if strings.HasPrefix(line, mark) {
						if err := in.do(p); err != nil {
							t.Errorf("%s: %v", in.name, err)
						}
					}
				})
				if a.code != in.code {
					t.Fatalf("exit code %d after %s, want %d\n%s", a.code, in.name, in.code, a.printed)
				}
				a.began(t, stored)
				stored = newest(t, cut)
				if last := a.steps[len(a.steps)-1]; in.code == moved && stored != last {
					t.Errorf("after %s: left at step %d with a checkpoint of step %d", in.name, last, stored)
				}
				_ = os.Remove(notice)
			}
			last := run(t, job.script, cut, len(interruptions)+1, job.args, nil)
			if last.code != 0 {
				t.Fatalf("exit code %d\n%s", last.code, last.printed)
			}
			last.began(t, stored)
			accurate(t, cut)
			same(t, filepath.Join(alone, "outputs", job.model), filepath.Join(cut, "outputs", job.model))
		})
	}
}

// requirePython skips the test where a package is missing, and fails it where
// everything must be there.
func requirePython(t *testing.T, module, debian string) {
	t.Helper()
	require.Met(t, exec.Command(python, "-c", "import "+module).Run(), python+" with "+module+" (apt-get install "+debian+")")
}

// folder makes a job's folder with its input.
func folder(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("digits/digits.csv.gz")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "digits.csv.gz"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// run runs a script in dir, as a node would, and hands each line to see.
func run(t *testing.T, script, dir string, n int, args []string, see func(line string, p *os.Process)) attempt {
	t.Helper()
	script, err := filepath.Abs(script)
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(python, append([]string{script}, args...)...)
	c.Dir = dir
	c.Env = []string{
		"PATH=/usr/bin:/bin", "HOME=" + dir, "OMP_NUM_THREADS=1",
		"OFFPEAK_CHECKPOINT_DIR=" + filepath.Join(dir, "checkpoints"),
		"OFFPEAK_NOTICE=" + filepath.Join(dir, "notice.json"),
		fmt.Sprintf("OFFPEAK_ATTEMPT=%d", n),
	}
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var a attempt
	for lines := bufio.NewScanner(out); lines.Scan(); {
		line := lines.Text()
		a.printed += line + "\n"
		var r record
		var step, of int
		if json.Unmarshal([]byte(line), &r) == nil {
			if r.Attempt != n {
				t.Errorf("attempt %d recorded %s", n, line)
			}
			a.records = append(a.records, r)
		} else if k, _ := fmt.Sscanf(line, "step %d of %d", &step, &of); k == 2 {
			a.steps = append(a.steps, step)
		}
		if see != nil {
			see(line, c.Process)
		}
	}
	err = c.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	a.code = c.ProcessState.ExitCode()
	a.printed += stderr.String()
	if len(a.records) == 0 || len(a.steps) == 0 {
		t.Fatalf("attempt %d recorded nothing:\n%s", n, a.printed)
	}
	return a
}

// began checks that the attempt took up where the checkpoint of a step ends,
// and took each step after it once.
func (a attempt) began(t *testing.T, step int) {
	t.Helper()
	if r := a.records[0]; r.Event != "start" || r.Step != step {
		t.Fatalf("began with %+v, the newest checkpoint is of step %d", r, step)
	}
	for i, got := range a.steps {
		if got != step+1+i {
			t.Fatalf("after the checkpoint of step %d the steps were %v", step, a.steps)
		}
	}
}

// newest is the step of the newest complete checkpoint.
func newest(t *testing.T, dir string) int {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "checkpoints"))
	if err != nil {
		t.Fatal(err)
	}
	step, complete := 0, 0
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		complete++
		_, digits, _ := strings.Cut(strings.TrimSuffix(e.Name(), ".pt"), "-")
		var n int
		if _, err := fmt.Sscanf(digits, "%d", &n); err != nil {
			t.Fatalf("checkpoint %s names no step", e.Name())
		}
		step = max(step, n)
	}
	if complete == 0 || complete > 3 {
		t.Fatalf("%d complete checkpoints: %v", complete, entries)
	}
	return step
}

func accurate(t *testing.T, dir string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "outputs", "metrics.json"))
	if err != nil {
		t.Fatal(err)
	}
	var m struct {
		Accuracy float64 `json:"test_accuracy"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	if m.Accuracy < 0.95 {
		t.Errorf("test accuracy %.4f, want at least 0.95", m.Accuracy)
	}
}

func same(t *testing.T, a, b string) {
	t.Helper()
	x, err := os.ReadFile(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := os.ReadFile(b)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(x, y) {
		t.Errorf("the model of the interrupted run differs from that of the run left alone")
	}
}
