package access

import (
	"sync"
	"time"

	"offpeak"
)

const (
	// goodFor is how long a good token is believed without asking the store:
	// a revocation through another hub takes that long to be felt.
	goodFor = 5 * time.Second
	// sessionGoodFor is the same for node sessions. They live for minutes
	// anyway, and an agent's every message is fenced by its incarnation.
	sessionGoodFor = time.Minute
	// mostTokens bounds the memory of good tokens.
	mostTokens = 20_000
)

// cache remembers good tokens for seconds.
type cache struct {
	mu   sync.Mutex
	good map[offpeak.TokenID]goodToken
	// session is the session of a node that this hub saw last.
	session map[offpeak.NodeID]offpeak.TokenID
	used    map[offpeak.TokenID]time.Time
	// epoch grows with every revocation, so that a token that was being read
	// while it was revoked is not remembered.
	epoch uint64
}

type goodToken struct {
	token offpeak.Token
	until time.Time
}

func newCache() cache {
	return cache{
		good:    make(map[offpeak.TokenID]goodToken),
		session: make(map[offpeak.NodeID]offpeak.TokenID),
		used:    make(map[offpeak.TokenID]time.Time),
	}
}

func (c *cache) get(id offpeak.TokenID, now time.Time) (t offpeak.Token, ok bool, epoch uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g, there := c.good[id]
	return g.token, there && now.Before(g.until), c.epoch
}

func (c *cache) put(t offpeak.Token, now time.Time, epoch uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if epoch != c.epoch {
		return
	}
	if len(c.good) >= mostTokens {
		clear(c.good)
	}
	life := goodFor
	if t.Role == offpeak.RoleNode {
		life = sessionGoodFor
		c.session[t.Node] = t.ID
	} else {
		c.used[t.ID] = now
	}
	c.good[t.ID] = goodToken{t, now.Add(life)}
}

// drop forgets the tokens that pick says.
func (c *cache) drop(pick func(*offpeak.Token) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	for id, g := range c.good {
		if pick(&g.token) {
			delete(c.good, id)
		}
	}
}

// replace forgets a node's session before the newest one.
func (c *cache) replace(node offpeak.NodeID, id offpeak.TokenID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	delete(c.good, c.session[node])
	if id == "" {
		delete(c.session, node)
	} else {
		c.session[node] = id
	}
}

// take returns when tokens were used since the last call.
func (c *cache) take() map[offpeak.TokenID]time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	used := c.used
	c.used = make(map[offpeak.TokenID]time.Time)
	return used
}
