// Package warm keeps idle supervisors ready, so that a job's start costs no
// more than a fork.
//
// It owns the folder in which supervisors have their own folders: their names,
// and that nothing is left of one that has ended. It knows nothing of leases
// and jobs. A Pool may be used by any number of goroutines; Run fills it until
// its context ends. It is tested over supervisors that are nothing but a state.
package warm

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"offpeak"
	"offpeak/agent/supervisor"
)

// Starter starts supervisor processes and finds those that live.
type Starter interface {
	// Spawn starts an idle supervisor with its socket in dir.
	Spawn(ctx context.Context, dir string) (Supervisor, error)
	// Adopt connects to the supervisor that has its socket in dir; an error
	// means that there is none any more.
	Adopt(ctx context.Context, dir string) (Supervisor, error)
	// Clear takes away what a supervisor that is gone left beside dir: what its
	// job still runs, control groups.
	Clear(dir string) error
}

// Supervisor is one supervisor process.
type Supervisor interface {
	// Do asks for one thing and returns the status after it. An error means
	// that it was refused or that the supervisor is gone.
	Do(ctx context.Context, r supervisor.Request) (supervisor.Status, error)
	// Updates yields a status whenever something changes, the newest if its
	// reader is slow. It is closed when the supervisor is gone.
	Updates() <-chan supervisor.Status
	// Close lets go of the supervisor without ending it.
	Close() error
	// End kills what the supervisor runs, and the supervisor.
	End(ctx context.Context) error
}

// Pool holds idle supervisors and takes them back when their job has gone.
// While jobs come and go
// it keeps more than it was asked to, up to twice as many, since a supervisor
// costs more to start than to keep; when all is quiet the surplus goes.
type Pool struct {
	dir     string
	starter Starter
	warm    int
	log     *slog.Logger
	bound   time.Duration

	// mu guards what follows.
	mu   sync.Mutex
	idle []Slot
	busy int             // taken and not given back
	used map[string]bool // names of folders
	next int
	shut bool
	// kick holds a token while there may be fewer idle ones than wanted.
	kick chan struct{}
}

// surplusFor is how long supervisors beyond those asked for stay idle.
const surplusFor = 30 * time.Second

// Slot is a supervisor and the name of its folder.
type Slot struct {
	Name string
	Sup  Supervisor
	// Last is the lease whose job it ran last, for the next start to forget.
	Last offpeak.LeaseID
}

// New returns a pool over the folder dir that keeps n supervisors ready. bound
// is the time a supervisor has to answer.
func New(dir string, s Starter, n int, bound time.Duration, log *slog.Logger) *Pool {
	return &Pool{dir: dir, starter: s, warm: n, bound: bound, log: log, used: map[string]bool{}, kick: make(chan struct{}, 1)}
}

// Take returns an idle supervisor, a new one if none is ready.
func (p *Pool) Take(ctx context.Context) (Slot, error) {
	p.mu.Lock()
	for n := len(p.idle); n > 0; n = len(p.idle) {
		s := p.idle[n-1]
		p.idle = p.idle[:n-1]
		if alive(s.Sup) {
			p.busy++
			p.mu.Unlock()
			p.wake()
			return s, nil
		}
		p.mu.Unlock()
		s.Sup.Close()
		p.Release(s.Name)
		p.mu.Lock()
	}
	p.busy++
	p.mu.Unlock()
	s, err := p.start(ctx)
	if err != nil {
		p.Returned()
	}
	return s, err
}

// Adopted counts a supervisor that an earlier agent had taken.
func (p *Pool) Adopted() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy++
}

// Returned counts one that is taken no more.
func (p *Pool) Returned() {
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

func (p *Pool) start(ctx context.Context) (Slot, error) {
	name := p.reserve()
	dir := filepath.Join(p.dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		p.Release(name)
		return Slot{}, fmt.Errorf("make supervisor folder: %w", err)
	}
	sup, err := p.starter.Spawn(ctx, dir)
	if err != nil {
		p.Release(name)
		return Slot{}, fmt.Errorf("start supervisor: %w", err)
	}
	return Slot{Name: name, Sup: sup}, nil
}

func (p *Pool) reserve() string {
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

// Release removes what is left of a supervisor that is gone and frees its name.
func (p *Pool) Release(name string) {
	if err := p.starter.Clear(filepath.Join(p.dir, name)); err != nil {
		p.log.Warn("clear away a supervisor", "folder", name, "error", err)
	}
	if err := removeIn(p.dir, name); err != nil {
		p.log.Warn("remove supervisor folder", "folder", name, "error", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.used, name)
}

// Give takes a supervisor back whose job, that of the lease, has exited and was
// reported. One that is not needed or gone is ended.
func (p *Pool) Give(ctx context.Context, s Slot, last offpeak.LeaseID) {
	defer p.Returned()
	if s.Last = last; alive(s.Sup) && p.keep(s) {
		return
	}
	p.End(ctx, s)
}

func (p *Pool) keep(s Slot) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shut || len(p.idle) >= 2*p.warm {
		return false
	}
	p.idle = append(p.idle, s)
	return true
}

// Drop ends a supervisor that was taken.
func (p *Pool) Drop(ctx context.Context, s Slot) {
	defer p.Returned()
	p.End(ctx, s)
}

// End kills what a supervisor runs, and the supervisor.
func (p *Pool) End(ctx context.Context, s Slot) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.bound)
	defer cancel()
	if err := s.Sup.End(ctx); err != nil {
		p.log.Debug("end a supervisor", "folder", s.Name, "error", err)
	}
	p.Release(s.Name)
}

// Do asks a supervisor, bounded in time also when ctx has ended: what ends a
// job must reach it.
func (p *Pool) Do(ctx context.Context, s Supervisor, r supervisor.Request) (supervisor.Status, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.bound)
	defer cancel()
	return s.Do(ctx, r)
}

func (p *Pool) wake() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// Run keeps the pool filled until ctx is done, then ends the idle ones.
func (p *Pool) Run(ctx context.Context, pause func(ctx context.Context, n int) error) error {
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

func (p *Pool) missing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.idle)+p.busy < p.warm || p.warm > 0 && len(p.idle) == 0
}

// trim ends idle supervisors beyond n.
func (p *Pool) trim(ctx context.Context, n int) {
	p.mu.Lock()
	n = min(n, len(p.idle))
	surplus := p.idle[n:]
	p.idle = p.idle[:n:n]
	p.mu.Unlock()
	for _, s := range surplus {
		p.End(ctx, s)
	}
}

// Sweep looks through the folders of supervisors that an earlier agent left:
// those whose name is wanted are returned, all others are ended.
func (p *Pool) Sweep(ctx context.Context, wanted map[string]bool) (map[string]Slot, error) {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return nil, fmt.Errorf("read supervisors: %w", err)
	}
	found := map[string]Slot{}
	for _, e := range entries {
		name := e.Name()
		p.mu.Lock()
		p.used[name] = true
		p.mu.Unlock()
		bounded, cancel := context.WithTimeout(ctx, p.bound)
		sup, err := p.starter.Adopt(bounded, filepath.Join(p.dir, name))
		cancel()
		switch {
		case err != nil:
			p.Release(name)
		case wanted[name]:
			found[name] = Slot{Name: name, Sup: sup}
		default:
			p.log.Info("ending a supervisor that holds no lease", "folder", name)
			p.End(ctx, Slot{Name: name, Sup: sup})
		}
	}
	return found, nil
}

// removeIn removes a folder without leaving the one it lies in.
func removeIn(dir, name string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return root.RemoveAll(name)
}
