// Package placement chooses the node for a job: a picture of the fleet and a
// queued job in, the ranked nodes or the reason per node out.
//
// It owns the order in which nodes that fit are preferred, and the picture it
// decides on. Whether a node fits at all is decided by offpeak's
// Requirements.Fit and nothing else: what this package keeps beside it may
// prune a node that Fit would refuse, never admit one. It must not know of
// stores, networks, clocks or goroutines; time and chance reach it as
// arguments, so a recorded decision replays exactly.
//
// A Fleet is not safe for concurrent use: its owner holds a lock. It is tested
// against brute force over random fleets: the chosen node is the best of all
// that fit, and a more demanding job never has more candidates.
package placement

import (
	"iter"
	"maps"
	"slices"
	"time"

	"offpeak"
)

// Fleet is the picture of all nodes: what they have and which leases hold it.
type Fleet struct {
	weights Weights
	nodes   []*node // in the order they came; removal swaps the last one in
	byID    map[offpeak.NodeID]*node
	// measured counts the nodes of which metrics are known.
	measured int
	devices  devices
	// views are the index: the nodes in the orders that jobs have asked for so far,
	// nil for those that none has. stops is scratch space.
	views [orders]*view
	stops []stop
	// counts are what was counted for classes of jobs, changes how often a node
	// changed.
	counts  map[counting]counted
	changes uint64
	// changed are nodes whose offers changed since TakeChanged.
	changed map[offpeak.NodeID]struct{}
	// snapshots counts those that were taken.
	snapshots uint64
}

// node is one node of the picture with what pruning and scoring read often.
type node struct {
	// sight may be a snapshot's too: own makes it safe to change. owned is how many
	// snapshots had been taken when it was made.
	*sight
	owned uint64
	index int
	// version grows with every change, so that a reader of the store can tell
	// that the picture moved while it read.
	version uint64
	holds   map[offpeak.LeaseID]hold
	// sign sketches what does not change with the leases.
	sign signature
	// blocks are where the views have the node; nil where they do not.
	blocks [orders]*block

	liveness     offpeak.Liveness
	intent       offpeak.Intent
	availability offpeak.Availability
	// shut says that it is in use since it is outside its owner's hours.
	shut bool
	asks bool
	// opens is when the owner's hours next let it work, until when its bar ends.
	opens, until *time.Time
	// barred and onTrial are set by Bar and Try; probe is the lease that a node on
	// trial has taken. One that another hub places on a barred node is that too.
	barred, onTrial bool
	probe           offpeak.LeaseID
	kept            bool
}

// hold is what one lease holds of a node.
type hold struct {
	resources offpeak.Resources
	// pending says that the claim is not committed yet: a picture read from the
	// store does not know it and must not drop it.
	pending bool
}

// Holding is one live lease and what it holds.
type Holding struct {
	Lease     offpeak.LeaseID
	Resources offpeak.Resources
}

// NewFleet returns an empty picture that scores by w, which must be valid.
func NewFleet(w Weights) *Fleet {
	return &Fleet{weights: w, devices: newDevices(), counts: make(map[counting]counted), byID: make(map[offpeak.NodeID]*node), changed: make(map[offpeak.NodeID]struct{})}
}

// Len counts the nodes.
func (f *Fleet) Len() int { return len(f.nodes) }

// Version tells changes of a node apart; 0 for a node that is not in the picture.
func (f *Fleet) Version(id offpeak.NodeID) uint64 {
	if n := f.byID[id]; n != nil {
		return n.version
	}
	return 0
}

// TakeChanged returns the nodes whose offers changed since the last call, also
// those that are gone.
func (f *Fleet) TakeChanged() []offpeak.NodeID {
	out := make([]offpeak.NodeID, 0, len(f.changed))
	for id := range f.changed {
		out = append(out, id)
	}
	clear(f.changed)
	return out
}

// Offer returns the node's offer, and false if it is not in the picture. Nobody
// may change its slices and maps.
func (f *Fleet) Offer(id offpeak.NodeID) (offpeak.Offer, bool) {
	if n := f.byID[id]; n != nil {
		return n.offer, true
	}
	return offpeak.Offer{}, false
}

// Peek is Offer without a copy, nil for a node that is not in the picture. It is as the
// node is until the fleet changes; nobody may change it.
func (f *Fleet) Peek(id offpeak.NodeID) *offpeak.Offer {
	if n := f.byID[id]; n != nil {
		return &n.offer
	}
	return nil
}

// Offers yields all offers, with what each lease holds there.
func (f *Fleet) Offers() iter.Seq2[*offpeak.Offer, iter.Seq2[offpeak.LeaseID, offpeak.Resources]] {
	return func(yield func(*offpeak.Offer, iter.Seq2[offpeak.LeaseID, offpeak.Resources]) bool) {
		for _, n := range f.nodes {
			if !yield(&n.offer, n.held) {
				return
			}
		}
	}
}

// OffersOf is Offers of some nodes; those that are gone are left out.
func (f *Fleet) OffersOf(ids []offpeak.NodeID) iter.Seq2[*offpeak.Offer, iter.Seq2[offpeak.LeaseID, offpeak.Resources]] {
	return func(yield func(*offpeak.Offer, iter.Seq2[offpeak.LeaseID, offpeak.Resources]) bool) {
		for _, id := range ids {
			if n := f.byID[id]; n != nil && !yield(&n.offer, n.held) {
				return
			}
		}
	}
}

func (n *node) held(yield func(offpeak.LeaseID, offpeak.Resources) bool) {
	for id, h := range n.holds {
		if !yield(id, h.resources) {
			return
		}
	}
}

// Keep keeps a node for somebody who is to come, or ends that.
func (f *Fleet) Keep(id offpeak.NodeID, kept bool) {
	if n := f.byID[id]; n != nil && n.kept != kept {
		n.kept = kept
		f.recount(n)
	}
}

// Leases yields the leases that hold something of a node.
func (f *Fleet) Leases(id offpeak.NodeID) iter.Seq[offpeak.LeaseID] {
	n := f.byID[id]
	if n == nil {
		return func(func(offpeak.LeaseID) bool) {}
	}
	return maps.Keys(n.holds)
}

// Set puts a node as the store has it into the picture, with its leases that
// hold resources. Claims that are still under way stay.
func (f *Fleet) Set(in offpeak.Node, held []Holding) {
	n := f.byID[in.ID]
	if n == nil {
		n = &node{index: len(f.nodes), owned: f.snapshots, holds: make(map[offpeak.LeaseID]hold)}
		n.sight = &sight{hash: mix(hashText(hashStart, string(in.ID)))}
		f.nodes = append(f.nodes, n)
		f.byID[in.ID] = n
	}
	for id, h := range n.holds {
		if !h.pending {
			delete(n.holds, id)
		}
	}
	for _, h := range held {
		n.holds[h.Lease] = hold{resources: h.Resources}
	}
	if _, there := n.holds[n.probe]; !there {
		n.probe = ""
	}
	inv := in.Inventory
	f.own(n)
	n.name = in.Name
	n.liveness, n.intent, n.availability, n.asks = in.Liveness, in.Intent, in.Availability, in.Ask != nil
	n.shut, n.opens = in.Why == offpeak.EndOutsideSchedule, inv.Opens
	n.offer = offpeak.Offer{
		Node: in.ID, Account: in.Account, Ask: asked(in.Ask),
		Capacity: in.Capacity, Devices: capacityDevices(in),
		OS: inv.OS, Arch: inv.Arch, Region: inv.Region,
		Drivers: inv.Drivers, Shared: inv.Shared, Labels: inv.Labels,
		Guests: inv.Guests,
	}
	n.sign = sign(&n.offer)
	f.recount(n)
}

// capacityDevices are the devices that may be leased: those of the inventory
// that the capacity names.
func capacityDevices(n offpeak.Node) []offpeak.Device {
	if len(n.Capacity.Devices) == len(n.Inventory.Devices) {
		return n.Inventory.Devices
	}
	var out []offpeak.Device
	for _, d := range n.Inventory.Devices {
		if slices.Contains(n.Capacity.Devices, d.ID) {
			out = append(out, d)
		}
	}
	return out
}

// Remove takes a node out of the picture.
func (f *Fleet) Remove(id offpeak.NodeID) {
	n := f.byID[id]
	if n == nil {
		return
	}
	for _, v := range f.views {
		if v != nil && n.blocks[v.order] != nil {
			v.delete(n.blocks[v.order], n)
		}
	}
	f.changes++
	f.devices.give(n.set)
	if n.metrics != nil {
		f.measured--
	}
	last := f.nodes[len(f.nodes)-1]
	f.nodes[n.index], last.index = last, n.index
	f.nodes[len(f.nodes)-1] = nil
	f.nodes = f.nodes[:len(f.nodes)-1]
	delete(f.byID, id)
	f.changed[id] = struct{}{}
}

// Weights returns what scores.
func (f *Fleet) Weights() Weights { return f.weights }

// SetWeights scores by other weights from now on. It returns a
// *offpeak.FieldError, and changes nothing, where they are not valid.
func (f *Fleet) SetWeights(w Weights) error {
	if err := w.Validate(); err != nil {
		return err
	}
	f.weights = w
	clear(f.counts)
	f.views = [orders]*view{} // they are sorted by weighed metrics
	return nil
}

// SetMetrics notes what was measured of a node beyond what it has.
func (f *Fleet) SetMetrics(id offpeak.NodeID, m Metrics) {
	n := f.byID[id]
	if n == nil {
		return
	}
	m = m.sane()
	f.own(n)
	switch known := m != (Metrics{}); {
	case known:
		if n.metrics == nil {
			f.measured++
		}
		n.metrics = &m // a snapshot may have the old ones
	case n.metrics != nil:
		f.measured--
		n.metrics = nil
	}
	f.reindex(n)
}

// Metrics returns what is known of a node beyond what it has.
func (f *Fleet) Metrics(id offpeak.NodeID) Metrics {
	if n := f.byID[id]; n != nil && n.metrics != nil {
		return *n.metrics
	}
	return Metrics{}
}

// SetLiveness notes what was measured of a node.
func (f *Fleet) SetLiveness(id offpeak.NodeID, l offpeak.Liveness) {
	if n := f.byID[id]; n != nil && n.liveness != l {
		n.liveness = l
		f.recount(n)
	}
}

// SetIntent notes what was ordered for a node.
func (f *Fleet) SetIntent(id offpeak.NodeID, i offpeak.Intent) {
	if n := f.byID[id]; n != nil && n.intent != i {
		n.intent = i
		f.recount(n)
	}
}

// SetAvailability notes what a node's agent says, and why it is in use.
func (f *Fleet) SetAvailability(id offpeak.NodeID, a offpeak.Availability, why offpeak.EndReason) {
	shut := why == offpeak.EndOutsideSchedule
	if n := f.byID[id]; n != nil && (n.availability != a || n.shut != shut) {
		n.availability, n.shut = a, shut
		f.recount(n)
	}
}

// SetAsk notes what is asked for a node from now on, nil for nothing.
func (f *Fleet) SetAsk(id offpeak.NodeID, ask *offpeak.Ask) {
	if n := f.byID[id]; n != nil && (n.asks != (ask != nil) || n.offer.Ask != asked(ask)) {
		f.own(n)
		n.offer.Ask, n.asks = asked(ask), ask != nil
		f.recount(n)
	}
}

func asked(ask *offpeak.Ask) offpeak.Ask {
	if ask == nil {
		return offpeak.Ask{}
	}
	return *ask
}

// Hold reserves resources for a lease whose claim is about to be made.
// Holding twice changes nothing.
func (f *Fleet) Hold(id offpeak.NodeID, lease offpeak.LeaseID, r offpeak.Resources) {
	n := f.byID[id]
	if n == nil {
		return
	}
	if _, there := n.holds[lease]; !there && (n.onTrial || n.barred) && n.probe == "" {
		n.probe = lease
	}
	f.Reserve(id, lease, r)
}

// Reserve is Hold for what is kept free under a name that is no lease's: it is no
// node's probe.
func (f *Fleet) Reserve(id offpeak.NodeID, name offpeak.LeaseID, r offpeak.Resources) {
	n := f.byID[id]
	if n == nil {
		return
	}
	if _, there := n.holds[name]; there {
		return
	}
	n.holds[name] = hold{resources: r, pending: true}
	f.recount(n)
}

// Confirm says that a held lease's claim is committed. It changes nothing when
// the lease has been released meanwhile.
func (f *Fleet) Confirm(id offpeak.NodeID, lease offpeak.LeaseID) {
	if n := f.byID[id]; n != nil {
		if h, there := n.holds[lease]; there {
			h.pending = false
			n.holds[lease] = h
			n.version++
		}
	}
}

// Release frees what a lease holds and says whether it held anything.
func (f *Fleet) Release(id offpeak.NodeID, lease offpeak.LeaseID) bool {
	n := f.byID[id]
	if n == nil {
		return false
	}
	n.version++
	if _, there := n.holds[lease]; !there {
		return false
	}
	delete(n.holds, lease)
	if n.probe == lease {
		n.probe = ""
	}
	f.recount(n)
	return true
}

// Pass moves what a lease holds to another whose claim is made with its end:
// the next one holds r, the old one what is left. It returns false, and changes
// nothing, where r is more than the old one holds.
func (f *Fleet) Pass(id offpeak.NodeID, old, next offpeak.LeaseID, r offpeak.Resources) bool {
	n := f.byID[id]
	if n == nil {
		return false
	}
	h, there := n.holds[old]
	left := h.resources
	left.CPU, left.Memory, left.Disk = left.CPU-r.CPU, left.Memory-r.Memory, left.Disk-r.Disk
	if !there || left.CPU < 0 || left.Memory < 0 || left.Disk < 0 {
		return false
	}
	left.Devices = nil
	for _, d := range h.resources.Devices {
		if !slices.Contains(r.Devices, d) {
			left.Devices = append(left.Devices, d)
		}
	}
	if len(left.Devices)+len(r.Devices) != len(h.resources.Devices) {
		return false
	}
	h.resources = left
	n.holds[old] = h
	n.holds[next] = hold{resources: r, pending: true}
	f.recount(n)
	return true
}

// TakeBack undoes Pass: the old lease, if it still holds anything, holds what the
// next one had, and the next one nothing.
func (f *Fleet) TakeBack(id offpeak.NodeID, old, next offpeak.LeaseID) {
	n := f.byID[id]
	if n == nil {
		return
	}
	r := n.holds[next].resources
	delete(n.holds, next)
	if h, there := n.holds[old]; there {
		h.resources.CPU, h.resources.Memory, h.resources.Disk = h.resources.CPU+r.CPU, h.resources.Memory+r.Memory, h.resources.Disk+r.Disk
		h.resources.Devices = slices.Concat(h.resources.Devices, r.Devices)
		n.holds[old] = h
	}
	f.recount(n)
}

// Without calls fn on the fleet as it is when the lease has ended.
func (f *Fleet) Without(id offpeak.NodeID, lease offpeak.LeaseID, fn func()) {
	n := f.byID[id]
	if n == nil {
		return
	}
	h, there := n.holds[lease]
	if !there {
		return
	}
	delete(n.holds, lease)
	f.recount(n)
	fn()
	n.holds[lease] = h
	f.recount(n)
}

// Holds counts the leases that hold something on a node.
func (f *Fleet) Holds(id offpeak.NodeID) int {
	if n := f.byID[id]; n != nil {
		return len(n.holds)
	}
	return 0
}

// recount derives what is free and whether the node takes work.
func (f *Fleet) recount(n *node) {
	n.version++
	f.changes++
	f.changed[n.offer.Node] = struct{}{}
	f.own(n)
	o := &n.offer
	free := offpeak.Resources{CPU: o.Capacity.CPU, Memory: o.Capacity.Memory, Disk: o.Capacity.Disk}
	taken := 0
	for _, h := range n.holds {
		free.CPU -= h.resources.CPU
		free.Memory -= h.resources.Memory
		free.Disk -= h.resources.Disk
		taken += len(h.resources.Devices)
	}
	if changed := n.free(taken); changed || len(o.FreeDevices) == 0 {
		set := f.devices.take(o.FreeDevices)
		f.devices.give(n.set)
		n.set = set
	}
	free.Devices = o.Free.Devices
	o.Free = free
	o.Why, o.Opens = n.why(), n.opens
	if n.barred {
		o.Opens = n.until
	}
	o.Ready = o.Why == offpeak.FitOK
	n.later = n.whyLater()
	f.reindex(n)
}

// free derives which devices are free, of which so many are taken, and says
// whether others are than before. The lists may be in others' hands: they are
// replaced, never changed.
func (n *node) free(taken int) (changed bool) {
	o := &n.offer
	held := func(d offpeak.Device) bool { return taken > 0 && n.heldDevice(d.ID) }
	if len(o.FreeDevices) == len(o.Devices)-taken && !slices.ContainsFunc(o.FreeDevices, held) {
		return false
	}
	o.FreeDevices = o.Devices
	if taken > 0 {
		o.FreeDevices = slices.DeleteFunc(slices.Clone(o.Devices), held)
	}
	o.Free.Devices = make([]offpeak.DeviceID, len(o.FreeDevices))
	for i := range o.FreeDevices {
		o.Free.Devices[i] = o.FreeDevices[i].ID
	}
	return true
}

func (n *node) heldDevice(id offpeak.DeviceID) bool {
	for _, h := range n.holds {
		if slices.Contains(h.resources.Devices, id) {
			return true
		}
	}
	return false
}

func (n *node) why() offpeak.FitCode {
	switch {
	case n.liveness != offpeak.NodeOnline:
		return offpeak.FitOffline
	case n.intent == offpeak.NodeDraining:
		return offpeak.FitDraining
	case n.intent != offpeak.NodeOpen:
		return offpeak.FitClosed
	case n.availability != offpeak.NodeAvailable && n.shut:
		return offpeak.FitWindow
	case n.availability != offpeak.NodeAvailable:
		return offpeak.FitInUse
	case n.barred, n.probe != "":
		return offpeak.FitQuarantined
	case !n.asks:
		return offpeak.FitNoAsk
	case n.kept:
		return offpeak.FitKept
	}
	return offpeak.FitOK
}

// whyLater is what keeps work off the node from offer.Opens on, where that is known.
func (n *node) whyLater() offpeak.FitCode {
	switch n.offer.Why {
	case offpeak.FitWindow:
		then := *n
		then.availability, then.shut = offpeak.NodeAvailable, false
		return then.why()
	case offpeak.FitQuarantined:
		then := *n
		then.barred = false
		return then.why()
	}
	return n.offer.Why
}
