package gridtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"offpeak"
)

// counter counts to $STEPS, a step every $PACE seconds, with a checkpoint after
// each: a file named by the step, renamed into place. It tells the referee what
// it does, and so does not depend on anything the grid says about it.
const counter = `
say() { echo "$1 $OFFPEAK_JOB $OFFPEAK_ATTEMPT $OFFPEAK_LEASE $n $(date +%s%N)" >>"$REFEREE"; }
n=$(ls "$OFFPEAK_CHECKPOINT_DIR" | sort -n | tail -n 1); n=${n:-0}
say start
echo "attempt $OFFPEAK_ATTEMPT from $n"
while [ "$n" -lt "$STEPS" ]; do
  n=$((n + 1))
  say step
  echo "step $n"
  echo "$n" >"$OFFPEAK_CHECKPOINT_DIR/.new" && mv "$OFFPEAK_CHECKPOINT_DIR/.new" "$OFFPEAK_CHECKPOINT_DIR/$n"
  sleep "$PACE"
done
echo "$n" >result
say end
`

// Counter is a job that counts to steps and tells the grid's referee. pace is
// how long a step takes.
func (g *Grid) Counter(steps int, pace time.Duration) offpeak.Spec {
	return offpeak.Spec{
		Name: "counter",
		Task: offpeak.Task{
			Driver:  "process",
			Command: []string{"/bin/sh", "-c", counter},
			Env: map[string]string{
				"REFEREE": g.RefereeFile(),
				"STEPS":   strconv.Itoa(steps),
				"PACE":    strconv.FormatFloat(pace.Seconds(), 'f', 3, 64),
			},
			Outputs:    []string{"result"},
			Checkpoint: offpeak.Checkpointing{Every: offpeak.Duration(100 * time.Millisecond)},
			Grace:      offpeak.Duration(time.Second),
		},
		Requirements: offpeak.Requirements{CPU: 1000, Memory: 64 * offpeak.MiB, Disk: 16 * offpeak.MiB},
	}
}

// Say is the beginning of a script that tells the referee of an attempt's start
// and lets it `say end` of its end.
const Say = `n=0; say() { echo "$1 $OFFPEAK_JOB $OFFPEAK_ATTEMPT $OFFPEAK_LEASE $n $(date +%s%N)" >>"$REFEREE"; }; say start; `

// Shell is a job that runs a script once, with $REFEREE set.
func (g *Grid) Shell(script string) offpeak.Spec {
	return offpeak.Spec{
		Name: "shell",
		Task: offpeak.Task{
			Driver:  "process",
			Command: []string{"/bin/sh", "-c", script},
			Env:     map[string]string{"REFEREE": g.RefereeFile()},
			Grace:   offpeak.Duration(time.Second),
		},
		Requirements: offpeak.Requirements{CPU: 1000, Memory: 64 * offpeak.MiB, Disk: 16 * offpeak.MiB},
	}
}

// RefereeFile is the file outside the grid that jobs append to.
func (g *Grid) RefereeFile() string { return filepath.Join(g.Dir, "referee") }

// Fact is one line of the referee's file.
type Fact struct {
	What    string // start, step or end
	Job     offpeak.JobID
	Attempt offpeak.Attempt
	Lease   offpeak.LeaseID
	Step    int
	At      time.Time
}

// Facts reads the referee's file.
func (g *Grid) Facts() []Fact {
	g.t.Helper()
	data, err := os.ReadFile(g.RefereeFile())
	if err != nil && !os.IsNotExist(err) {
		g.t.Fatalf("read the referee's file: %v", err)
	}
	var out []Fact
	for line := range strings.Lines(string(data)) {
		var f Fact
		var ns int64
		if _, err := fmt.Sscanf(line, "%s %s %d %s %d %d", &f.What, &f.Job, &f.Attempt, &f.Lease, &f.Step, &ns); err != nil {
			g.t.Fatalf("the referee's line %q: %v", line, err)
		}
		f.At = time.Unix(0, ns)
		out = append(out, f)
	}
	return out
}

// Overlap returns how long two attempts of one job ran at the same time: from
// the first fact of a later attempt to the last one of an earlier attempt.
func Overlap(facts []Fact) time.Duration {
	type span struct{ first, last time.Time }
	jobs := map[offpeak.JobID]map[offpeak.Attempt]*span{}
	for _, f := range facts {
		if jobs[f.Job] == nil {
			jobs[f.Job] = map[offpeak.Attempt]*span{}
		}
		s := jobs[f.Job][f.Attempt]
		if s == nil {
			s = &span{first: f.At, last: f.At}
			jobs[f.Job][f.Attempt] = s
		}
		s.last = f.At
	}
	var worst time.Duration
	for _, attempts := range jobs {
		for a, sa := range attempts {
			for b, sb := range attempts {
				if a < b {
					worst = max(worst, sa.last.Sub(sb.first))
				}
			}
		}
	}
	return worst
}
