package gridtest

import (
	"context"
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
echo "attempt $OFFPEAK_ATTEMPT to $n" >result
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
func (g *Grid) Facts() []Fact { return g.FactsIn(g.RefereeFile()) }

// FactsIn reads a file of the same form.
func (g *Grid) FactsIn(path string) []Fact {
	g.t.Helper()
	data, err := os.ReadFile(path)
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

// Forget tells the referee that the hub has no such job any more, because it was
// restored from an older copy.
func (g *Grid) Forget(id offpeak.JobID) { g.forgotten[id] = true }

// referee compares what jobs testified with what the store says became of them:
// nothing ran without a lease, nothing ran twice under one lease nor after it,
// no two attempts ran at once, and what is said to have succeeded did run.
func (g *Grid) referee() {
	g.t.Helper()
	facts := g.Facts()
	jobs := map[offpeak.JobID][]Fact{}
	for _, f := range facts {
		if !g.forgotten[f.Job] {
			jobs[f.Job] = append(jobs[f.Job], f)
		}
	}
	if o := Overlap(facts); o > 0 && !g.slept {
		g.t.Errorf("two attempts of a job ran at once for %s", o)
	}
	for id, said := range jobs {
		job, err := g.Client.Job(context.Background(), id)
		if err != nil {
			g.t.Errorf("job %s ran, but the hub says: %v", id, err)
			continue
		}
		list, err := g.Client.Attempts(context.Background(), id)
		if err != nil {
			g.t.Errorf("attempts of %s: %v", id, err)
			continue
		}
		for _, fault := range faults(job, list.Items, said, g.slept) {
			g.t.Errorf("job %s: %s", id, fault)
		}
	}
}

// faults are the contradictions between a job's testimony and its leases.
// Facts stand in the order in which they were written, a lease's own in the
// order of time.
func faults(job offpeak.Job, leases []offpeak.Lease, facts []Fact, slept bool) (out []string) {
	fault := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	byID := map[offpeak.LeaseID]offpeak.Lease{}
	var winner offpeak.LeaseID
	won := 0
	for _, l := range leases {
		byID[l.ID] = l
		if l.State == offpeak.LeaseSucceeded {
			winner = l.ID
			won++
			if l.Attempt != job.Attempt {
				fault("attempt %d succeeded, the newest is %d", l.Attempt, job.Attempt)
			}
		}
	}
	if won > 1 || (job.State == offpeak.JobSucceeded) != (won == 1) {
		fault("it is %s, %d attempts succeeded", job.State, won)
	}
	last := map[offpeak.LeaseID]Fact{}
	for _, f := range facts {
		l, known := byID[f.Lease]
		before, began := last[f.Lease]
		switch {
		case !known || l.Attempt != f.Attempt:
			fault("%s of attempt %d under lease %s, which the hub did not give", f.What, f.Attempt, f.Lease)
		case f.What == "start" && began:
			fault("attempt %d started twice", f.Attempt)
		case f.What == "step" && began && f.Step != before.Step+1:
			fault("attempt %d ran step %d after step %d", f.Attempt, f.Step, before.Step)
		case l.EndedAt != nil && f.At.After(*l.EndedAt) && (!slept || l.State != offpeak.LeaseLost):
			fault("%s %d of attempt %d came %s after its lease ended as %s", f.What, f.Step, f.Attempt, f.At.Sub(*l.EndedAt), l.Reason)
		}
		last[f.Lease] = f
	}
	if _, ran := last[winner]; winner != "" && !ran {
		fault("attempt %d succeeded and did not run", job.Attempt)
	}
	return out
}
