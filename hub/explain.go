package hub

import (
	"context"
	"fmt"
	"strings"
	"time"

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
	if out.Placed, err = h.placed(ctx, &j); err != nil {
		return wire.Explanation{}, err
	}
	if j.State != offpeak.JobQueued {
		if out.Summary = summary(&j); j.State == offpeak.JobBlocked {
			out.After = j.After
		}
		return out, nil
	}
	out.NotBefore = j.NotBefore
	ask := placement.Job{
		ID: j.ID, Account: j.Account, Attempt: j.Attempt + 1,
		Driver: j.Spec.Task.Driver,
	}
	asks := h.trade.Effective(j.Spec.Requirements)
	ask.Requirements = &asks
	h.mu.Lock()
	ask.Policy, out.PolicyFrom = chosenBy(j.Spec.Policy, h.queue.Policy())
	out.Policy = string(ask.Policy)
	var lacks error
	turn := 0 // the limit of its array, where that keeps it
	if it := h.queue.Item(j.ID); it != nil {
		in := it.Job()
		ask.Avoid, ask.Fences, ask.Now, lacks = in.Avoid, in.Fences, h.env.Now(), it.Lacks()
		if !it.HasTurn() {
			turn = in.AtOnce
		}
	}
	gang := h.gangStands(&j)
	fleet := h.fleet.Snapshot()
	h.mu.Unlock()
	seen := newSurvey(ask, fleet)
	e, nodes := &seen.Explanation, fleet.Len()
	h.standing(&j, e.Idle, &out)
	bid := ""
	if e.Fits == 0 && e.Could > 0 && gang == nil {
		bid = h.wouldTake(&j, fleet)
	}
	need, err := h.gangNeeds(ctx, &j, gang)
	if err != nil {
		return wire.Explanation{}, fmt.Errorf("explain job %s: %w", job, err)
	}
	out.Gang = gang
	own, err := h.purse(ctx, j.Account, &j.Spec, j.ID, need)
	if err != nil {
		return wire.Explanation{}, fmt.Errorf("explain job %s: %w", job, err)
	}
	lack := own.withheld(seen, lacks, turn)
	if err := h.tell(ctx, seen, &j.Spec, account, own, lack, &out); err != nil {
		return wire.Explanation{}, fmt.Errorf("explain job %s: %w", job, err)
	}
	pauses := j.NotBefore != nil && j.NotBefore.After(h.env.Now())
	var parts []string
	for i := range lack {
		out.Withheld = append(out.Withheld, lack[i].Withheld)
		parts = append(parts, lack[i].Sentence)
	}
	if len(parts) == 0 || e.Fits < need || pauses {
		s := h.waiting(&j, e, nodes, out.Ahead)
		if gang != nil && !pauses && nodes > 0 {
			s = gangWaits(gang, e, nodes, out.Ahead)
		}
		if !pauses && len(parts) == 0 {
			s += bid
			if e.Could > 0 {
				s += order(&out)
			}
		}
		parts = append(parts, s)
	}
	out.Summary = strings.Join(parts, " ")
	return out, nil
}

// waiting says in one sentence why a queued job waits, with the next step.
func (h *Hub) waiting(j *offpeak.Job, e *placement.Explanation, nodes, ahead int) string {
	switch {
	case j.NotBefore != nil && j.NotBefore.After(h.env.Now()):
		return fmt.Sprintf("It pauses until %s UTC, since an attempt ended so: %s It is tried again by itself then.", j.NotBefore.UTC().Format(time.TimeOnly), sentence(j))
	case nodes == 0:
		return "No node has joined yet: make a join token with `offpeak token join` and run `offpeak agent join TOKEN`."
	case e.Fits > 0:
		return fmt.Sprintf("%s it now and %s ahead of it: it is matched in a moment.", fit(e.Fits), count(ahead, "job"))
	case e.Could > 0:
		s := fmt.Sprintf("No node is free for it now; %s could run it later.", count(e.Could, "node"))
		if ahead > 0 {
			s += fmt.Sprintf(" %s ahead of it.", count(ahead, "job"))
		}
		return s + remedies(e, false)
	default:
		none := fmt.Sprintf("None of %s can", count(nodes, "node"))
		if nodes == 1 {
			none = "The only node can't"
		}
		return none + " run it as it is." + remedies(e, true)
	}
}

// explainCauses is the most causes that a summary names.
const explainCauses = 3

// remedies names the causes that most nodes share, of the lasting kind or not,
// each with what lifts it.
func remedies(e *placement.Explanation, lasting bool) (s string) {
	named := 0
	for _, c := range e.Causes {
		if c.Nodes > 0 && c.Nearest.Lasting() == lasting && named < explainCauses {
			named++
			s += fmt.Sprintf(" On %s %s. %s", count(c.Nodes, "node"), ofAll(c.Nearest, c.Nodes), remedy(c.Nearest))
		}
	}
	for _, c := range e.Causes {
		if c.Nodes == 0 && named < explainCauses {
			named++
			s += fmt.Sprintf(" Also, on %s %s. %s", count(c.All, "node"), ofAll(c.Nearest, c.All), remedy(c.Nearest))
		}
	}
	return s
}

// ofAll says what nodes lack, where one of them comes nearest.
func ofAll(r offpeak.Reason, nodes int) string {
	if nodes < 2 || r.Have == "" {
		return r.String()
	}
	has := "the nearest has"
	switch r.Code {
	case offpeak.FitCPU, offpeak.FitMemory, offpeak.FitDisk, offpeak.FitBusyCPU, offpeak.FitBusyMemory, offpeak.FitBusyDisk:
		has = "they have at most"
	case offpeak.FitPrice:
		has = "they ask at least"
	}
	return fmt.Sprintf("%s: wants %s, %s %s", r.Code, r.Want, has, r.Have)
}

// remedy says what a person can do about a reason.
func remedy(r offpeak.Reason) string {
	switch r.Code {
	case offpeak.FitDriver:
		return "Submit it for another --driver, or add a node that has this one."
	case offpeak.FitOS:
		return "Submit it without --os, or add a node with that system."
	case offpeak.FitArch:
		return "Submit it without --arch, or add a node of that architecture."
	case offpeak.FitNode:
		return "Submit it with another --node or --not-node."
	case offpeak.FitOwner:
		return "Submit it without that --not-account, or add a node of your own."
	case offpeak.FitAccount:
		return "Add a node of your own account, or ask the node's owner to change the agent's --allow-account or --deny-account."
	case offpeak.FitLabel:
		return "Submit it with another --where, or start a node's agent with that --label or --region."
	case offpeak.FitTrust:
		return "Submit it with --trust any, or add a node of your own."
	case offpeak.FitStranger:
		return "Build it for --driver wasm, add a node of your own account, or ask the node's owner to start the agent with --accept any."
	case offpeak.FitEgress:
		return "Submit it without --egress, bringing what it needs as input, or ask the node's owner to start the agent with --allow-egress for these hosts."
	case offpeak.FitPrice:
		return "Submit it with a higher --max-price."
	case offpeak.FitVRAM:
		return "Submit it with less --vram, or add a node with such GPUs."
	case offpeak.FitGPU:
		return "Submit it with other --gpus, --gpu-vendor or --gpu-model, or add a node with such GPUs."
	case offpeak.FitUnified:
		return "Submit it with --gpu-kind any or unified to take GPUs that share the main memory, without it not to, or add a node with such GPUs."
	case offpeak.FitCompute:
		return "Submit it with a lower --compute-capability, or add a node with newer GPUs."
	case offpeak.FitGPUDriver:
		return "Submit it with an older --gpu-driver, or update the driver on a node."
	case offpeak.FitCPU:
		return "Submit it with less --cpu, or add a larger node."
	case offpeak.FitMemory:
		return "Submit it with less --memory, or add a larger node."
	case offpeak.FitDisk:
		return "Submit it with less --disk, or add a larger node."
	case offpeak.FitOffline:
		return "See that the machine runs and its agent too (`offpeak agent`)."
	case offpeak.FitDraining, offpeak.FitClosed:
		return "`offpeak nodes open NODE` lets it take work again."
	case offpeak.FitInUse:
		return "It takes work again when its owner lets it: `offpeak agent status` there says what for, `offpeak agent resume` ends a pause."
	case offpeak.FitWindow:
		return "Its owner's hours are closed: it takes work again by itself when they open."
	case offpeak.FitQuarantined:
		return "It takes all work again when a job has run there: `offpeak nodes show NODE` says what its agent warns of."
	case offpeak.FitNoAsk:
		return "Its owner's ask is not in force now: `offpeak ask show NODE` says when it is."
	case offpeak.FitKept:
		return "A job that bid more takes it next."
	case offpeak.FitBusyGPU, offpeak.FitBusyCPU, offpeak.FitBusyMemory, offpeak.FitBusyDisk:
		return "Other jobs hold it: wait for one to end, or submit it asking for less."
	case offpeak.FitFence:
		return "An attempt of it failed there, or was declined, a moment ago: it may go there again by itself when the fence ends."
	case offpeak.FitQuota:
		return "It goes on when a job of its account ends, or when an admin raises the quota (`offpeak account quota --running`)."
	case offpeak.FitBudget:
		return "Submit it again with a larger --budget."
	case offpeak.FitBalance:
		return "It goes on by itself when money comes in: ask an admin for a deposit (`offpeak deposit`)."
	}
	return ""
}

// sentence says why the last attempt of a job ended.
func sentence(j *offpeak.Job) string {
	if end, known := offpeak.EndOf(j.Reason); known {
		return end.Sentence
	}
	return string(j.Reason) + "."
}

func fit(nodes int) string {
	if nodes == 1 {
		return "1 node fits"
	}
	return count(nodes, "node") + " fit"
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
		return awaits(j)
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
	if j.Reason == offpeak.EndDependencyFailed && j.Detail != "" {
		s = "It waited for another job to succeed: " + j.Detail + "."
		if strings.HasPrefix(j.Detail, "array ") {
			s = "It waited for an array to succeed: " + j.Detail + "."
		}
	}
	if j.State == offpeak.JobFailed && end.Next != "" {
		s += " " + end.Next
	}
	return s
}
