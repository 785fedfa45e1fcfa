package hub

import "sync"

// bells wake those who wait for something to happen to one object. A bell
// exists only while somebody listens.
type bells struct {
	mu    sync.Mutex
	byKey map[string]*bell
}

type bell struct {
	rung      chan struct{} // closed when it rings, then replaced
	listeners int
}

// listen begins to listen: what happens after it returns will be heard.
func (b *bells) listen(key string) *listener {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.byKey[key]
	if e == nil {
		e = &bell{rung: make(chan struct{})}
		b.byKey[key] = e
	}
	e.listeners++
	return &listener{bells: b, key: key, bell: e}
}

// ring wakes all who listen to key.
func (b *bells) ring(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.byKey[key]; e != nil {
		close(e.rung)
		e.rung = make(chan struct{})
	}
}

// listener is one who listens to one bell.
type listener struct {
	bells *bells
	key   string
	bell  *bell
}

// next returns a channel that is closed when the bell rings after the call:
// take it first, look at the object, then wait.
func (l *listener) next() <-chan struct{} {
	l.bells.mu.Lock()
	defer l.bells.mu.Unlock()
	return l.bell.rung
}

// stop ends listening.
func (l *listener) stop() {
	l.bells.mu.Lock()
	defer l.bells.mu.Unlock()
	if l.bell.listeners--; l.bell.listeners == 0 {
		delete(l.bells.byKey, l.key)
	}
}
