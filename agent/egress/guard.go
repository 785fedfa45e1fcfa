package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"offpeak"
)

// closedError says that an address must not be reached, and what it is.
type closedError struct {
	addr netip.Addr
	is   string
}

func (e *closedError) Error() string { return e.addr.String() + " is " + e.is }

// guard returns a *closedError for an address that no job may reach: all that is not
// public, and what is of this machine or its network though it looks public.
func (p *Proxy) guard(a netip.Addr) error {
	if is := offpeak.ClosedAddr(a); is != "" {
		return &closedError{a, is}
	}
	near, err := p.cfg.Nearby()
	if err != nil {
		return fmt.Errorf("look at this machine's addresses: %w", err)
	}
	for _, n := range near {
		if n.Contains(a) {
			return &closedError{a, "of this machine or its network"}
		}
	}
	return nil
}

// site is how much of IPv6 around an own address is taken for the same home: one
// customer gets no more than that, and what is in the next room may be in another
// part of it.
const site = 48

// nearby are the networks that the machine's interfaces are in.
func nearby() ([]netip.Prefix, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	return networks(list), nil
}

func networks(list []net.Addr) (out []netip.Prefix) {
	for _, a := range list {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		addr, ok := netip.AddrFromSlice(n.IP)
		if !ok {
			continue
		}
		addr = addr.Unmap()
		bits, _ := n.Mask.Size()
		if addr.Is6() {
			bits = min(bits, site)
		}
		if prefix, err := addr.Prefix(bits); err == nil {
			out = append(out, prefix)
		}
	}
	return out
}

// resolver asks for a whole name: no search domain is tried.
func resolver(r *net.Resolver) func(context.Context, string) ([]netip.Addr, error) {
	return func(ctx context.Context, name string) ([]netip.Addr, error) {
		return r.LookupNetIP(ctx, "ip", name+".")
	}
}

// addresses are where a destination is, all of them open.
func (p *Proxy) addresses(ctx context.Context, d offpeak.Destination) ([]netip.Addr, error) {
	if d.Addr.IsValid() {
		return []netip.Addr{d.Addr}, p.guard(d.Addr)
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Times.Resolve)
	defer cancel()
	list, err := p.cfg.Resolve(ctx, d.Name)
	if err != nil {
		return nil, &refusal{code: 502, why: "the name " + d.Name + " is not known", more: err.Error()}
	}
	for i := range list {
		list[i] = list[i].Unmap()
		if err := p.guard(list[i]); err != nil {
			return nil, err
		}
	}
	if len(list) == 0 {
		return nil, &refusal{code: 502, why: "the name " + d.Name + " has no address"}
	}
	return list[:min(len(list), maxAddrs)], nil
}

// dial connects to a destination.
func (p *Proxy) dial(ctx context.Context, d offpeak.Destination) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Times.Dial)
	defer cancel()
	list, err := p.addresses(ctx, d)
	if err != nil {
		return nil, closed(d, err)
	}
	var errs []error
	for i, a := range list {
		to := netip.AddrPortFrom(a, d.Port)
		if err := p.hops.far(ctx, p, to); err != nil {
			return nil, closed(d, err)
		}
		// Each address gets its share of what time is left.
		once := ctx
		if end, ok := ctx.Deadline(); ok && i < len(list)-1 {
			var stop context.CancelFunc
			once, stop = context.WithTimeout(ctx, time.Until(end)/time.Duration(len(list)-i))
			defer stop()
		}
		c, err := p.connect(once, to, 0)
		if err == nil {
			return c, nil
		}
		if _, ok := errors.AsType[*closedError](err); ok {
			return nil, closed(d, err)
		}
		errs = append(errs, err)
	}
	return nil, &refusal{code: 502, why: d.String() + " can't be reached", more: errors.Join(errs...).Error()}
}

// closed tells the job that a destination is closed, and the owner where it led: the
// addresses of a home are nothing that a job must learn.
func closed(d offpeak.Destination, err error) error {
	if bad, ok := errors.AsType[*closedError](err); ok {
		return &refusal{code: 403, why: d.String() + " is not a public host: its address is " + bad.is, more: bad.Error()}
	}
	if _, ok := errors.AsType[*refusal](err); ok {
		return err
	}
	return &refusal{code: 502, why: d.String() + " can't be reached", more: err.Error()}
}

// ownAddrs are the addresses of the machine's interfaces.
func ownAddrs() (out []netip.Addr, err error) {
	list, err := net.InterfaceAddrs()
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(n.IP); ok {
				out = append(out, addr.Unmap())
			}
		}
	}
	return out, err
}
