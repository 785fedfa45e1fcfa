package recorded_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"offpeak"
	"offpeak/internal/pgtest"
	"offpeak/placement"
	"offpeak/placement/replay"
	"offpeak/store"
	"offpeak/store/postgres"
	"offpeak/store/recorded"
	"offpeak/store/sqlite"
	"offpeak/store/storetest"
)

var pg pgtest.Shared

func TestMain(m *testing.M) { os.Exit(pg.Around(m).Run()) }

func file(t *testing.T, clock *storetest.Clock) store.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), sqlite.Options{Now: clock.Now, Rand: rand.New(rand.NewPCG(1, 2))})
	return closed(t, s, err)
}

func server(t *testing.T, clock *storetest.Clock) store.Store {
	t.Helper()
	s, err := postgres.Open(t.Context(), pg.Database(t), postgres.Options{Now: clock.Now, Rand: rand.New(rand.NewPCG(1, 2))})
	return closed(t, s, err)
}

func closed[S interface {
	store.Store
	Close() error
}](t *testing.T, s S, err error) store.Store {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// life is a grid that a test lets things happen to.
type life struct {
	*testing.T
	store.Store
	clock *storetest.Clock
	n     int
	seq   int64
}

const lab = offpeak.AccountID("acct_lab")

func (l *life) met(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

func (l *life) op() store.Op {
	l.n++
	return store.Op{ID: offpeak.OpID(fmt.Sprintf("op_%04d", l.n)), Actor: offpeak.Actor{Account: lab, Member: "member_a"}, Digest: [32]byte{1}}
}

func (l *life) token(id offpeak.TokenID, role offpeak.Role) offpeak.Token {
	sum := sha256.Sum256([]byte(id))
	return offpeak.Token{ID: id, Account: lab, Role: role, Name: string(id), SecretHash: sum[:], UsesLeft: -1}
}

func begin(t *testing.T, s store.Store, clock *storetest.Clock) *life {
	l := &life{T: t, Store: s, clock: clock}
	_, err := s.Bootstrap(t.Context(), offpeak.Account{ID: lab, Name: "lab"}, offpeak.Member{ID: "member_a", Name: "a", Role: offpeak.RoleAdmin}, l.token("tok_a", offpeak.RoleAdmin))
	l.met(err)
	return l
}

func (l *life) enrol(id offpeak.NodeID, gpus int) {
	l.Helper()
	ctx := l.Context()
	inv := offpeak.Inventory{Hostname: "h", OS: "linux", Arch: "amd64", CPU: 4000, Memory: 8 * offpeak.GiB, Disk: 100 * offpeak.GiB, Drivers: []string{"process"}, Shared: []string{"process"}, Version: "test"}
	for i := range gpus {
		inv.Devices = append(inv.Devices, offpeak.Device{ID: offpeak.DeviceID(fmt.Sprintf("%s-GPU-%d", id, i)), Vendor: "nvidia", Model: "RTX", VRAM: 24 * offpeak.GiB})
	}
	join, err := l.CreateToken(ctx, l.op(), l.token(offpeak.TokenID("join_"+id), offpeak.RoleJoin))
	l.met(err)
	_, err = l.Enrol(ctx, join.ID, store.NewNode{ID: id, Name: string(id), Key: []byte(id), Inventory: inv}, offpeak.Actor{})
	l.met(err)
	_, err = l.OpenSession(ctx, store.NewSession{Node: id, Incarnation: "inc-1", Token: l.token(offpeak.TokenID("sess_"+id), offpeak.RoleNode)})
	l.met(err)
	l.beat(id)
}

func (l *life) beat(id offpeak.NodeID, held ...store.Held) {
	l.Helper()
	l.seq++
	out, err := l.Beat(l.Context(), []store.Beat{{Node: id, Incarnation: "inc-1", Seq: l.seq, Availability: offpeak.NodeAvailable, Held: held, Grant: 12 * time.Hour}})
	if err != nil || out[0].Err != nil {
		l.Fatalf("Beat = %+v, %v", out, err)
	}
}

func spec(gpus int) offpeak.Spec {
	s := offpeak.Spec{
		Task:         offpeak.Task{Driver: "process", Command: []string{"true"}},
		Requirements: offpeak.Requirements{CPU: 1000, Memory: offpeak.GiB, Disk: offpeak.GiB},
	}
	for range gpus {
		s.Requirements.GPUs = append(s.Requirements.GPUs, offpeak.GPURequest{VRAM: 8 * offpeak.GiB})
	}
	return s.WithDefaults()
}

func (l *life) submit(id offpeak.JobID, gpus int, after ...offpeak.After) {
	l.Helper()
	_, err := l.Submit(l.Context(), l.op(), store.NewJob{ID: id, Account: lab, Spec: spec(gpus), After: after})
	l.met(err)
}

func (l *life) array(n int, members string, atOnce int, after ...offpeak.After) offpeak.GroupID {
	l.Helper()
	id := offpeak.NewGroupID(fmt.Sprintf("group_%022d0000", n))
	x, err := offpeak.ParseIndexes(members)
	l.met(err)
	_, err = l.SubmitGroup(l.Context(), l.op(), store.NewGroup{ID: id, Account: lab, Spec: spec(0), Array: offpeak.Array{Indexes: x, AtOnce: atOnce}, After: after})
	l.met(err)
	return id
}

// runs has a job run for a while on a node.
func (l *life) runs(job offpeak.JobID, node offpeak.NodeID, d time.Duration, devices ...offpeak.DeviceID) {
	l.Helper()
	sum := sha256.Sum256([]byte(job))
	out, err := l.Claim(l.Context(), []store.Claim{{
		Job: job, Attempt: 1, Node: node, Lease: offpeak.LeaseID("lease_" + hex.EncodeToString(sum[:16])), OfferFor: 15 * time.Second,
		Resources: offpeak.Resources{CPU: 1000, Memory: offpeak.GiB, Disk: offpeak.GiB, Devices: devices},
	}})
	if err != nil || out[0].Err != nil {
		l.Fatalf("Claim = %+v, %v", out, err)
	}
	report := func(kind store.ReportKind, more func(*store.Report)) {
		l.seq++
		r := store.Report{Node: node, Lease: out[0].Lease.ID, Attempt: 1, Incarnation: "inc-1", Seq: l.seq, Kind: kind}
		if more != nil {
			more(&r)
		}
		_, err := l.Report(l.Context(), r)
		l.met(err)
	}
	report(store.ReportAccepted, nil)
	report(store.ReportRunning, nil)
	l.clock.Advance(d)
	report(store.ReportEnded, func(r *store.Report) {
		zero := 0
		r.Reason, r.Started, r.ExitCode, r.Ran = offpeak.EndCompleted, true, &zero, offpeak.Millis(d.Milliseconds())
	})
}

// week is a little of everything.
func week(l *life) {
	ctx := l.Context()
	l.enrol("node_a", 1)
	l.enrol("node_b", 0)
	_, err := l.CreateAccount(ctx, l.op(), offpeak.Account{ID: "acct_other", Name: "other", Quota: offpeak.Quota{Running: 2, Storage: offpeak.GiB}})
	l.met(err)
	l.clock.Advance(time.Minute)
	l.submit("job_first", 1)
	l.submit("job_then", 0, offpeak.After{Job: "job_first"})
	l.submit("job_never", 4)
	many := l.array(1, "0-9", 3)
	later := l.array(2, "5-6", 0, offpeak.After{Job: "job_then"})
	l.clock.Advance(time.Minute)
	l.runs("job_first", "node_a", time.Hour, "node_a-GPU-0")
	l.runs(many.Member(0), "node_b", 30*time.Minute)
	_, err = l.SetQuota(ctx, l.op(), lab, offpeak.Quota{GPUs: 1})
	l.met(err)
	l.runs("job_then", "node_b", 10*time.Minute)
	for left := true; left; {
		var more []store.UnfinishedGroup
		more, err = l.UnfinishedGroups(ctx, 10)
		l.met(err)
		for _, g := range more {
			_, err = l.FillGroup(ctx, g.ID, 100)
			l.met(err)
		}
		left = len(more) > 0
	}
	l.runs(later.Member(5), "node_b", time.Minute)
	_, err = l.Cancel(ctx, l.op(), "", later.Member(6), "")
	l.met(err)
	_, err = l.SetWeights(ctx, l.op(), 0, []byte(`{"policy":"balanced","vram":9,"cpu":1}`))
	l.met(err)
	l.clock.Advance(2 * time.Hour)
	_, err = l.RemoveNode(ctx, l.op(), "", "node_b")
	l.met(err)
}

func read(t *testing.T, s store.Store) *replay.Traffic {
	t.Helper()
	traffic, err := recorded.Read(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	return traffic
}

func report(t *testing.T, traffic *replay.Traffic) replay.Result {
	t.Helper()
	r, err := replay.Run(traffic, replay.Set{Tuning: placement.DefaultTuning()}, replay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// What came to a grid is read alike from both engines, is the same through a file, and
// makes the same report.
func TestBothEngines(t *testing.T) {
	var first *replay.Traffic
	for name, open := range map[string]func(*testing.T, *storetest.Clock) store.Store{"file": file, "server": server} {
		clock := storetest.NewClock()
		s := open(t, clock)
		week(begin(t, s, clock))
		traffic := read(t, s)
		if first == nil {
			first = traffic
		} else if diff := cmp.Diff(first, traffic); diff != "" {
			t.Errorf("%s differs:\n%s", name, diff)
		}
		var text bytes.Buffer
		if err := traffic.Write(&text); err != nil {
			t.Fatal(err)
		}
		back, err := replay.Read(&text)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(traffic, back); diff != "" {
			t.Errorf("%s: written and read:\n%s", name, diff)
		}
		if a, b := report(t, traffic), report(t, back); !cmp.Equal(a, b) || a.Jobs != 15 || a.Finished < 13 || a.Cancelled > 1 || a.Unserved != 1 {
			t.Errorf("%s: %+v\nthrough a file: %+v", name, a, b)
		}
	}
	jobs, quotas := map[offpeak.JobID]time.Duration{}, 0
	for _, s := range first.Steps {
		if s.Submit != nil {
			jobs[s.Submit.ID] = s.At.Sub(first.From)
			if g := s.Submit.Group; (s.Submit.AtOnce == 3) != (g == offpeak.NewGroupID(fmt.Sprintf("group_%022d0000", 1))) {
				t.Errorf("limit of a member: %+v", s.Submit)
			}
		}
		if s.Quota != nil {
			quotas++
		}
	}
	// What waits for others begins to wait for a node when these have ended.
	if jobs["job_first"] != time.Minute || jobs["job_then"] != 62*time.Minute || len(jobs) != 15 || quotas != 2 {
		t.Errorf("%d quotas, jobs %v", quotas, jobs)
	}
	if first.InForce == nil || first.InForce.VRAM != 9 || first.InForce.Version != 1 {
		t.Errorf("in force: %+v", first.InForce)
	}
}

// What is older than the oldest event comes from the tables: nodes, jobs that wait or
// run, the limit of their array, quotas.
func TestWhatEventsNoLongerTell(t *testing.T) {
	for name, open := range map[string]func(*testing.T, *storetest.Clock) store.Store{"file": file, "server": server} {
		clock := storetest.NewClock()
		s := open(t, clock)
		l := begin(t, s, clock)
		l.enrol("node_a", 1)
		_, err := l.SetQuota(t.Context(), l.op(), lab, offpeak.Quota{Running: 7})
		l.met(err)
		many := l.array(1, "0-4", 2)
		l.submit("job_old", 1)
		clock.Advance(time.Hour)
		_, err = s.Prune(t.Context(), store.Retention{Events: time.Minute}, 10_000)
		l.met(err)
		if n, err := s.Pruned(t.Context()); err != nil || n == 0 {
			t.Fatalf("%s: pruned up to %d, %v", name, n, err)
		}
		l.submit("job_new", 0)
		clock.Advance(time.Minute)
		l.runs(many.Member(0), "node_a", time.Minute)
		traffic := read(t, s)
		jobs, quota, nodes := 0, replay.Quota{}, 0
		for _, s := range traffic.Steps {
			switch {
			case s.Submit != nil:
				if jobs++; (s.Submit.Group == many) != (s.Submit.AtOnce == 2) || s.Submit.Group == "" && s.Submit.ID != "job_old" && s.Submit.ID != "job_new" {
					t.Errorf("%s: %+v", name, s.Submit)
				}
			case s.Quota != nil:
				quota = *s.Quota
			case s.Join != nil:
				nodes++
			}
		}
		if jobs != 7 || quota != (replay.Quota{Account: lab, Running: 7}) || nodes != 1 {
			t.Errorf("%s: %d jobs, %d nodes, quota %+v, notes %q", name, jobs, nodes, quota, traffic.Notes)
		}
		if len(traffic.Notes) == 0 || !strings.HasPrefix(traffic.Notes[0], "6 jobs were submitted before the record begins") {
			t.Errorf("%s: notes %q", name, traffic.Notes)
		}
	}
}

// Nothing that was recorded is an error that says so, and so is a reader who stops.
func TestNothingToRead(t *testing.T) {
	s := file(t, storetest.NewClock())
	if _, err := recorded.Read(t.Context(), s, nil); err == nil || !strings.Contains(err.Error(), "there are no events") {
		t.Errorf("%v", err)
	}
	clock := storetest.NewClock()
	s = file(t, clock)
	week(begin(t, s, clock))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := recorded.Read(ctx, s, nil); err == nil {
		t.Error("read though it was told to stop")
	}
	read, most := int64(0), int64(0)
	if _, err := recorded.Read(t.Context(), s, func(r, m int64) { read, most = r, m }); err != nil || read == 0 || read != most {
		t.Errorf("told %d of %d, %v", read, most, err)
	}
}

// pruning deletes events under the hands of whoever reads them.
type pruning struct {
	store.Store
	clock *storetest.Clock
	calls int
}

func (p *pruning) Events(ctx context.Context, account offpeak.AccountID, after int64, limit int) ([]offpeak.Event, error) {
	if p.calls++; p.calls == 1 {
		p.clock.Advance(48 * time.Hour)
		if _, err := p.Prune(ctx, store.Retention{Events: 24 * time.Hour}, 10_000); err != nil {
			return nil, err
		}
	}
	return p.Store.Events(ctx, account, after, limit)
}

func TestPrunedWhileRead(t *testing.T) {
	clock := storetest.NewClock()
	s := file(t, clock)
	l := begin(t, s, clock)
	week(l)
	_, err := recorded.Read(t.Context(), &pruning{Store: s, clock: clock}, nil)
	if err == nil || !strings.Contains(err.Error(), "there are no events") {
		t.Errorf("all of them gone: %v", err)
	}
}
