package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"offpeak"
)

// An owner's router has a public address too, on its far side, and many serve
// their own pages there for whoever asks from within. No table knows it. But what
// is sent so that it may travel one hop only is answered by the router itself and by
// nobody behind it.

const (
	// hopKept is how long an address is known to be further away, maxHops how many
	// are.
	hopKept = 10 * time.Minute
	maxHops = 1024
)

// hops remembers which addresses answer from one hop away, and of which ports it is
// known that they don't: a router may be silent on one and not on another.
type hops struct {
	mu    sync.Mutex
	near  map[netip.Addr]time.Time     // guarded by mu; until when
	known map[netip.AddrPort]time.Time // guarded by mu; until when
}

// far returns a *closedError for what answers from one hop away.
func (h *hops) far(ctx context.Context, p *Proxy, to netip.AddrPort) error {
	now := time.Now()
	h.mu.Lock()
	until, near := h.known[to], h.near[to.Addr()]
	h.mu.Unlock()
	switch {
	case now.Before(near):
		return nextDoor(to)
	case now.Before(until):
		return nil
	}
	once, cancel := context.WithTimeout(ctx, p.cfg.Times.Hop)
	defer cancel()
	c, err := p.connect(once, to, 1)
	if err == nil {
		c.Close()
	}
	if err == nil || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.near == nil || len(h.near) >= maxHops {
			h.near = map[netip.Addr]time.Time{}
		}
		h.near[to.Addr()] = now.Add(hopKept)
		return nextDoor(to)
	}
	if _, ok := errors.AsType[*closedError](err); ok {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known == nil || len(h.known) >= maxHops {
		h.known = map[netip.AddrPort]time.Time{}
	}
	h.known[to] = now.Add(hopKept)
	return nil
}

func nextDoor(to netip.AddrPort) error {
	return &closedError{to.Addr(), "one hop away, so it is the router of this machine's network"}
}

// connect connects to an address, if that is open at the moment in which the kernel
// is about to. hops bounds how far packets travel; 0 doesn't.
func (p *Proxy) connect(ctx context.Context, to netip.AddrPort, hops int) (net.Conn, error) {
	d := net.Dialer{
		KeepAlive: 30 * time.Second,
		Control: func(network, address string, raw syscall.RawConn) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil {
				return err
			}
			if err := p.guard(at.Addr()); err != nil {
				return err
			}
			if at != to || at.Port() == 25 {
				return &closedError{at.Addr(), "not what was asked for"}
			}
			if hops == 0 {
				return nil
			}
			return limitHops(raw, at.Addr().Is6(), hops)
		},
	}
	return d.DialContext(ctx, "tcp", to.String())
}

// Verify returns nil if the guard closes this machine and the routers that it knows
// of, else which of them a job could reach. It sends nothing that travels further
// than one hop.
func (p *Proxy) Verify(ctx context.Context) error {
	for _, a := range Around() {
		d := offpeak.Destination{Addr: a, Port: 80}
		if _, err := p.addresses(ctx, d); err != nil {
			continue
		}
		if err := p.hops.far(ctx, p, netip.AddrPortFrom(a, d.Port)); err == nil {
			return &openError{a}
		}
	}
	return nil
}

type openError struct{ addr netip.Addr }

func (e *openError) Error() string {
	return "a job could reach " + e.addr.String() + ", which is this machine or its router"
}
