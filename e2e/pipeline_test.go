package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"offpeak"
	"offpeak/internal/gridtest"
	"offpeak/internal/pgtest"
	"offpeak/wire"
)

// chained is a pipeline in which each step adds a line to what the one before it
// made, and the last one counts them; one step fails, beside.
func chained(g *gridtest.Grid, steps int) offpeak.Pipeline {
	p := offpeak.Pipeline{Name: "chained"}
	add := func(name, script string, from ...string) *offpeak.Step {
		s := offpeak.Step{Spec: g.Shell(script), From: from}
		s.Name, s.Task.Outputs = name, []string{"made"}
		p.Steps = append(p.Steps, s)
		return &p.Steps[len(p.Steps)-1]
	}
	add("s0", "echo 0 > made")
	for i := 1; i < steps; i++ {
		add(fmt.Sprint("s", i), fmt.Sprintf("cat s%d/made > made; echo %d >> made; sleep 0.5", i-1, i), fmt.Sprint("s", i-1))
	}
	last := fmt.Sprint("s", steps-1)
	add("count", fmt.Sprintf("test $(wc -l < %s/made) = %d && echo right > made", last, steps), last)
	add("bad", "exit 3", "s0").Task.Outputs = nil
	add("never", "true", "bad").Task.Outputs = nil
	return p
}

func ended(t *testing.T, d *wire.Direct, id string) map[string]offpeak.Job {
	t.Helper()
	jobs := map[string]offpeak.Job{}
	gridtest.Eventually(t, 90*time.Second, "the pipeline to end", func() error {
		p, err := d.Pipeline(context.Background(), id)
		if err != nil {
			return err
		}
		for _, j := range p.Jobs {
			if jobs[j.Spec.Name] = j; !j.State.Terminal() {
				err = fmt.Errorf("step %s is %s", j.Spec.Name, j.State)
			}
		}
		return err
	})
	return jobs
}

// right asks that every step ended as it had to.
func right(t *testing.T, jobs map[string]offpeak.Job) {
	t.Helper()
	for name, j := range jobs {
		want, reason := offpeak.JobSucceeded, offpeak.EndCompleted
		switch name {
		case "bad":
			want, reason = offpeak.JobFailed, offpeak.EndExitNonzero
		case "never":
			want, reason = offpeak.JobFailed, offpeak.EndDependencyFailed
		}
		if j.State != want || j.Reason != reason {
			t.Errorf("step %s is %s by %s (%s), want %s by %s", name, j.State, j.Reason, j.Detail, want, reason)
		}
	}
}

// The hub is killed over and over while a pipeline runs, and a node for good.
func TestPipelineSurvivesKills(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	g.StartAgent("a", "")
	dies := g.StartAgent("b", "")
	p, err := g.Client.SubmitPipeline(context.Background(), gridtest.NewOp(), chained(g, 6))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		time.Sleep(700 * time.Millisecond)
		g.KillHub()
		g.StartHub()
		if i == 1 {
			dies.KillNode()
		}
	}
	right(t, ended(t, g.Client, p.ID))
	g.Check()
}

// Of three hubs one is killed every second: an end that one wrote frees a job that
// another one matches, to a node that speaks to a third.
func TestPipelineOverSeveralHubs(t *testing.T) {
	g := gridtest.StartHubs(t, bin, pgtest.Start(t).Database(t), 3, several)
	for i, url := range g.URLs() {
		g.StartAgent(string(rune('a'+i)), url)
	}
	var ids []string
	for i := range 3 {
		var p wire.PipelineJobs
		op := gridtest.NewOp()
		gridtest.Eventually(t, 20*time.Second, "a pipeline to be taken", func() (err error) {
			p, err = g.Round(i).SubmitPipeline(context.Background(), op, chained(g, 5))
			return err
		})
		ids = append(ids, p.ID)
	}
	for i := range 4 {
		time.Sleep(time.Second)
		h := g.Hubs[i%len(g.Hubs)]
		h.Kill()
		h.Start()
	}
	for _, id := range ids {
		right(t, ended(t, g.Round(0), id))
	}
	_, err := g.Round(1).CancelPipeline(context.Background(), gridtest.NewOp(), "pipe_none")
	if !errors.Is(err, offpeak.ErrNotFound) {
		t.Errorf("cancel of no pipeline: %v", err)
	}
	g.Check()
}
