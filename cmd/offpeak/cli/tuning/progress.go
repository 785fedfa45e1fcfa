package tuning

import (
	"fmt"
	"io"
	"sync"
	"time"

	"offpeak/cmd/offpeak/cli/world"
)

// progress tells a person who waits how far something is: on a terminal by a line
// that changes, elsewhere by a line now and then.
type progress struct {
	w        io.Writer
	terminal bool

	mu    sync.Mutex // guards what follows
	what  string
	began time.Time
	told  time.Time
	open  bool // a line is being changed
}

func newProgress(env world.Env) *progress {
	return &progress{w: env.Stderr, terminal: world.Terminal(env.Stderr)}
}

// begin says what is being done from now on.
func (p *progress) begin(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endLocked()
	p.what, p.began = what, time.Now()
	p.told = p.began
}

// at says how far it is, from 0 to 1.
func (p *progress) at(part float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	every := 10 * time.Second
	if p.terminal {
		every = 200 * time.Millisecond
	}
	now := time.Now()
	if now.Sub(p.told) < every {
		return
	}
	p.told = now
	text := fmt.Sprintf("offpeak: %s: %d %%", p.what, int(100*min(max(part, 0), 1)))
	if p.terminal {
		p.open = true
		fmt.Fprintf(p.w, "\r\x1b[K%s", text)
		return
	}
	fmt.Fprintln(p.w, text)
}

// end leaves no line behind.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endLocked()
}

func (p *progress) endLocked() {
	if p.open {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.open = false
	}
}
