// Package bell wakes those who wait for something to happen to one object.
//
// It owns who listens to what, and nothing of what has happened: who is woken
// looks for themselves. A listener takes the bell before it looks, so nothing
// falls between the look and the wait. Everything may be called from any number
// of goroutines.
package bell

import "sync"

// Bells wake those who wait for something to happen to one object. A bell
// exists only while somebody listens. The zero value is ready.
type Bells struct {
	mu    sync.Mutex
	byKey map[string]*bell // guarded by mu
}

type bell struct {
	rung      chan struct{} // closed when it rings, then replaced
	listeners int
}

// Listen begins to listen: what happens after it returns will be heard.
func (b *Bells) Listen(key string) *Listener {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.byKey[key]
	if e == nil {
		if b.byKey == nil {
			b.byKey = make(map[string]*bell)
		}
		e = &bell{rung: make(chan struct{})}
		b.byKey[key] = e
	}
	e.listeners++
	return &Listener{bells: b, key: key, bell: e}
}

// Ring wakes all who listen to key.
func (b *Bells) Ring(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.byKey[key]; e != nil {
		close(e.rung)
		e.rung = make(chan struct{})
	}
}

// RingAll wakes everybody.
func (b *Bells) RingAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.byKey {
		close(e.rung)
		e.rung = make(chan struct{})
	}
}

// Listener is one who listens to one bell.
type Listener struct {
	bells *Bells
	key   string
	bell  *bell
}

// Next returns a channel that is closed when the bell rings after the call:
// take it first, look at the object, then wait.
func (l *Listener) Next() <-chan struct{} {
	l.bells.mu.Lock()
	defer l.bells.mu.Unlock()
	return l.bell.rung
}

// Stop ends listening.
func (l *Listener) Stop() {
	l.bells.mu.Lock()
	defer l.bells.mu.Unlock()
	if l.bell.listeners--; l.bell.listeners == 0 {
		delete(l.bells.byKey, l.key)
	}
}
