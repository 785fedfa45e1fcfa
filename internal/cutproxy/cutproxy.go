// Package cutproxy is a proxy before a PostgreSQL server that cuts connections
// where it hurts: right before a COMMIT reaches the server, right after, when
// nobody can say whether it happened, and once it happened and nobody was told.
// It can also refuse, reset and stall connections.
//
// It understands as much of the wire protocol as it takes to see a transaction
// end (see ends), whether simple or extended, pipelined or not; all bytes pass
// unchanged. It is tested with a real client before a real server.
//
// A Proxy belongs to one test. All its methods are safe for concurrent use.
package cutproxy

import (
	"context"
	"errors"
	"net"
	"net/url"
	"sync"
	"testing"
)

// Cut is where a connection is cut.
type Cut int

// The cuts. In each the client sees its connection reset and no answer.
const (
	// None lets the commit pass.
	None Cut = iota
	// Before: the server never sees the commit, and rolls back.
	Before
	// During: the server gets the commit, and the client learns of the cut at
	// once, while the server may still be at it. What the client does next may
	// overtake it, and may be to cancel it.
	During
	// After: the client learns of the cut when the server is done with the commit.
	After
	cuts
)

func (c Cut) String() string { return [cuts]string{"none", "before", "during", "after"}[c] }

// Counts is what a proxy has seen and done.
type Counts struct {
	// Commits are all ends of transactions that may have written, those that
	// were cut too.
	Commits int
	// Before, During and After are the cuts of each kind.
	Before, During, After int
	// Refused are connections that were not let in, Reset those that Reset cut.
	Refused, Reset int
}

// Proxy is a listener whose connections lead to one server.
type Proxy struct {
	server   string
	listener net.Listener
	wait     sync.WaitGroup

	mu     sync.Mutex // guards what follows
	links  map[*link]bool
	decide func() Cut
	refuse bool
	// open is closed while traffic passes.
	open   chan struct{}
	closed bool
	counts Counts
}

// Start starts a proxy before the server at an address, which ends with the test.
func Start(t testing.TB, server string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{server: server, listener: l, links: map[*link]bool{}, decide: none, open: make(chan struct{})}
	close(p.open)
	p.wait.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

func none() Cut { return None }

// Addr is where the proxy listens.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// URL is a database's URL with the way through the proxy.
func (p *Proxy) URL(t testing.TB, database string) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = p.Addr()
	return u.String()
}

// Decide has f asked at every commit where to cut, one at a time; nil cuts none.
// F may not call the proxy.
func (p *Proxy) Decide(f func() Cut) {
	if f == nil {
		f = none
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decide = f
}

// Next cuts the coming commits in this order, and none after them.
func (p *Proxy) Next(cuts ...Cut) {
	p.Decide(func() Cut {
		if len(cuts) == 0 {
			return None
		}
		c := cuts[0]
		cuts = cuts[1:]
		return c
	})
}

// Refuse says whether new connections are reset at once.
func (p *Proxy) Refuse(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = on
}

// Stall says whether nothing passes, in either direction: connections stay open
// and new ones are accepted, as before a server that hangs.
func (p *Proxy) Stall(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	stalled := false
	select {
	case <-p.open:
	default:
		stalled = true
	}
	switch {
	case on && !stalled:
		p.open = make(chan struct{})
	case !on && stalled:
		close(p.open)
	}
}

// Reset cuts all connections as they are, and says how many there were.
func (p *Proxy) Reset() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
	p.counts.Reset += len(p.links)
	n := len(p.links)
	clear(p.links)
	return n
}

// Counts is what has happened so far.
func (p *Proxy) Counts() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts
}

func (p *Proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for l := range p.links {
		l.cut()
	}
	p.mu.Unlock()
	p.wait.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.wait.Go(func() { p.serve(client.(*net.TCPConn)) })
	}
}

// serve carries one connection until an end of it is closed.
func (p *Proxy) serve(client *net.TCPConn) {
	if p.refused() {
		reset(client)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &link{proxy: p, client: client, ended: ctx.Done(), end: cancel, statements: map[string]effects{}, portals: map[string]effects{}}
	defer l.cut()
	if !p.add(l) {
		return
	}
	defer p.remove(l)
	server, err := new(net.Dialer).DialContext(ctx, "tcp", p.server)
	if err != nil {
		return // the server is down, as the client sees by the reset
	}
	if !l.join(server.(*net.TCPConn)) {
		return
	}
	l.carry()
}

func (p *Proxy) refused() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse {
		p.counts.Refused++
	}
	return p.refuse
}

func (p *Proxy) add(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.links[l] = true
	}
	return !p.closed
}

func (p *Proxy) remove(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// commit counts a commit and says where to cut it.
func (p *Proxy) commit() Cut {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts.Commits++
	c := p.decide()
	switch c {
	case Before:
		p.counts.Before++
	case During:
		p.counts.During++
	case After:
		p.counts.After++
	}
	return c
}

// passing waits while the proxy is stalled. It is false when the connection has
// ended.
func (p *Proxy) passing(ended <-chan struct{}) bool {
	p.mu.Lock()
	open := p.open
	p.mu.Unlock()
	select {
	case <-open:
		return true
	case <-ended:
		return false
	}
}

// reset closes a connection so that its other end sees it reset.
func reset(c *net.TCPConn) {
	// Whoever is closed already has no need of it.
	_ = errors.Join(c.SetLinger(0), c.Close())
}
