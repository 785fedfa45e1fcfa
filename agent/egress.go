package agent

import (
	"errors"
	"maps"

	"offpeak"
	"offpeak/agent/driver"
	"offpeak/agent/driver/relay"
	"offpeak/agent/egress"
)

// openGate opens the way to the network that the job asked for and returns its
// socket, "" where it asked for none.
func (t *attempt) openGate() (string, error) {
	if len(t.Work.Egress) == 0 {
		return "", nil
	}
	if t.a.env.Egress == nil {
		return "", &driver.StartError{Reason: offpeak.EndNodeError, Detail: egress.ErrNotAllowed.Error()}
	}
	g, err := t.a.env.Egress.Open(t.Lease, t.Job, t.Work.Egress)
	if errors.Is(err, egress.ErrNotAllowed) {
		return "", &driver.StartError{Reason: offpeak.EndNodeError, Detail: err.Error()}
	} else if err != nil {
		return "", err
	}
	t.mu.Lock()
	t.gate = g
	t.mu.Unlock()
	return g.Path(), nil
}

// shutGate ends it; kept, the job goes on without this agent and the next opens it
// again.
func (t *attempt) shutGate(kept bool) {
	t.mu.Lock()
	g := t.gate
	t.gate = nil
	t.mu.Unlock()
	switch {
	case g == nil:
	case kept:
		g.Leave()
	default:
		g.Close()
	}
}

// reached is what the job may reach, and what it has.
func (t *attempt) reached() (allowed []string, reached []egress.Reached) {
	t.mu.Lock()
	g := t.gate
	t.mu.Unlock()
	if g == nil {
		return nil, nil
	}
	return g.Allowed(), g.Reached()
}

// proxied puts what programs look for to find the job's proxy into its environment.
func (t *attempt) proxied(env map[string]string) {
	if len(t.Work.Egress) > 0 {
		maps.Copy(env, relay.Environment())
	}
}
