package hub

import (
	"context"
	"fmt"

	"offpeak"
	"offpeak/placement"
	"offpeak/wire"
)

// explainNodes is the most nodes that an explanation names.
const explainNodes = 100

// Explain says why a job waits or where it runs.
func (h *Hub) Explain(ctx context.Context, account offpeak.AccountID, job offpeak.JobID) (wire.Explanation, error) {
	j, err := h.env.Store.Job(ctx, account, job)
	if err != nil {
		return wire.Explanation{}, fmt.Errorf("explain job %s: %w", job, err)
	}
	out := wire.Explanation{Job: j.ID, State: j.State}
	if j.State != offpeak.JobQueued {
		out.Summary = summary(&j)
		return out, nil
	}
	out.NotBefore = j.NotBefore
	ask := placement.Job{
		ID: j.ID, Account: j.Account, Attempt: j.Attempt + 1,
		Driver: j.Spec.Task.Driver, Requirements: &j.Spec.Requirements,
	}
	h.mu.Lock()
	quota := false
	if it := h.queue.items[j.ID]; it != nil {
		ask.Avoid = it.avoid
		out.Ahead = h.queue.ahead(it)
		quota = h.queue.isParked(it.class) && it.class.quota
	}
	nodes := h.fleet.Len()
	e := h.fleet.Explain(ask, explainNodes)
	h.mu.Unlock()
	if e.Asleep {
		out.Asleep = h.cfg.Weights.Baseline
	}
	for _, c := range e.Causes {
		out.Causes = append(out.Causes, wire.Cause{Code: c.Code, Nodes: c.Nodes, Example: c.Nearest})
	}
	for _, v := range e.Nodes {
		n := wire.NodeVerdict{Node: v.Node, Name: v.Name, Fits: v.Reason.OK(), Reason: v.Reason, Score: v.Score, Parts: v.Parts}
		if account != "" && v.Account != account {
			n.Name = "" // what other owners call their machines is theirs
		}
		out.Nodes = append(out.Nodes, n)
	}
	out.Summary = h.waiting(&j, &e, nodes, out.Ahead, quota)
	return out, nil
}

// waiting says in one sentence why a queued job waits, with the next step.
func (h *Hub) waiting(j *offpeak.Job, e *placement.Explanation, nodes, ahead int, quota bool) string {
	switch {
	case j.NotBefore != nil && j.NotBefore.After(h.env.Now()):
		return fmt.Sprintf("It pauses until %s after its last attempt ended (%s).", j.NotBefore.UTC().Format("15:04:05"), j.Reason)
	case quota:
		return "Its account has as many running jobs as its quota allows: it goes on when one ends."
	case nodes == 0:
		return "No node has joined yet: make a join token with `offpeak token join` and run `offpeak agent join TOKEN`."
	case e.Fits > 0:
		return fmt.Sprintf("%s fit it now and %s ahead of it: it is matched in a moment.", count(e.Fits, "node"), count(ahead, "job"))
	case e.Could > 0:
		s := fmt.Sprintf("No node is free for it now; %s could run it later (%s).", count(e.Could, "node"), nearest(e, false))
		if ahead > 0 {
			s += fmt.Sprintf(" %s ahead of it.", count(ahead, "job"))
		}
		return s
	default:
		none := fmt.Sprintf("None of %s can", count(nodes, "node"))
		if nodes == 1 {
			none = "The only node can't"
		}
		return fmt.Sprintf("%s ever run it as it is: %s. Change what it asks for, or add a node that has it.", none, nearest(e, true))
	}
}

// nearest names the cause that most nodes share, of the lasting kind or not.
func nearest(e *placement.Explanation, lasting bool) string {
	for _, c := range e.Causes {
		if c.Nearest.Lasting() == lasting {
			return fmt.Sprintf("%s, on %s", c.Nearest, count(c.Nodes, "node"))
		}
	}
	return "no node is near"
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// summary says where a job that is not queued stands.
func summary(j *offpeak.Job) string {
	switch j.State {
	case offpeak.JobBlocked:
		return "It waits for other jobs to end."
	case offpeak.JobLeased:
		return fmt.Sprintf("Attempt %d is being prepared on %s.", j.Attempt, j.Node)
	case offpeak.JobRunning:
		return fmt.Sprintf("Attempt %d runs on %s.", j.Attempt, j.Node)
	case offpeak.JobCancelling:
		return fmt.Sprintf("It was cancelled; %s has not confirmed yet. It ends when the node does, or when its lease expires.", j.Node)
	}
	end, known := offpeak.EndOf(j.Reason)
	if !known {
		return fmt.Sprintf("It is %s.", j.State)
	}
	s := end.Sentence
	if j.State == offpeak.JobFailed && end.Next != "" {
		s += " " + end.Next
	}
	return s
}
