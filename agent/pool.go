package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"

	"offpeak/agent/supervisor"
)

// pool keeps idle supervisors ready, so that a job's start costs no more than
// a fork, and takes them back when their job has gone. While jobs come and go
// it keeps more than it was asked to, up to twice as many, since a supervisor
// costs more to start than to keep; when all is quiet the surplus goes.
type pool struct {
	folder folder
	spawn  Supervisors
	warm   int
	log    *slog.Logger
	bound  time.Duration

	// mu guards what follows.
	mu   sync.Mutex
	idle []slot
	busy int             // taken and not given back
	used map[string]bool // names of folders
	next int
	shut bool
	// kick holds a token while there may be fewer idle ones than wanted.
	kick chan struct{}
}

// surplusFor is how long supervisors beyond those asked for stay idle.
const surplusFor = 30 * time.Second

// slot is a supervisor and the name of its folder.
type slot struct {
	name string
	sup  Supervisor
}

func newPool(f folder, s Supervisors, warm int, bound time.Duration, log *slog.Logger) *pool {
	return &pool{folder: f, spawn: s, warm: warm, bound: bound, log: log, used: map[string]bool{}, kick: make(chan struct{}, 1)}
}

// take returns an idle supervisor, a new one if none is ready.
func (p *pool) take(ctx context.Context) (slot, error) {
	p.mu.Lock()
	for n := len(p.idle); n > 0; n = len(p.idle) {
		s := p.idle[n-1]
		p.idle = p.idle[:n-1]
		if alive(s.sup) {
			p.busy++
			p.mu.Unlock()
			p.wake()
			return s, nil
		}
		s.sup.Close()
		delete(p.used, s.name)
	}
	p.busy++
	p.mu.Unlock()
	s, err := p.start(ctx)
	if err != nil {
		p.returned()
	}
	return s, err
}

// adopted counts a supervisor that an earlier agent had taken.
func (p *pool) adopted() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy++
}

// returned counts one that is taken no more.
func (p *pool) returned() {
	p.mu.Lock()
	p.busy--
	p.mu.Unlock()
	p.wake()
}

// alive says that an idle supervisor's connection is still there, and drops
// the updates it pushed.
func alive(s Supervisor) bool {
	for {
		select {
		case _, ok := <-s.Updates():
			if !ok {
				return false
			}
		default:
			return true
		}
	}
}

func (p *pool) start(ctx context.Context) (slot, error) {
	name := p.reserve()
	dir := p.folder.at("supervisors", name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		p.release(name)
		return slot{}, fmt.Errorf("make supervisor folder: %w", err)
	}
	sup, err := p.spawn.Spawn(ctx, dir)
	if err != nil {
		p.release(name)
		return slot{}, fmt.Errorf("start supervisor: %w", err)
	}
	return slot{name, sup}, nil
}

func (p *pool) reserve() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		p.next++
		name := strconv.Itoa(p.next)
		if !p.used[name] {
			p.used[name] = true
			return name
		}
	}
}

// release removes a supervisor's folder and frees its name.
func (p *pool) release(name string) {
	if err := p.folder.remove("supervisors", name); err != nil {
		p.log.Warn("remove supervisor folder", "folder", name, "error", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.used, name)
}

// give takes a supervisor back. One that can't be made idle again is ended.
func (p *pool) give(ctx context.Context, s slot) {
	defer p.returned()
	if alive(s.sup) {
		st, err := p.do(ctx, s.sup, supervisor.Request{Reset: &struct{}{}})
		if err == nil && st.Phase == supervisor.Idle {
			p.mu.Lock()
			if !p.shut && len(p.idle) < 2*p.warm {
				p.idle = append(p.idle, s)
				p.mu.Unlock()
				return
			}
			p.mu.Unlock()
		}
	}
	p.end(ctx, s)
}

// drop ends a supervisor that was taken.
func (p *pool) drop(ctx context.Context, s slot) {
	defer p.returned()
	p.end(ctx, s)
}

// end kills what a supervisor runs, and the supervisor.
func (p *pool) end(ctx context.Context, s slot) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.bound)
	defer cancel()
	if err := s.sup.End(ctx); err != nil {
		p.log.Debug("end a supervisor", "folder", s.name, "error", err)
	}
	p.release(s.name)
}

// do asks a supervisor, bounded in time also when ctx has ended: what ends a
// job must reach it.
func (p *pool) do(ctx context.Context, s Supervisor, r supervisor.Request) (supervisor.Status, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.bound)
	defer cancel()
	return s.Do(ctx, r)
}

func (p *pool) wake() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// run keeps the pool filled until ctx is done, then ends the idle ones.
func (p *pool) run(ctx context.Context, pause func(ctx context.Context, n int) error) error {
	failures := 0
	p.wake()
	quiet := time.NewTimer(surplusFor)
	defer quiet.Stop()
	for {
		select {
		case <-p.kick:
			quiet.Reset(surplusFor)
		case <-quiet.C:
			p.trim(ctx, p.warm)
		case <-ctx.Done():
			p.mu.Lock()
			p.shut = true
			p.mu.Unlock()
			p.trim(ctx, 0)
			return ctx.Err()
		}
		for p.missing() && ctx.Err() == nil {
			s, err := p.start(ctx)
			if err != nil {
				failures++
				p.log.Warn("keep a supervisor ready", "error", err)
				if pause(ctx, failures) != nil {
					break
				}
				continue
			}
			failures = 0
			p.mu.Lock()
			p.idle = append(p.idle, s)
			p.mu.Unlock()
		}
	}
}

func (p *pool) missing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.idle)+p.busy < p.warm || p.warm > 0 && len(p.idle) == 0
}

// trim ends idle supervisors beyond n.
func (p *pool) trim(ctx context.Context, n int) {
	p.mu.Lock()
	n = min(n, len(p.idle))
	surplus := p.idle[n:]
	p.idle = p.idle[:n:n]
	p.mu.Unlock()
	for _, s := range surplus {
		p.end(ctx, s)
	}
}

// sweep looks through the folders of supervisors that an earlier agent left:
// those whose name is wanted are returned, all others are ended.
func (p *pool) sweep(ctx context.Context, wanted map[string]bool) (map[string]slot, error) {
	entries, err := os.ReadDir(p.folder.at("supervisors"))
	if err != nil {
		return nil, fmt.Errorf("read supervisors: %w", err)
	}
	found := map[string]slot{}
	for _, e := range entries {
		name := e.Name()
		p.mu.Lock()
		p.used[name] = true
		p.mu.Unlock()
		bounded, cancel := context.WithTimeout(ctx, p.bound)
		sup, err := p.spawn.Adopt(bounded, p.folder.at("supervisors", name))
		cancel()
		switch {
		case err != nil:
			p.release(name)
		case wanted[name]:
			found[name] = slot{name, sup}
		default:
			p.log.Info("ending a supervisor that holds no lease", "folder", name)
			p.end(ctx, slot{name, sup})
		}
	}
	return found, nil
}
