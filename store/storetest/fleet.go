package storetest

import (
	"testing"
	"time"

	"offpeak"
	"offpeak/store"
)

// Fleet is an account, nodes that are online, and jobs for them, in a store that
// tells the real time: for what races on a store, and what measures one.
type Fleet struct{ g *grid }

// NewFleet begins a grid in an empty store.
func NewFleet(t testing.TB, s store.Store) *Fleet {
	return &Fleet{newGrid(t, s, &Clock{now: time.Now()})}
}

// Enrol makes a node with an inventory.
func (f *Fleet) Enrol(inv offpeak.Inventory) offpeak.NodeID { return f.g.enrolWith(inv).ID }

// Submit makes a job that asks for 1,000 thousandths of a CPU, and little else.
func (f *Fleet) Submit() offpeak.JobID { return f.g.submit(spec()).ID }

// Ask is the claim of a job's first attempt on a node.
func (f *Fleet) Ask(job offpeak.JobID, node offpeak.NodeID) store.Claim {
	c := f.g.ask(job, 1, node)
	c.Resources = offpeak.Resources{CPU: 1000}
	return c
}
