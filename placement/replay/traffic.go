// Package replay runs recorded traffic through placement once more, in virtual
// time: the same jobs, nodes, joins and losses under other weights.
//
// It owns the form of recorded traffic, the simulation, what is measured of it,
// and the search for better weights. It decides nothing about placement: nodes
// are chosen by placement.Fleet, and jobs wait in a Queue, which is the order of
// matching. It must not know where traffic comes from or where answers go; time
// is virtual, chance is seeded by what is placed, so the same traffic and the same
// weights give the same answer. Nothing here is safe for concurrent use, but any
// number of runs may share one Traffic, which none of them changes.
//
// It is tested on small worlds whose outcome is known and on made-up traffic
// against bounds that hold for any order.
package replay

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"offpeak"
	"offpeak/placement"
)

// Format is the version of the file format. Version 1 knew no quotas and no arrays.
const Format = 2

// Traffic is what came to a grid, whatever was placed where.
type Traffic struct {
	// From and Until bound the time that was recorded.
	From, Until time.Time
	// Notes say what the record lacks and what was assumed instead, for people.
	Notes []string
	// InForce is what was weighed at the end, nil where nobody knows.
	InForce *placement.Tuning
	// Steps stand in the order of their time.
	Steps []Step
}

// Step is one thing that happened: exactly one of its fields but At is set.
type Step struct {
	At time.Time `json:"at"`
	// Join adds a node, or replaces all that is known of it.
	Join *Node `json:"join,omitempty"`
	// Change changes a node.
	Change *Change `json:"change,omitempty"`
	// Leave takes a node out of the grid.
	Leave offpeak.NodeID `json:"leave,omitempty"`
	// Submit queues a job.
	Submit *Job `json:"submit,omitempty"`
	// Cancel ends a job, wherever it is.
	Cancel offpeak.JobID `json:"cancel,omitempty"`
	// Quota bounds what an account has from now on.
	Quota *Quota `json:"quota,omitempty"`
}

// Quota is what an account may have at once; 0 is no bound.
type Quota struct {
	Account offpeak.AccountID `json:"account"`
	Queued  int               `json:"queued,omitempty"`
	Running int               `json:"running,omitempty"`
	GPUs    int               `json:"gpus,omitempty"`
}

// Node is what placement knows of a node.
type Node struct {
	ID           offpeak.NodeID       `json:"id"`
	Account      offpeak.AccountID    `json:"account"`
	Name         string               `json:"name,omitempty"`
	Inventory    offpeak.Inventory    `json:"inventory"`
	Liveness     offpeak.Liveness     `json:"liveness"`
	Intent       offpeak.Intent       `json:"intent"`
	Availability offpeak.Availability `json:"availability"`
	// Ask is nil where nothing is asked, so that nobody is offered the node.
	Ask     *offpeak.Ask       `json:"ask"`
	Metrics *placement.Metrics `json:"metrics,omitempty"`
}

// Change is what changed of a node; what is zero stayed.
type Change struct {
	Node         offpeak.NodeID       `json:"node"`
	Inventory    *offpeak.Inventory   `json:"inventory,omitempty"`
	Liveness     offpeak.Liveness     `json:"liveness,omitempty"`
	Intent       offpeak.Intent       `json:"intent,omitempty"`
	Availability offpeak.Availability `json:"availability,omitempty"`
	// Asks says that the ask changed: to Ask, or to nothing where that is nil.
	Asks bool         `json:"asks,omitempty"`
	Ask  *offpeak.Ask `json:"ask,omitempty"`
	// Stop says that all that ran there was stopped.
	Stop    offpeak.EndReason  `json:"stop,omitempty"`
	Metrics *placement.Metrics `json:"metrics,omitempty"`
}

// Job is a submitted job and the work that it turned out to be.
type Job struct {
	ID           offpeak.JobID        `json:"id"`
	Account      offpeak.AccountID    `json:"account"`
	Driver       string               `json:"driver"`
	Priority     int                  `json:"priority,omitempty"`
	Requirements offpeak.Requirements `json:"requirements"`
	Policy       placement.Policy     `json:"policy,omitempty"`
	// Group is the array that it is a member of, if at most AtOnce of that may hold
	// leases at once.
	Group  offpeak.GroupID `json:"group,omitempty"`
	AtOnce int             `json:"at_once,omitempty"`
	// Limit is how long an attempt may run; 0: without end.
	Limit offpeak.Duration `json:"limit,omitempty"`
	// Prepare is the time from an offer to the start of work.
	Prepare offpeak.Duration `json:"prepare,omitempty"`
	// Work is how long the job runs if nothing interrupts it.
	Work offpeak.Duration `json:"work"`
	// Keep is how much work lies between two stored checkpoints: what an
	// interruption leaves is whole multiples of it. 0: nothing is left.
	Keep  offpeak.Duration     `json:"keep,omitempty"`
	Retry *offpeak.RetryPolicy `json:"retry,omitempty"`
	// Guessed says that Work was not seen to its end.
	Guessed bool `json:"guessed,omitempty"`
}

// Sort puts the steps in order. Steps of one moment keep their order.
func (t *Traffic) Sort() {
	slices.SortStableFunc(t.Steps, func(a, b Step) int { return a.At.Compare(b.At) })
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Counts says how much of what there is.
func (t *Traffic) Counts() (jobs, nodes, losses int) {
	seen := make(map[offpeak.NodeID]struct{})
	for i := range t.Steps {
		switch s := &t.Steps[i]; {
		case s.Submit != nil:
			jobs++
		case s.Join != nil:
			seen[s.Join.ID] = struct{}{}
		case s.Leave != "", s.Change != nil && (s.Change.Liveness == offpeak.NodeOffline || s.Change.Availability == offpeak.NodeInUse || s.Change.Stop != ""):
			losses++
		}
	}
	return jobs, len(seen), losses
}

// Split cuts traffic in two at a part of its time. The second part begins with the
// nodes and quotas as they are then, and with no job: what was submitted before is the first
// part's alone.
func (t *Traffic) Split(part float64) (first, second Traffic) {
	at := t.From.Add(time.Duration(float64(t.Until.Sub(t.From)) * part))
	cut, _ := slices.BinarySearchFunc(t.Steps, at, func(s Step, at time.Time) int { return cmp.Or(s.At.Compare(at), -1) })
	cut = min(cut, len(t.Steps))
	first = Traffic{From: t.From, Until: at, Notes: t.Notes, InForce: t.InForce, Steps: t.Steps[:cut]}
	second = Traffic{From: at, Until: t.Until, Notes: t.Notes, InForce: t.InForce}
	nodes := make(map[offpeak.NodeID]*Node)
	var order []offpeak.NodeID
	before := make(map[offpeak.JobID]struct{})
	quotas := make(map[offpeak.AccountID]*Quota)
	for i := range first.Steps {
		switch s := &first.Steps[i]; {
		case s.Join != nil:
			if nodes[s.Join.ID] == nil {
				order = append(order, s.Join.ID)
			}
			n := *s.Join
			nodes[n.ID] = &n
		case s.Change != nil && nodes[s.Change.Node] != nil:
			nodes[s.Change.Node].change(s.Change)
		case s.Leave != "":
			delete(nodes, s.Leave)
			order = slices.DeleteFunc(order, func(id offpeak.NodeID) bool { return id == s.Leave })
		case s.Submit != nil:
			before[s.Submit.ID] = struct{}{}
		case s.Quota != nil:
			quotas[s.Quota.Account] = s.Quota
		}
	}
	for _, id := range slices.Sorted(maps.Keys(quotas)) {
		second.Steps = append(second.Steps, Step{At: at, Quota: quotas[id]})
	}
	for _, id := range order {
		second.Steps = append(second.Steps, Step{At: at, Join: nodes[id]})
	}
	for _, s := range t.Steps[cut:] {
		if _, old := before[s.Cancel]; s.Cancel == "" || !old {
			second.Steps = append(second.Steps, s)
		}
	}
	return first, second
}

// change is what n is after c.
func (n *Node) change(c *Change) {
	if c.Inventory != nil {
		n.Inventory = *c.Inventory
	}
	n.Liveness = cmp.Or(c.Liveness, n.Liveness)
	n.Intent = cmp.Or(c.Intent, n.Intent)
	n.Availability = cmp.Or(c.Availability, n.Availability)
	if c.Asks {
		n.Ask = c.Ask
	}
	if c.Metrics != nil {
		n.Metrics = c.Metrics
	}
}

// node is n in the words of the vocabulary.
func (n *Node) node() offpeak.Node {
	return offpeak.Node{
		ID: n.ID, Account: n.Account, Name: n.Name, Inventory: n.Inventory, Ask: n.Ask,
		Liveness: n.Liveness, Intent: n.Intent, Availability: n.Availability,
		Capacity: offpeak.Resources{CPU: n.Inventory.CPU, Memory: n.Inventory.Memory, Disk: n.Inventory.Disk, Devices: deviceIDs(n.Inventory.Devices)},
	}
}

func deviceIDs(devices []offpeak.Device) []offpeak.DeviceID {
	out := make([]offpeak.DeviceID, len(devices))
	for i := range devices {
		out[i] = devices[i].ID
	}
	return out
}

// head is the first line of a file.
type head struct {
	Traffic int       `json:"traffic"`
	From    time.Time `json:"from"`
	Until   time.Time `json:"until"`
	Notes   []string  `json:"notes,omitempty"`
	// InForce is what was weighed at the end.
	InForce *placement.Tuning `json:"in_force,omitempty"`
	// Steps is how many lines follow, so that a file that was cut off is noticed; nil in
	// version 1.
	Steps *int `json:"steps,omitempty"`
}

// Write writes traffic as lines of JSON: a head, then a step a line.
func (t *Traffic) Write(w io.Writer) error {
	out := bufio.NewWriterSize(w, 1<<16)
	e := json.NewEncoder(out)
	steps := len(t.Steps)
	if err := e.Encode(head{Format, t.From.UTC(), t.Until.UTC(), t.Notes, t.InForce, &steps}); err != nil {
		return err
	}
	for i := range t.Steps {
		if err := e.Encode(&t.Steps[i]); err != nil {
			return err
		}
	}
	return out.Flush()
}

// Known says whether a file that begins with this line holds traffic.
func Known(line []byte) bool {
	var h head
	return json.Unmarshal(line, &h) == nil && h.Traffic > 0
}

// MaxLine bounds a line of a file.
const MaxLine = 4 << 20

// Read reads what Write wrote. It returns an error that names the line for what
// is no traffic, and for traffic that a newer Offpeak wrote.
func Read(r io.Reader) (*Traffic, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 1<<16), MaxLine)
	if !lines.Scan() {
		if err := lines.Err(); err != nil {
			return nil, fmt.Errorf("line 1: %w", err)
		}
		return nil, fmt.Errorf("the file is empty")
	}
	var h head
	if err := strictly(lines.Bytes(), &h); err != nil || h.Traffic < 1 {
		return nil, fmt.Errorf(`line 1: recorded traffic begins with {"traffic":%d,…}`, Format)
	}
	if h.Traffic > Format {
		return nil, fmt.Errorf("line 1: the file has format %d, this Offpeak reads up to %d: use a newer one", h.Traffic, Format)
	}
	t := &Traffic{From: h.From, Until: h.Until, Notes: h.Notes, InForce: h.InForce}
	for n := 2; lines.Scan(); n++ {
		var s Step
		if err := strictly(lines.Bytes(), &s); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		t.Steps = append(t.Steps, s)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", len(t.Steps)+2, err)
	}
	if h.Steps != nil && *h.Steps != len(t.Steps) {
		return nil, fmt.Errorf("line %d: the file ends after %d of %d steps: it was cut off, or something was added", len(t.Steps)+1, len(t.Steps), *h.Steps)
	}
	return t, t.Check()
}

// strictly refuses members that it does not know: a word that is misspelt would
// change the answer.
func strictly(line []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if d.More() {
		return fmt.Errorf("there is more than one value on the line")
	}
	return nil
}
