package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"offpeak"
	"offpeak/internal/gridtest"
)

// Processes that escape: grandchildren in sessions of their own that ignore
// every signal they can are gone however the attempt ends, also when it is its
// lease that ends under an agent that is dead.
func TestEscapedProcessesAreKilled(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		limit time.Duration
		end   func(t *testing.T, g *gridtest.Grid, a *gridtest.Agent, id offpeak.JobID)
		state offpeak.JobState
	}{
		{"cancel", 0, func(t *testing.T, g *gridtest.Grid, _ *gridtest.Agent, id offpeak.JobID) { cancel(t, g, id) }, offpeak.JobCancelled},
		{"time limit", 2 * time.Second, func(*testing.T, *gridtest.Grid, *gridtest.Agent, offpeak.JobID) {}, offpeak.JobFailed},
		{"agent killed", 0, func(_ *testing.T, _ *gridtest.Grid, a *gridtest.Agent, _ offpeak.JobID) { a.Kill() }, offpeak.JobQueued},
		{"agent restarted", 0, func(t *testing.T, g *gridtest.Grid, a *gridtest.Agent, id offpeak.JobID) {
			a.Kill()
			a.Start()
			cancel(t, g, id)
		}, offpeak.JobCancelled},
		{"agent back too late", 0, func(t *testing.T, g *gridtest.Grid, a *gridtest.Agent, id offpeak.JobID) {
			a.Kill()
			waitLiveness(t, g, a.Node, offpeak.NodeOffline)
			cancel(t, g, id)
			a.Start()
		}, offpeak.JobCancelled},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := gridtest.Start(t, bin)
			a := g.StartAgent("a", "")
			marker := "offpeak-escaped-" + filepath.Base(g.Dir)
			spec := g.Shell(`deaf="trap '' TERM HUP INT QUIT; : ` + marker + `; echo deaf >>deaf; while :; do sleep 0.2; done"
				for i in 1 2; do (setsid sh -c "(setsid sh -c \"$deaf\" &) ; exit" &); done
				sh -c "$deaf" & (sh -c "$deaf" &)
				trap '' TERM; until [ "$(wc -l <deaf 2>/dev/null)" = 4 ]; do sleep 0.05; done; echo up; while :; do sleep 0.2; done`)
			// Dead agents leave frozen jobs, for this long at most.
			spec.Limits.Time, spec.Limits.KeepFrozen = offpeak.Duration(c.limit), offpeak.Duration(time.Second)
			id := g.Submit(spec).ID
			waitLog(t, g, id, "up\n")
			if n := len(gridtest.ProcessesNamed(marker)); n < 4 {
				t.Fatalf("%d processes escaped: the test tests nothing", n)
			}
			c.end(t, g, a, id)
			g.WaitState(id, 30*time.Second, c.state)
			gridtest.Eventually(t, 10*time.Second, "the job's processes to be gone", func() error {
				if left := gridtest.ProcessesNamed(marker); len(left) > 0 {
					return fmt.Errorf("%v are left", left)
				}
				return nil
			})
		})
	}
}

func cancel(t *testing.T, g *gridtest.Grid, id offpeak.JobID) {
	t.Helper()
	if _, err := g.Client.Cancel(context.Background(), gridtest.NewOp(), id); err != nil {
		t.Errorf("cancel: %v", err)
	}
}

// waitLog waits until the hub has this output of the job's newest attempt.
func waitLog(t *testing.T, g *gridtest.Grid, id offpeak.JobID, want string) {
	t.Helper()
	gridtest.Eventually(t, 30*time.Second, "the job to say "+want, func() error {
		if got := g.Log(id, 0, "stdout"); got != want {
			return fmt.Errorf("it said %q", got)
		}
		return nil
	})
}

// Output on success only: what an attempt wrote before its node was drained or
// lost, or its job was cancelled, is kept and can be fetched.
func TestOutputOfInterruptedAttempts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		end     func(t *testing.T, g *gridtest.Grid, a *gridtest.Agent, id offpeak.JobID)
		reason  offpeak.EndReason
		outputs bool
	}{
		{"drain", func(t *testing.T, g *gridtest.Grid, a *gridtest.Agent, _ offpeak.JobID) {
			if _, errs, exit := g.CLI("nodes", "drain", a.Name, "--stop"); exit != 0 {
				t.Errorf("drain: exit %d: %s", exit, errs)
			}
		}, offpeak.EndDrained, true},
		{"lost", func(_ *testing.T, _ *gridtest.Grid, a *gridtest.Agent, _ offpeak.JobID) { a.KillNode() }, offpeak.EndNodeLost, false},
		{"cancel", func(t *testing.T, g *gridtest.Grid, _ *gridtest.Agent, id offpeak.JobID) { cancel(t, g, id) }, offpeak.EndCancelled, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := gridtest.Start(t, bin)
			a := g.StartAgent("a", "")
			spec := g.Shell(`echo part >part; echo err >&2; echo out; sleep 60`)
			spec.Task.Outputs = []string{"part"}
			id := g.Submit(spec).ID
			waitLog(t, g, id, "out\n")
			c.end(t, g, a, id)
			var ended offpeak.Lease
			gridtest.Eventually(t, 30*time.Second, "the attempt to end", func() error {
				list, err := g.Client.Attempts(context.Background(), id)
				if err != nil || len(list.Items) == 0 || !list.Items[0].State.Terminal() {
					return fmt.Errorf("attempts are %+v, %v", list.Items, err)
				}
				ended = list.Items[0]
				return nil
			})
			if ended.Reason != c.reason {
				t.Errorf("ended as %s: %s", ended.Reason, ended.Detail)
			}
			if out, errs := g.Log(id, 1, "stdout"), g.Log(id, 1, "stderr"); out != "out\n" || errs != "err\n" {
				t.Errorf("logs are %q and %q", out, errs)
			}
			if !c.outputs {
				return
			}
			to := t.TempDir()
			if _, errs, exit := g.CLI("outputs", string(id), "--out", to); exit != 0 {
				t.Errorf("fetch the partial output: exit %d: %s", exit, errs)
			}
			if got, err := os.ReadFile(filepath.Join(to, "part")); err != nil || string(got) != "part\n" {
				t.Errorf("the partial output is %q, %v", got, err)
			}
		})
	}
}

// Back-pressure: a flood of output and a line without end, while the hub can't
// be reached, hold up neither the job nor the heartbeats; the log is capped, with
// a mark that counts what was left out.
func TestFloodOverCutLink(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin, "--timeout", "20s")
	link := g.Link()
	a := g.StartAgent("far", link.URL())
	const lines, line, most = 300_000_000, 50_000_000, 8 * offpeak.MiB
	spec := g.Shell(fmt.Sprintf(`%s echo begin; until [ -e "$GO" ]; do sleep 0.02; done
		yes 'a line of a flood' | head -c %d; head -c %d /dev/zero | tr '\0' x; echo; echo finished; say end`, gridtest.Say, lines, line))
	spec.Task.Env["GO"], spec.Limits.Log = filepath.Join(g.Dir, "go"), most
	id := g.Submit(spec).ID
	waitLog(t, g, id, "begin\n")
	link.Cut()
	cut := time.Now()
	if err := os.WriteFile(spec.Task.Env["GO"], nil, 0o600); err != nil {
		t.Fatal(err)
	}
	gridtest.Eventually(t, 18*time.Second, "the job to end though its hub is away", func() error {
		if facts := g.Facts(); len(facts) != 2 || time.Since(cut) < 4*time.Second {
			return fmt.Errorf("after %s facts are %v", time.Since(cut), facts)
		}
		return nil
	})
	var spooled int64
	_ = filepath.WalkDir(a.Dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(d.Name(), ".log") {
			if info, err := d.Info(); err == nil {
				spooled += info.Size()
			}
		}
		return nil
	})
	if spooled > int64(most)+1000 || spooled == 0 {
		t.Errorf("the node kept %d bytes of log, at most %s are allowed", spooled, most)
	}
	link.Mend()
	job := g.WaitState(id, 60*time.Second, offpeak.JobSucceeded, offpeak.JobFailed)
	if job.State != offpeak.JobSucceeded || job.Attempt != 1 {
		t.Errorf("job is %s after attempt %d: %s", job.State, job.Attempt, job.Detail)
	}
	log := g.Log(id, 0, "stdout")
	head, rest, capped := strings.Cut(log, "\n[offpeak: log capped at ")
	of, tail, _ := strings.Cut(rest, " bytes left out here]\n")
	var left int64
	if _, err := fmt.Sscan(of[strings.LastIndex(of, " ")+1:], &left); !capped || err != nil {
		t.Fatalf("the log of %d bytes has no mark: %v", len(log), err)
	}
	if !strings.HasPrefix(head, "begin\na line of a flood\n") || !strings.HasSuffix(tail, "xxx\nfinished\n") {
		t.Errorf("the log begins %.40q and ends %q", head, tail[max(0, len(tail)-20):])
	}
	if said := int64(len("begin\n\nfinished\n")) + lines + line; int64(len(head))+left+int64(len(tail)) != said {
		t.Errorf("%d bytes, %d left out, %d bytes: the job wrote %d", len(head), left, len(tail), said)
	}
	if n := onlineEvents(t, g, a.Node); n.offline != 0 || node(t, g, a.Node).Liveness != offpeak.NodeOnline {
		t.Errorf("the node was offline %d times", n.offline)
	}
}

// A job that turns on its agent: it puts links to the machine's files and to the
// node's key, other names of them and pipes where the agent reads. Nothing of
// the machine is stored, the job's end is clean and the node works on.
func TestLinksOutAreNotFollowed(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	a := g.StartAgent("a", "", "--cpu", "8", "--warm", "4")
	secret := filepath.Join(g.Dir, "secret")
	const word = "a-secret-of-the-machine"
	if err := os.WriteFile(secret, []byte(word+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(a.Dir, "node.key"))
	if err != nil {
		t.Fatal(err)
	}
	passwd, err := os.ReadFile("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	jobs := map[string]offpeak.JobID{}
	for name, script := range map[string]string{
		"logs":              `cd ..; for l in stdout.log stderr.log; do rm -f $l; ln -s "$SECRET" $l; done`,
		"logs, hard":        `cd ..; for l in stdout.log stderr.log; do rm -f $l; ln "$SECRET" $l; done`,
		"logs, pipes":       `cd ..; for l in stdout.log stderr.log; do rm -f $l; mkfifo $l; done`,
		"outputs":           `rm -rf outputs; ln -s /etc outputs; ln -s /etc/passwd out-passwd; ln -s ../../../node.key out-key; ln "$SECRET" out-hard; mkfifo out-pipe; ln -s ../../.. out-above; echo fine >out-fine`,
		"output folder":     `ln -s "$SECRET" outputs/a; ln "$SECRET" outputs/b; mkfifo outputs/c; ln -s /etc/passwd outputs/d; ln -s ../../../../node.key outputs/e; echo fine >outputs/f`,
		"checkpoint folder": `rm -rf checkpoints; ln -s ../../.. checkpoints; sleep 0.4`,
		"checkpoints":       `cd checkpoints; ln -s "$SECRET" 1; ln "$SECRET" 2; mkfifo 3; mkdir 4; ln -s /etc/passwd 4/in; sleep 0.4`,
		"job folder":        `cd ..; mv work away; ln -s /etc work; sleep 0.4`,
		"notice":            `rm -rf .offpeak; ln -s /etc .offpeak; sleep 0.4`,
	} {
		spec := g.Shell("echo said; " + script)
		spec.Task.Env["SECRET"] = secret
		spec.Task.Checkpoint.Every = offpeak.Duration(100 * time.Millisecond)
		if name == "outputs" {
			spec.Task.Outputs = []string{"out-*"}
		}
		jobs[name] = g.Submit(spec).ID
	}
	for name, id := range jobs {
		job := g.WaitState(id, 60*time.Second, offpeak.JobSucceeded, offpeak.JobFailed)
		switch end, known := offpeak.EndOf(job.Reason); {
		case !known || job.Attempt != 1 || end.Fault != offpeak.FaultNone && end.Fault != offpeak.FaultUser:
			t.Errorf("%s: ended as %s after attempt %d: %s", name, job.Reason, job.Attempt, job.Detail)
		case strings.HasPrefix(name, "output") && (job.State != offpeak.JobSucceeded || !strings.Contains(job.Detail, "left out")):
			t.Errorf("%s: %s %s: %s", name, job.State, job.Reason, job.Detail)
		}
		if log := g.Log(id, 0, "stdout") + g.Log(id, 0, "stderr"); strings.Contains(log, word) {
			t.Errorf("%s: the log shows the secret: %q", name, log)
		}
	}
	to := t.TempDir()
	for _, name := range []string{"outputs", "output folder"} {
		if _, errs, exit := g.CLI("outputs", string(jobs[name]), "--out", filepath.Join(to, name)); exit != 0 {
			t.Errorf("%s: fetch: exit %d: %s", name, exit, errs)
		}
	}
	_ = filepath.WalkDir(to, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Name() != "out-fine" && d.Name() != "f" {
			t.Errorf("%s was stored", path)
		}
		return err
	})
	if err := filepath.WalkDir(g.HubDir(), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		for what, text := range map[string][]byte{"the secret": []byte(word), "the key": bytes.TrimSpace(key), "the list of users": passwd} {
			if bytes.Contains(data, text) {
				t.Errorf("%s is in the hub's %s", what, path)
			}
		}
		return err
	}); err != nil {
		t.Errorf("read what the hub stored: %v", err)
	}
	for path, want := range map[string][]byte{secret: []byte(word + "\n"), "/etc/passwd": passwd, filepath.Join(a.Dir, "node.key"): key} {
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s was changed, %v", path, err)
		}
	}
	g.WaitState(g.Submit(g.Shell("true")).ID, 20*time.Second, offpeak.JobSucceeded)
	waitIdle(t, g, a.Node)
}
