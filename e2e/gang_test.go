package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"offpeak"
	"offpeak/internal/gridtest"
	"offpeak/wire"
)

func submitGang(t *testing.T, g *gridtest.Grid, n int, spec offpeak.Spec) offpeak.Group {
	t.Helper()
	out, err := g.Client.SubmitGroup(context.Background(), gridtest.NewOp(), wire.NewGroup{Spec: spec, Array: offpeak.Array{Gang: n}})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func waitGroup(t *testing.T, g *gridtest.Grid, id offpeak.GroupID, what string, holds func(offpeak.Group) bool) {
	t.Helper()
	gridtest.Eventually(t, 60*time.Second, what, func() error {
		group, err := g.Client.Group(context.Background(), id)
		if err == nil && !holds(group) {
			err = fmt.Errorf("it is %s: %v", group.State, group.Counts)
		}
		return err
	})
}

// A node of a gang is killed for good, and the hub while the others leave theirs: all
// members go on together, from their checkpoints, and each finds its rank.
func TestGangMovesTogether(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	g.Priced(paid)
	agents := map[offpeak.NodeID]*gridtest.Agent{}
	for _, name := range []string{"a", "b"} {
		a := g.StartAgent(name, "")
		agents[a.Node] = a
	}
	out, errs, exit := g.CLI("run", "--gang", "2", "--", "sh", "-c", "echo rank $OFFPEAK_GANG_RANK of $OFFPEAK_GANG_SIZE")
	if exit != 0 || !strings.Contains(out, "[0] rank 0 of 2") || !strings.Contains(out, "[1] rank 1 of 2") {
		t.Fatalf("a gang of two printed %q, %q, exit code %d", out, errs, exit)
	}
	id := submitGang(t, g, 2, g.Counter(60, 100*time.Millisecond)).ID
	nodes := map[offpeak.NodeID]bool{}
	for i := range 2 {
		nodes[g.WaitState(id.Member(i), 20*time.Second, offpeak.JobRunning).Node] = true
		waitCheckpoints(t, g, id.Member(i), 1)
	}
	if len(nodes) != 2 {
		t.Fatalf("the members run on %v", nodes)
	}
	g.StartAgent("c", "")
	agents[g.WaitState(id.Member(0), 20*time.Second, offpeak.JobRunning).Node].KillNode()
	gridtest.Eventually(t, 30*time.Second, "the other to be asked to go", func() error {
		for _, e := range g.Events() {
			if e.Reason == offpeak.EndGangBroken {
				return nil
			}
		}
		return fmt.Errorf("nobody was")
	})
	g.KillHub()
	g.StartHub()
	waitGroup(t, g, id, "the gang to succeed", func(w offpeak.Group) bool { return w.State == offpeak.JobSucceeded })
	last := map[offpeak.Attempt][]time.Time{}
	for i := range 2 {
		list, err := g.Client.Attempts(context.Background(), id.Member(i))
		if err != nil || len(list.Items) < 2 {
			t.Fatalf("attempts of member %d are %+v, %v", i, list.Items, err)
		}
		for _, l := range list.Items {
			last[l.Attempt] = append(last[l.Attempt], l.OfferedAt)
		}
		want := offpeak.EndNodeLost
		if i == 1 {
			want = offpeak.EndGangBroken
		}
		if got := list.Items[0].Reason; got != want {
			t.Errorf("attempt 1 of member %d ended as %s, want %s", i, got, want)
		}
	}
	for attempt, at := range last {
		if len(at) != 2 || !at[0].Equal(at[1]) {
			t.Errorf("attempts %d were offered at %v", attempt, at)
		}
	}
	g.Check()
}

// Two gangs of two on three nodes, and one of four: the two run, one after the other,
// and explain says what the third lacks.
func TestGangsTakeTurns(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	for _, name := range []string{"a", "b", "c"} {
		g.StartAgent(name, "", "--cpu", "1", "--warm", "1")
	}
	wide := submitGang(t, g, 4, g.Shell(gridtest.Say+"say end")).ID
	var ids []offpeak.GroupID
	for range 4 {
		ids = append(ids, submitGang(t, g, 2, g.Shell(gridtest.Say+"sleep 0.5; say end")).ID)
	}
	for _, id := range ids {
		waitGroup(t, g, id, "a gang of two to succeed", func(w offpeak.Group) bool { return w.State == offpeak.JobSucceeded })
	}
	out, _, _ := g.CLI("explain", string(wide)+"/3")
	if !strings.Contains(out, "Its gang needs 4 nodes at once, one for each member that has not ended: 3 fit now, and of 3 nodes only 3 could ever run one as it is. Submit it with a smaller --gang, or add nodes.") {
		t.Errorf("explain says %q", out)
	}
	g.Check()
	g.StartAgent("d", "", "--cpu", "1", "--warm", "1")
	waitGroup(t, g, wide, "the gang of four to succeed", func(w offpeak.Group) bool { return w.State == offpeak.JobSucceeded })
}
