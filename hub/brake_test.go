package hub_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"offpeak"
	"offpeak/hub"
	"offpeak/wire"
)

// herd are nodes that run a job each and were heard together.
func herd(g *grid, n int) (agents []*agent, held []wire.Desired) {
	for i := range n {
		a := g.join(fmt.Sprintf("n%d", i))
		g.submit(small())
		d := a.offered()
		a.accept(d)
		a.run(d)
		agents, held = append(agents, a), append(held, d)
	}
	beatAll(agents, held)
	return agents, held
}

func beatAll(agents []*agent, held []wire.Desired) {
	for i, a := range agents {
		a.beat(held[i].Lease)
	}
}

// speak has nodes be heard at the interval for a while.
func speak(agents []*agent, held []wire.Desired, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Second) {
		beatAll(agents, held)
	}
	synctest.Wait()
}

func (g *grid) warns(of string) bool {
	g.t.Helper()
	c, err := g.hub.Check(g.t.Context(), false)
	must(g.t, err)
	return strings.Contains(strings.Join(c.Warnings, "\n"), of)
}

// When most of the fleet falls silent at once, nothing is taken back for up to one
// timeout more, and the check says why. What comes back by then has lost nothing;
// what does not is taken back.
func TestMassSilence(t *testing.T) {
	for _, back := range []bool{true, false} {
		t.Run(fmt.Sprintf("back %v", back), func(t *testing.T) {
			bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
				agents, held := herd(g, 7)
				running := func() (n int) {
					for _, d := range held {
						if g.job(d.Job).State == offpeak.JobRunning {
							n++
						}
					}
					return n
				}
				// Six of seven are silent, from now on.
				speak(agents[:1], held[:1], 90*time.Second)
				if n := running(); n != 7 {
					t.Fatalf("%d of 7 jobs run, half a timeout after six nodes' leases had run out", n)
				}
				if !g.warns("silent at once") {
					t.Error("the check does not say that leases are held back")
				}
				if back {
					speak(agents, held, 2*time.Minute)
					if n := running(); n != 7 || g.warns("silent at once") {
						t.Errorf("%d of 7 jobs run after all were heard again; the check warns: %v", n, g.warns("silent at once"))
					}
					return
				}
				speak(agents[:1], held[:1], time.Minute)
				if n := running(); n != 1 {
					t.Errorf("%d of 7 jobs run, more than two timeouts after six nodes were last heard", n)
				}
				g.sound()
			})
		})
	}
}

// A node that is silent alone is taken back when its lease ends.
func TestOneSilentAmongMany(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		agents, held := herd(g, 7)
		speak(agents[1:], held[1:], 63*time.Second)
		if j := g.job(held[0].Job); j.State != offpeak.JobQueued || j.Reason != offpeak.EndNodeLost {
			t.Errorf("its job is %s (%s)", j.State, j.Reason)
		}
		if g.warns("silent at once") {
			t.Error("the check warns of a mass")
		}
	})
}
