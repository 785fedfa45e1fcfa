package egress

import (
	"slices"
	"time"

	"offpeak"
)

// Reached is what a job did with one destination.
type Reached struct {
	// Host is the destination, or Others.
	Host        string `json:"host"`
	Connections int    `json:"connections"`
	// Refused is how often it was refused or failed, Why is why it last was, with
	// more than the job is told.
	Refused  int           `json:"refused,omitempty"`
	Why      string        `json:"why,omitempty"`
	Sent     offpeak.Bytes `json:"sent_bytes"`
	Received offpeak.Bytes `json:"received_bytes"`
	Last     time.Time     `json:"last_at"`
}

// Others stands for the destinations of a job that were one too many to be told
// apart.
const Others = "others"

// Reached is what the job did, in the order in which it began to.
func (g *Gate) Reached() []Reached {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]Reached, len(g.order))
	for i, host := range g.order {
		out[i] = *g.seen[host]
	}
	return out
}

// note changes the report on a destination.
func (g *Gate) note(host string, change func(*Reached)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.seen[host]
	if r == nil && len(g.order) >= maxHosts {
		host = Others
		r = g.seen[host]
	}
	if r == nil {
		r = &Reached{Host: host}
		g.seen[host], g.order = r, append(g.order, host)
	}
	change(r)
	r.Last = g.p.cfg.Now().UTC().Truncate(time.Second)
}

// moves counts bytes, and says whether the job may go on.
func (g *Gate) moves(host string, sent, received int) bool {
	g.note(host, func(r *Reached) {
		r.Sent += offpeak.Bytes(sent)
		r.Received += offpeak.Bytes(received)
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	g.moved += offpeak.Bytes(sent + received)
	return g.p.cfg.Total <= 0 || g.moved <= g.p.cfg.Total
}

// spent says that the job has moved all that it may.
func (g *Gate) spent() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.p.cfg.Total > 0 && g.moved >= g.p.cfg.Total
}

// allows says whether the job asked for a destination when it was submitted.
func (g *Gate) allows(d offpeak.Destination) bool {
	return slices.ContainsFunc(g.allow, func(a string) bool {
		may, err := offpeak.ParseDestination(a)
		return err == nil && !d.Below && may.Covers(d)
	})
}
