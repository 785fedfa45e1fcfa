package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"offpeak"
	"offpeak/internal/cutproxy"
	"offpeak/internal/gridtest"
	"offpeak/internal/pgtest"
)

// times is how often a test does what it does: as often as the variable says,
// else as often as continuous integration has time for.
func times(t *testing.T, variable string, unset int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return unset
	}
	n, err := strconv.Atoi(text)
	if err != nil || n <= 0 {
		t.Fatalf("%s is %q: it has to be a number above 0", variable, text)
	}
	return n
}

// Three hubs on one database under load: one of them is killed every second, each
// in its turn, and started again. OFFPEAK_HUB_KILLS sets how often, 15 times if
// unset.
func TestHubsKilledInTurn(t *testing.T) {
	kills := times(t, "OFFPEAK_HUB_KILLS", 15)
	g := gridtest.StartHubs(t, bin, pgtest.Start(t).Database(t), 3, several)
	g.Priced(paid)
	c := gather(t, g)
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for i := range kills {
		<-second.C
		h := g.Hubs[i%len(g.Hubs)]
		h.Kill()
		h.Start()
	}
	t.Logf("%d kills in %s", kills, time.Since(c.began).Round(time.Second))
	c.settle()
}

// The hub that matches is frozen for longer than a timeout, and thaws with what it
// believed: another one matches meanwhile, and nobody loses a lease by what the
// frozen one did not hear. OFFPEAK_HUB_FREEZES sets how often, once if unset.
func TestHubFrozen(t *testing.T) {
	g := gridtest.StartHubs(t, bin, pgtest.Start(t).Database(t), 3, several)
	g.Priced(paid)
	c := gather(t, g)
	for range times(t, "OFFPEAK_HUB_FREEZES", 1) {
		frozen := g.Leader()
		frozen.Freeze()
		since := time.Now()
		gridtest.Eventually(t, 10*time.Second, "another hub to match", func() error {
			if g.Leader() == frozen {
				return errors.New("the frozen one is the last that did")
			}
			return nil
		})
		led := time.Since(since)
		gridtest.Eventually(t, 30*time.Second, "ten seconds to pass", func() error {
			if passed := time.Since(since); passed < 10*time.Second {
				return fmt.Errorf("%s so far", passed)
			}
			return nil
		})
		frozen.Thaw()
		t.Logf("frozen for %s; another hub matched after %s", time.Since(since).Round(time.Millisecond), led.Round(time.Millisecond))
		online(t, g)
	}
	c.settle()
}

// online waits until every node is heard.
func online(t *testing.T, g *gridtest.Grid) {
	t.Helper()
	gridtest.Eventually(t, 60*time.Second, "every node to be heard", func() error {
		nodes, err := g.Client.Nodes(context.Background(), nil)
		if err != nil {
			return err
		}
		for _, n := range nodes.Items {
			if n.Liveness != offpeak.NodeOnline {
				return fmt.Errorf("node %s is %s", n.Name, n.Liveness)
			}
		}
		return nil
	})
}

// The connections between hubs and database are cut in mid-commit, before the
// commit reaches the database and after it, when nobody can say whether it
// happened. OFFPEAK_CUTS sets how often, 150 times if unset.
func TestCommitsCut(t *testing.T) {
	want := times(t, "OFFPEAK_CUTS", 150)
	server := pgtest.Start(t)
	proxy := cutproxy.Start(t, server.Addr())
	g := gridtest.StartHubs(t, bin, proxy.URL(t, server.Database(t)), 3, several)
	g.Priced(paid)
	c := gather(t, g)
	commits := 0
	kinds := []cutproxy.Cut{cutproxy.Before, cutproxy.After, cutproxy.During}
	proxy.Decide(func() cutproxy.Cut {
		if commits++; commits%7 > 0 {
			return cutproxy.None
		}
		return kinds[commits/7%len(kinds)]
	})
	gridtest.Eventually(t, 30*time.Minute, "so many cuts", func() error {
		if n := proxy.Counts(); n.Before+n.During+n.After < want {
			return fmt.Errorf("%+v so far", n)
		}
		return nil
	})
	proxy.Decide(nil)
	t.Logf("%+v", proxy.Counts())
	online(t, g)
	c.settle()
}

// The database is killed with all its processes, recovers and is killed again, under
// load. Meanwhile hubs answer 503 and when to come again, agents go on, and
// afterwards everything goes on by itself: nobody was expired, nothing that was
// acknowledged is lost. OFFPEAK_DB_KILLS sets how often, 8 times if unset.
func TestDatabaseKilledAgainAndAgain(t *testing.T) {
	kills := times(t, "OFFPEAK_DB_KILLS", 8)
	server := pgtest.Start(t)
	g := gridtest.StartHubs(t, bin, server.Database(t), 3, several)
	g.Priced(paid)
	c := gather(t, g)
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for i := range kills {
		<-second.C
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		unavailable(t, g.Hubs[i%len(g.Hubs)], g.Client.Token)
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d kills of the database in %s", kills, time.Since(c.began).Round(time.Second))
	online(t, g)
	c.settle()
}

// unavailable checks what a hub answers whose database is away.
func unavailable(t *testing.T, h *gridtest.Hub, token string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, h.URL()+"/v1/jobs", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	began := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Errorf("a hub without its database: %v", err)
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("a hub without its database answers %s, Retry-After %q", resp.Status, resp.Header.Get("Retry-After"))
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("a hub without its database took %s to say so", took)
	}
}

// The database's clock jumps ahead and back by hours under load: nobody loses a
// lease, nothing lasts less than no time, and the grid's time goes on.
func TestDatabaseClockJumps(t *testing.T) {
	server := pgtest.StartSkewable(t)
	g := gridtest.StartHubs(t, bin, server.Database(t), 3, several)
	g.Priced(paid)
	c := gather(t, g)
	pause := time.NewTicker(2 * time.Second)
	defer pause.Stop()
	for _, d := range []time.Duration{2 * time.Hour, 0, -2 * time.Hour, 2 * time.Hour, 0} {
		<-pause.C
		if err := server.Skew(d); err != nil {
			t.Fatal(err)
		}
	}
	<-pause.C
	online(t, g)
	c.settle()
	last := time.Time{}
	for _, e := range g.Events() {
		if e.At.Before(last.Add(-time.Minute)) || e.At.After(time.Now().Add(time.Minute)) {
			t.Errorf("event %s is of %s, the one before of %s, and it is %s", e.Type, e.At, last, time.Now())
		}
		last = e.At
	}
	for id := range c.acked {
		list, err := g.Client.Attempts(context.Background(), id)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range list.Items {
			if l.EndedAt == nil || l.EndedAt.Before(l.OfferedAt) || l.StartedAt != nil && l.EndedAt.Before(*l.StartedAt) || l.Metered < 0 || l.EndedAt.Sub(l.OfferedAt) > time.Minute {
				t.Errorf("lease %s: offered %s, started %v, ended %v, metered %d ms", l.ID, l.OfferedAt, l.StartedAt, l.EndedAt, l.Metered)
			}
		}
	}
}

// The hub that an agent speaks to, and that matches, is killed: within two
// heartbeats the agent is served by another one, its job goes on, matching goes on
// within two seconds, and what the dead hub had taken of logs and outputs is read
// through the others.
func TestFailOver(t *testing.T) {
	g := gridtest.StartHubs(t, bin, pgtest.Start(t).Database(t), 3, several)
	g.Priced(paid)
	var dead *gridtest.Hub
	gridtest.Eventually(t, 20*time.Second, "a hub to match", func() error {
		if dead = g.Leader(); dead == nil {
			return errors.New("none does")
		}
		return nil
	})
	others := slices.DeleteFunc(slices.Clone(g.Hubs), func(h *gridtest.Hub) bool { return h == dead })
	a := g.StartAgent("a", strings.Join([]string{dead.URL(), others[0].URL(), others[1].URL()}, ","), "--cpu", "4", "--warm", "2")
	spec := g.Shell(gridtest.Say + "echo kept; echo result >result; say end")
	spec.Task.Outputs = []string{"result"}
	before := g.WaitState(g.Submit(spec).ID, 30*time.Second, offpeak.JobSucceeded, offpeak.JobFailed)
	counts := g.Submit(g.Counter(1_000_000, 100*time.Millisecond)).ID
	g.WaitState(counts, 30*time.Second, offpeak.JobRunning)
	var heard atomic.Int64
	var watch sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	defer watch.Wait()
	defer stop()
	survivor := others[0].Client()
	dead.Kill()
	killed := time.Now()
	watch.Go(func() {
		for ctx.Err() == nil && heard.Load() == 0 {
			n, err := survivor.Node(ctx, a.Node)
			if err == nil && n.LastHeard != nil && n.LastHeard.After(killed) {
				heard.Store(int64(time.Since(killed)))
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
	job, err := survivor.Submit(ctx, gridtest.NewOp(), g.Shell(gridtest.Say+"say end"))
	if err != nil {
		t.Fatal(err)
	}
	gridtest.Eventually(t, 20*time.Second, "a job to be matched", func() error {
		j, err := survivor.Job(ctx, job.ID)
		if err != nil || j.Attempt == 0 {
			return fmt.Errorf("it is %s, %v", j.State, err)
		}
		return nil
	})
	matched := time.Since(killed)
	gridtest.Eventually(t, 20*time.Second, "the agent to be heard", func() error {
		if heard.Load() == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	served := time.Duration(heard.Load())
	t.Logf("served again after %s at an interval of %s, matched again after %s", served, several.Heartbeat, matched)
	if most := 2 * several.Heartbeat; served > most+slow {
		t.Errorf("the agent was served again after %s, at most %s are allowed", served, most)
	}
	if most := 2 * time.Second; matched > most+slow {
		t.Errorf("a job was matched after %s, at most %s are allowed", matched, most)
	}
	for _, h := range others {
		d := h.Client()
		logs, err := d.Logs(ctx, before.ID, 0, "stdout", 0, false)
		if err != nil {
			t.Errorf("logs through %s: %v", h.Addr, err)
			continue
		}
		var text strings.Builder
		if _, err := io.Copy(&text, logs); err != nil || text.String() != "kept\n" {
			t.Errorf("the log through %s is %q, %v", h.Addr, text.String(), err)
		}
		dir := t.TempDir()
		if out, errs, exit := h.CLI("outputs", string(before.ID), "--out", dir); exit != 0 {
			t.Errorf("fetch outputs through %s: exit %d: %s%s", h.Addr, exit, out, errs)
		}
	}
	g.WaitState(job.ID, 30*time.Second, offpeak.JobSucceeded)
	if j := g.WaitState(counts, 10*time.Second, offpeak.JobRunning); j.Attempt != 1 {
		t.Errorf("the job is at attempt %d", j.Attempt)
	}
	noStepTwice(t, g)
	cancel(t, g, counts)
	g.WaitState(counts, 30*time.Second, offpeak.JobCancelled)
}

// slow is what a machine with other work may add to a measured time.
const slow = 500 * time.Millisecond

// Whoever named several hubs gets an answer although the first is frozen, and a log
// that is followed goes on at another one when its hub freezes.
func TestPeopleLeaveAFrozenHub(t *testing.T) {
	g := gridtest.StartHubs(t, bin, pgtest.Start(t).Database(t), 2, several)
	g.Priced(paid)
	first, second := g.Hubs[0], g.Hubs[1]
	g.StartAgent("a", second.URL(), "--cpu", "4")
	job := g.Submit(g.Shell("echo before; while [ ! -e '" + g.Dir + "/thawed' ]; do sleep 0.1; done; echo after"))
	people := func(args ...string) *exec.Cmd {
		cmd := exec.Command(bin, args...)
		cmd.Env = append(os.Environ(), "OFFPEAK_HOME="+t.TempDir(), "OFFPEAK_HUB="+first.URL()+","+second.URL(), "OFFPEAK_TOKEN="+g.Client.Token)
		return cmd
	}
	follow := people("logs", "-f", string(job.ID))
	out, err := follow.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	log := bufio.NewReader(out)
	line := func(want string) {
		if got, err := log.ReadString('\n'); err != nil || got != want+"\n" {
			t.Errorf("the log says %q, %v; want %q", got, err, want)
		}
	}
	line("before")
	first.Freeze()
	defer first.Thaw()
	frozen := time.Now()
	if out, err := people("whoami").CombinedOutput(); err != nil {
		t.Errorf("whoami: %v: %s", err, out)
	}
	if took := time.Since(frozen); took > 10*time.Second+slow {
		t.Errorf("whoami took %s", took)
	}
	if err := os.WriteFile(filepath.Join(g.Dir, "thawed"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	line("after")
	if took := time.Since(frozen); took > 30*time.Second+slow {
		t.Errorf("the log stood still for %s", took)
	}
	if err := follow.Wait(); err != nil {
		t.Errorf("logs -f: %v", err)
	}
}
