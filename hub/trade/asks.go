package trade

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"offpeak"
	"offpeak/market"
	"offpeak/store"
	"offpeak/wire"
)

const (
	// askBatch is the most asks that one call moves.
	askBatch = 256
	// autoEvery is how often an ask that follows the market looks at it.
	autoEvery = 5 * time.Minute
	// recent is how far back it looks.
	recent = 24 * time.Hour
	// unreadable is when a plan that can't be read is tried again.
	unreadable = time.Hour
)

// SetAsk sets what a node's owner asks for it. It returns *offpeak.FieldErrors for
// a plan that breaks a rule, and what store.Asks.SetPlan returns.
func (f *Floor) SetAsk(ctx context.Context, op store.Op, account offpeak.AccountID, node offpeak.NodeID, in wire.AskPlan) (wire.NodeAsk, error) {
	list, err := f.set(ctx, op, account, node, &in)
	return f.only(ctx, account, node, list, err)
}

// SetAccountAsk sets what is asked for all nodes of an account that have no plan of
// their own, and returns what these ask now.
func (f *Floor) SetAccountAsk(ctx context.Context, op store.Op, account offpeak.AccountID, in wire.AskPlan) (wire.List[wire.NodeAsk], error) {
	list, err := f.set(ctx, op, account, "", &in)
	return wire.List[wire.NodeAsk]{Items: list}, err
}

// ClearAsk takes a node's own plan back: it goes by its account's, or costs nothing.
func (f *Floor) ClearAsk(ctx context.Context, op store.Op, account offpeak.AccountID, node offpeak.NodeID) (wire.NodeAsk, error) {
	list, err := f.set(ctx, op, account, node, nil)
	return f.only(ctx, account, node, list, err)
}

// ClearAccountAsk takes an account's plan back.
func (f *Floor) ClearAccountAsk(ctx context.Context, op store.Op, account offpeak.AccountID) (wire.List[wire.NodeAsk], error) {
	list, err := f.set(ctx, op, account, "", nil)
	return wire.List[wire.NodeAsk]{Items: list}, err
}

func (f *Floor) only(ctx context.Context, account offpeak.AccountID, node offpeak.NodeID, list []wire.NodeAsk, err error) (wire.NodeAsk, error) {
	if err != nil || len(list) == 0 {
		return wire.NodeAsk{}, err
	}
	return list[0], nil
}

func (f *Floor) set(ctx context.Context, op store.Op, account offpeak.AccountID, node offpeak.NodeID, in *wire.AskPlan) ([]wire.NodeAsk, error) {
	var data []byte
	var until time.Time
	if in != nil {
		if _, err := read(*in); err != nil {
			return nil, err
		}
		if in.Until != nil {
			until = *in.Until
		}
		var err error
		if data, err = text(*in); err != nil {
			return nil, fmt.Errorf("set ask: %w", err)
		}
	}
	nodes, err := f.env.Store.SetPlan(ctx, op, account, node, data, until)
	if err != nil {
		return nil, err
	}
	f.env.Wrote()
	out := []wire.NodeAsk{}
	for len(nodes) > 0 {
		some := nodes[:min(len(nodes), askBatch)]
		nodes = nodes[len(some):]
		// It is set, whatever follows: an ask that can't be moved now is due.
		due, err := f.env.Store.DueAsks(ctx, 0, some...)
		if err != nil {
			return nil, err
		}
		moved, err := f.move(ctx, due)
		if err != nil {
			return nil, err
		}
		if err := f.explain(ctx, moved, due, node, in); err != nil {
			return nil, err
		}
		out = append(out, moved...)
	}
	return out, nil
}

// explain adds to what nodes ask now whose plan that is, after in was set for a node
// or, with node "", for an account.
func (f *Floor) explain(ctx context.Context, moved []wire.NodeAsk, due []store.DueAsk, node offpeak.NodeID, in *wire.AskPlan) error {
	for i := range moved {
		switch {
		case in == nil:
			// The account's plan may hold now.
			if err := f.whose(ctx, &moved[i], &due[i]); err != nil {
				return err
			}
		case node != "":
			moved[i].Plan, moved[i].Of = in, "node"
		default:
			moved[i].Plan, moved[i].Of = in, "account"
		}
	}
	return nil
}

// Ask returns what a node asks now, and by which plan.
func (f *Floor) Ask(ctx context.Context, account offpeak.AccountID, node offpeak.NodeID) (wire.NodeAsk, error) {
	if _, err := f.env.Store.Node(ctx, account, node); err != nil {
		return wire.NodeAsk{}, err
	}
	due, err := f.env.Store.DueAsks(ctx, 0, node)
	if err != nil {
		return wire.NodeAsk{}, err
	}
	if len(due) == 0 {
		return wire.NodeAsk{}, fmt.Errorf("node %s: %w", node, offpeak.ErrNotFound)
	}
	d := &due[0]
	out := wire.NodeAsk{Node: node, Ask: d.Node.Ask}
	if !d.Due.IsZero() {
		out.Next = &d.Due
	}
	return out, f.whose(ctx, &out, d)
}

// whose adds the plan and whose it is.
func (f *Floor) whose(ctx context.Context, out *wire.NodeAsk, d *store.DueAsk) error {
	if len(d.Plan) == 0 {
		return nil
	}
	in, _, err := stored(d.Plan)
	if err != nil {
		return fmt.Errorf("read the plan of node %s: %w", d.Node.ID, err)
	}
	out.Plan, out.Of = &in, "account"
	_, err = f.env.Store.Plan(ctx, d.Node.Account, d.Node.ID)
	if err == nil {
		out.Of = "node"
	} else if errors.Is(err, offpeak.ErrNotFound) {
		err = nil
	}
	return err
}

// AccountAsk returns the plan that was set for an account. ErrNotFound: none was.
func (f *Floor) AccountAsk(ctx context.Context, account offpeak.AccountID) (wire.AskPlan, error) {
	have, err := f.env.Store.Plan(ctx, account, "")
	if err != nil {
		return wire.AskPlan{}, err
	}
	in, _, err := stored(have.Plan)
	if err != nil {
		err = fmt.Errorf("read the plan of account %s: %w", account, err)
	}
	return in, err
}

// AskHistory lists what a node asked, the newest first.
func (f *Floor) AskHistory(ctx context.Context, account offpeak.AccountID, node offpeak.NodeID, page store.Page) ([]store.AskChange, string, error) {
	return f.env.Store.AskHistory(ctx, account, node, page)
}

// Turn moves the asks that are due.
func (f *Floor) Turn(ctx context.Context) error {
	for {
		due, err := f.env.Store.DueAsks(ctx, askBatch)
		if err != nil || len(due) == 0 {
			return err
		}
		if _, err := f.move(ctx, due); err != nil {
			return err
		}
		if len(due) < askBatch {
			return nil
		}
	}
}

// Look moves the ask of a node if it is due, as that of one that has just enrolled
// under its account's plan.
func (f *Floor) Look(ctx context.Context, node offpeak.NodeID) error {
	due, err := f.env.Store.DueAsks(ctx, 0, node)
	if err != nil || len(due) == 0 || due[0].Due.IsZero() || due[0].Due.After(due[0].Now) {
		return err
	}
	_, err = f.move(ctx, due)
	return err
}

// Upcoming is an ask that comes into force.
type Upcoming struct {
	At  time.Time
	Ask offpeak.Ask
}

// Upcoming says of nodes that ask nothing now when they will next, as far as their
// plans tell.
func (f *Floor) Upcoming(ctx context.Context, nodes ...offpeak.NodeID) (map[offpeak.NodeID]Upcoming, error) {
	if len(nodes) == 0 {
		return nil, nil
	}
	due, err := f.env.Store.DueAsks(ctx, 0, nodes...)
	if err != nil {
		return nil, err
	}
	const most = 8 // periods without an ask in a row
	out := make(map[offpeak.NodeID]Upcoming)
	for i := range due {
		_, p, err := stored(due[i].Plan)
		if len(due[i].Plan) == 0 || err != nil {
			continue
		}
		at := due[i].Now
		for range most {
			s := p.At(at)
			if s.Valid && at.After(due[i].Now) {
				out[due[i].Node.ID] = Upcoming{at, s.Ask}
			}
			if s.Valid || s.Until.IsZero() {
				break
			}
			at = s.Until
		}
	}
	return out, nil
}

// move has nodes ask what their plans say now.
func (f *Floor) move(ctx context.Context, due []store.DueAsk) ([]wire.NodeAsk, error) {
	moves := make([]store.AskMove, len(due))
	out := make([]wire.NodeAsk, len(due))
	asks := make(map[offpeak.NodeID]*offpeak.Ask, len(due))
	paid := make(map[offpeak.Segment][]offpeak.Candle)
	for i := range due {
		m, err := f.standing(ctx, &due[i], paid)
		if err != nil {
			return nil, err
		}
		moves[i], asks[m.Node] = m, m.Ask
		out[i] = wire.NodeAsk{Node: m.Node, Ask: m.Ask}
		if !m.Due.IsZero() {
			out[i].Next = &m.Due
		}
	}
	moved, err := f.env.Store.MoveAsks(ctx, moves)
	if err != nil {
		return nil, err
	}
	for _, id := range moved {
		f.env.Moved(id, asks[id])
	}
	if len(moved) > 0 {
		f.env.Wrote()
	}
	return out, nil
}

// standing is what a node asks by its plan now.
func (f *Floor) standing(ctx context.Context, d *store.DueAsk, paid map[offpeak.Segment][]offpeak.Candle) (store.AskMove, error) {
	m := store.AskMove{Node: d.Node.ID, Revision: d.Revision, Ask: &offpeak.Ask{}}
	if len(d.Plan) == 0 {
		return m, nil
	}
	_, p, err := stored(d.Plan)
	if err != nil {
		// Written by another version, or by hand: as long as nobody can say what it
		// means, the node is offered to nobody.
		f.env.Log.Error("a plan of asks can't be read", "node", d.Node.ID, "err", err)
		m.Ask, m.Due = nil, d.Now.Add(unreadable)
		return m, nil
	}
	s := p.At(d.Now)
	m.Due = s.Until
	if !s.Valid {
		m.Ask = nil
		return m, nil
	}
	if p.auto == nil {
		m.Ask = &s.Ask
		return m, nil
	}
	if next := d.Now.Add(autoEvery); m.Due.IsZero() || next.Before(m.Due) {
		m.Due = next
	}
	ask := s.Ask
	if d.Node.Ask != nil && *d.Node.Ask != (offpeak.Ask{}) {
		ask = *d.Node.Ask // where it is, as the market moves
	}
	segment := Segment(&d.Node, nil)
	if ask.GPU, err = f.follow(ctx, p.auto, ask.GPU, segment, d.Now, paid); err != nil {
		return m, err
	}
	if ask.CPU, err = f.follow(ctx, p.cpu, ask.CPU, offpeak.Segment{Region: segment.Region}, d.Now, paid); err != nil {
		return m, err
	}
	m.Ask = &ask
	return m, nil
}

// follow is what an ask that follows the market is next.
func (f *Floor) follow(ctx context.Context, a *market.Auto, ask offpeak.Price, s offpeak.Segment, now time.Time, paid map[offpeak.Segment][]offpeak.Candle) (offpeak.Price, error) {
	candles, known := paid[s]
	if !known {
		var err error
		if candles, err = f.recent(ctx, s, now); err != nil {
			return ask, err
		}
		paid[s] = candles
	}
	return a.Next(ask, candles), nil
}

// recent is what was paid in a segment of late.
func (f *Floor) recent(ctx context.Context, s offpeak.Segment, now time.Time) ([]offpeak.Candle, error) {
	const most = 1000 // far more than there are hours
	list, _, err := f.env.Store.Candles(ctx, store.CandleFilter{
		Resolution: offpeak.Hours, Vendor: s.Vendor, Model: s.Model, VRAM: s.VRAM, Region: s.Region, Plain: s.Kind == offpeak.Kind{}, From: now.Add(-recent),
	}, store.Page{Limit: most})
	if err != nil {
		return nil, fmt.Errorf("read what was paid: %w", err)
	}
	out := list[:0]
	for _, c := range list {
		if c.Segment == s {
			out = append(out, c)
		}
	}
	return out, nil
}

// Segment is the part of the market in which some devices of a node are traded:
// that of its first one, of all where none are named, as nodes with unlike devices
// are rare. Without devices, as for a job beside idle ones, it is the zero kind.
func Segment(n *offpeak.Node, devices []offpeak.DeviceID) offpeak.Segment {
	s := offpeak.Segment{Region: n.Inventory.Region}
	for _, d := range n.Inventory.Devices {
		if devices == nil || slices.Index(devices, d.ID) == 0 {
			s.Kind = offpeak.Kind{Vendor: d.Vendor, Model: d.Model, VRAM: d.VRAM}
			break
		}
	}
	return s
}
