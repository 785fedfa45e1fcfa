package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"offpeak"
	"offpeak/store"
)

const (
	// attendEvery is how often a hub says that it is at work.
	attendEvery = 500 * time.Millisecond
	// leadFor is how long a hub may match after it has asked for the lead. One that
	// is gone is followed within leadFor and attendEvery: 2 s.
	leadFor = 1500 * time.Millisecond
	// tellEvery is the least time between two tellings: what a hub writes meanwhile
	// is told together.
	tellEvery = 10 * time.Millisecond
	// mostHinted bounds the jobs that a hub keeps in mind because another named them.
	mostHinted = 1000
)

// circle is the hubs of a grid as one of them sees them: who is at work, who
// matches, and what is to be told to the others. They know of each other through
// the store only. What is told says no more than where to look; who missed it
// looks all the same, a second later.
type circle struct {
	self offpeak.Hub
	// alone says that the store is of one hub.
	alone  atomic.Bool
	joined bool
	// grid is the id of the grid it joined.
	grid string

	mu sync.Mutex // guards what follows
	// until is when this hub's lead ends, by its own clock, counted from before it
	// asked: it never believes to lead longer than the store does.
	until     time.Time
	term      int64
	addresses []string
	// listens says that what others tell is heard.
	listens bool
	// deaf counts the seconds since everybody was woken in any case.
	deaf int

	// wrote holds a token when there is something to tell; keys are the objects
	// whose listeners should look again, beside all that events name.
	wrote chan struct{}
	keys  map[string]struct{}
	// hinted are jobs that other hubs say they queued, to be read by whoever matches.
	hinted map[offpeak.JobID]struct{}
}

func newCircle(self offpeak.Hub) circle {
	return circle{self: self, addresses: self.Addresses, wrote: make(chan struct{}, 1), keys: make(map[string]struct{}), hinted: make(map[offpeak.JobID]struct{})}
}

// leads says that this hub may match now. Two may believe so for a moment, as when
// one was frozen; each claim is checked by the store all the same.
func (h *Hub) leads() bool {
	c := &h.circle
	if c.alone.Load() {
		return true
	}
	now := h.env.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.Before(c.until) || h.cfg.AlwaysLead
}

// Join says that the hub is here, before it does anything: Run does, unless it was
// done before. It returns a *store.BlobsElsewhereError for a hub that has no part
// in the grid's blobs.
func (h *Hub) Join(ctx context.Context) error {
	if h.circle.joined {
		return nil
	}
	a, err := h.env.Store.Attend(ctx, h.circle.self, 0)
	if err != nil {
		return fmt.Errorf("join the grid: %w", err)
	}
	h.circle.joined, h.circle.grid = true, a.Grid
	h.circle.alone.Store(a.Alone)
	h.circle.take(a, time.Time{})
	if a.Others == 0 {
		return nil
	}
	hubs, err := h.env.Store.Hubs(ctx)
	if err != nil {
		return fmt.Errorf("join the grid: %w", err)
	}
	for _, o := range hubs {
		if f := h.circle.self.Fingerprint; f != "" && o.Fingerprint != "" && o.Fingerprint != f {
			h.env.Log.Warn("another hub of the grid has another key: join tokens and people pin one, so give all hubs the same hub.key", "other", o.Addresses, "fingerprint", o.Fingerprint)
			break
		}
	}
	return nil
}

// Grid is the id of the grid that the hub has joined.
func (h *Hub) Grid() string { return h.circle.grid }

// take notes what the hub learned when it attended, and says whether it leads
// newly.
func (c *circle) take(a store.Attendance, until time.Time) (leads bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addresses = a.Addresses
	if !a.Leads {
		c.until = time.Time{}
		return false
	}
	leads = a.Term != c.term || until.Add(-leadFor).After(c.until)
	c.until, c.term = until, a.Term
	return leads
}

// attend says twice a second that the hub is at work, and asks for the lead, until
// ctx is done. A hub that could not listen or write for a while says nothing before
// it has dealt with that: others rely on whoever attends.
func (h *Hub) attend(ctx context.Context) error {
	if h.circle.alone.Load() {
		return nil
	}
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if err := h.env.Store.Leave(last, h.circle.self.ID); err != nil {
			h.env.Log.Warn("leave the other hubs", "err", err)
		}
	}()
	select {
	case <-ctx.Done():
		return nil
	case <-h.loaded: // nothing to match before
	}
	for away := false; ; {
		if h.listensNow() {
			asked := h.env.Now()
			a, err := h.env.Store.Attend(ctx, h.circle.self, leadFor)
			elsewhere := new(store.BlobsElsewhereError)
			switch {
			case errors.As(err, &elsewhere):
				return err
			case err != nil && ctx.Err() == nil && !away:
				h.env.Log.Warn("the store does not answer", "err", err)
			case err == nil && h.circle.take(a, asked.Add(leadFor)):
				h.env.Log.Info("this hub matches now", "term", a.Term, "others", a.Others)
				h.wake()
			}
			away = err != nil
		}
		if !sleep(ctx, attendEvery) {
			return nil
		}
	}
}

// listensNow says that this hub hears and writes, and owes nobody an amnesty.
func (h *Hub) listensNow() bool { return !h.stalled.Load() && !h.amends.Load() }

// accompanied says whether another hub is at work: it listens while this one
// does not.
func (h *Hub) accompanied(ctx context.Context) (bool, error) {
	if h.circle.alone.Load() {
		return false, nil
	}
	hubs, err := h.env.Store.Hubs(ctx)
	if err != nil {
		return false, err
	}
	now, err := h.env.Store.Now(ctx)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(hubs, func(o offpeak.Hub) bool {
		return o.ID != h.circle.self.ID && now.Sub(o.SeenAt) < store.AliveFor
	}), nil
}

// Hubs lists the hubs of the grid, this one alone where there is one.
func (h *Hub) Hubs(ctx context.Context) ([]offpeak.Hub, error) {
	if h.circle.alone.Load() {
		self := h.circle.self
		self.Leads, self.SeenAt = true, h.env.Now().UTC()
		return []offpeak.Hub{self}, nil
	}
	return h.env.Store.Hubs(ctx)
}

// Addresses are those of all hubs at work, this one's first.
func (h *Hub) addresses() []string {
	h.circle.mu.Lock()
	defer h.circle.mu.Unlock()
	return h.circle.addresses
}

// wrote says that this hub wrote events: listeners here and the other hubs look.
func (h *Hub) wrote() {
	h.tail.ring()
	h.circle.tell("")
}

// rang wakes who waits for something to happen to an object of which no event
// tells, here and on the other hubs.
func (h *Hub) rang(key string) {
	h.bells.Ring(key)
	h.circle.tell(key)
}

func (c *circle) tell(key string) {
	if c.alone.Load() {
		return
	}
	if key != "" {
		c.mu.Lock()
		c.keys[key] = struct{}{}
		c.mu.Unlock()
	}
	select {
	case c.wrote <- struct{}{}:
	default:
	}
}

// tellOthers tells the other hubs, once for all that was written in a moment.
func (h *Hub) tellOthers(ctx context.Context) error {
	c := &h.circle
	for last := (time.Time{}); !c.alone.Load(); last = h.env.Now() {
		select {
		case <-ctx.Done():
			return nil
		case <-c.wrote:
		}
		if !sleep(ctx, last.Add(tellEvery).Sub(h.env.Now())) {
			return nil
		}
		c.mu.Lock()
		keys := c.keys
		c.keys = make(map[string]struct{})
		c.mu.Unlock()
		if err := h.env.Store.Tell(ctx, told(c.self.ID, keys)); err != nil && ctx.Err() == nil {
			h.env.Log.Debug("tell the other hubs", "err", err)
		}
	}
	return nil
}

// told is who tells and what to look at; "*" is everything, where the list is long.
func told(self offpeak.HubID, keys map[string]struct{}) string {
	b := strings.Builder{}
	b.WriteString(string(self))
	for k := range keys {
		if b.Len()+1+len(k) > store.MostTold {
			return string(self) + " *"
		}
		b.WriteByte(' ')
		b.WriteString(k)
	}
	return b.String()
}

// listen hears what the other hubs tell, until ctx is done.
func (h *Hub) listen(ctx context.Context) error {
	for ctx.Err() == nil && !h.circle.alone.Load() {
		err := h.env.Store.Listen(ctx, h.heard)
		h.circle.setListens(false)
		if ctx.Err() == nil {
			h.env.Log.Warn("other hubs are not heard; looking every second", "err", err)
		}
		sleep(ctx, time.Second)
	}
	return nil
}

func (c *circle) setListens(l bool) {
	c.mu.Lock()
	c.listens = l
	c.mu.Unlock()
}

func (h *Hub) heard(text string) {
	who, rest, _ := strings.Cut(text, " ")
	if who == string(h.circle.self.ID) {
		return
	}
	h.circle.setListens(true)
	for key := range strings.FieldsSeq(rest) {
		if key == "*" {
			h.bells.RingAll()
			break
		}
		h.bells.Ring(key)
		switch kind, _, _ := strings.Cut(key, "_"); kind {
		case "node":
			h.peers.changed(offpeak.NodeID(key), 0, true)
		case "job":
			if h.leads() {
				h.circle.hint(offpeak.JobID(key))
				h.wake()
			}
		}
	}
	h.tail.ring()
}

// hint keeps a job in mind that another hub queued.
func (c *circle) hint(job offpeak.JobID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.hinted) < mostHinted {
		c.hinted[job] = struct{}{}
	}
}

// takeHints adds the jobs that other hubs named to the queue. Their events will say
// the same, once no older transaction is under way; who matches need not wait for it.
func (h *Hub) takeHints(ctx context.Context) {
	c := &h.circle
	c.mu.Lock()
	f := following{}
	for id := range c.hinted {
		f.queued = append(f.queued, id)
	}
	clear(c.hinted)
	c.mu.Unlock()
	if err := h.followQueued(ctx, &f); err != nil && ctx.Err() == nil {
		h.env.Log.Debug("read jobs that another hub named", "err", err)
	}
}
