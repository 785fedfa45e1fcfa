package transfer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"offpeak"
	"offpeak/agent/state"
	"offpeak/blob"
	"offpeak/wire"
)

// packTries is how often an entry that changes while it is packed is packed
// again before it is left for later.
const packTries = 3

// Checkpoints stores a job's checkpoints: the newest whole entry of its checkpoint
// folder, at most once in the task's interval, and what is left at the end. One
// goroutine at a time uses it.
type Checkpoints struct {
	lease *Lease
	// old are the entries that were there when the newest of them was stored. What
	// is not among them came later, whatever the times of the files say: a clock
	// may have been set back.
	old  map[entry]bool
	last time.Duration
	any  bool
}

// entry tells one state of one entry of the checkpoint folder from another.
type entry struct {
	name  string
	mtime time.Time
	size  int64
}

// NewCheckpoints returns the checkpoints of an attempt. restored says that what
// lies in the folder was just fetched and is no news.
func NewCheckpoints(l *Lease, restored bool) *Checkpoints {
	s := &Checkpoints{lease: l}
	if restored {
		if dir, err := s.open(); err == nil {
			s.old = entries(dir)
			dir.Close()
		}
	}
	return s
}

func (s *Checkpoints) open() (*os.Root, error) {
	work, err := s.lease.Folder.Work()
	if err != nil {
		return nil, err
	}
	defer work.Close()
	return work.OpenRoot(s.lease.Checkpoints)
}

// empty says, at little cost, that there is nothing at all.
func (s *Checkpoints) empty() bool {
	names := strings.Split(s.lease.Checkpoints, string(filepath.Separator))
	return s.lease.Folder.Empty(append([]string{state.WorkDir}, names...)...)
}

// entries lists the whole entries: what was renamed into place. Names that say
// "not yet" are left alone, and so is what is neither file nor folder.
func entries(dir *os.Root) map[entry]bool {
	f, err := dir.Open(".")
	if err != nil {
		return nil
	}
	defer f.Close()
	list, err := f.ReadDir(-1)
	if err != nil {
		return nil
	}
	out := map[entry]bool{}
	for _, e := range list {
		name := e.Name()
		if strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".tmp") || strings.HasSuffix(name, ".part") || (!e.Type().IsRegular() && !e.IsDir()) {
			continue
		}
		if info, err := e.Info(); err == nil {
			out[entry{name: name, mtime: info.ModTime(), size: info.Size()}] = true
		}
	}
	return out
}

// newest returns the newest of the entries that are not old.
func newest(all, old map[entry]bool) (best entry, found bool) {
	for e := range all {
		if old[e] {
			continue
		}
		if !found || e.mtime.After(best.mtime) || e.mtime.Equal(best.mtime) && e.name > best.name {
			best, found = e, true
		}
	}
	return best, found
}

// Run stores checkpoints, one in every so long at most, until ctx is done.
func (s *Checkpoints) Run(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(min(max(every/4, 50*time.Millisecond), time.Second))
	defer tick.Stop()
	failures := 0
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if s.any && s.lease.Boot()-s.last < every {
			continue
		}
		err := s.flush(ctx, 1)
		switch {
		case err == nil, errors.Is(err, blob.ErrChanged), errors.Is(err, fs.ErrNotExist):
			// A job may replace or remove what is being packed: there will be another.
			failures = 0
		case ctx.Err() != nil:
			return
		case errors.Is(err, offpeak.ErrStaleLease):
			s.lease.Stale()
			return
		default:
			failures++
			s.lease.Log.Warn("store checkpoint", "error", err)
			if s.lease.Pause(ctx, failures) != nil {
				return
			}
		}
	}
}

// Pending says that there is a checkpoint which the hub does not have.
func (s *Checkpoints) Pending() bool {
	if s.empty() {
		return false
	}
	dir, err := s.open()
	if err != nil {
		return false
	}
	defer dir.Close()
	_, found := newest(entries(dir), s.old)
	return found
}

// FlushLast stores the newest entry of a job that is gone, if the hub does not
// have it.
func (s *Checkpoints) FlushLast(ctx context.Context) error { return s.flush(ctx, packTries) }

// flush stores the newest entry, if the hub does not have it.
func (s *Checkpoints) flush(ctx context.Context, tries int) error {
	if s.empty() {
		return nil
	}
	dir, err := s.open()
	if err != nil {
		return nil // the job removed its folder: there is nothing to store
	}
	defer dir.Close()
	for ; ; tries-- {
		all := entries(dir)
		e, found := newest(all, s.old)
		if !found {
			return nil
		}
		err := s.store(ctx, dir, e)
		if err == nil {
			s.old, s.last, s.any = all, s.lease.Boot(), true
			return nil
		}
		if tries <= 1 || !errors.Is(err, blob.ErrChanged) && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
}

func (s *Checkpoints) store(ctx context.Context, dir *os.Root, e entry) error {
	ran := s.lease.Ran()
	packed, err := blob.Pack(ctx, dir, []string{literal(e.name)}, blob.PackOptions{RefuseLinks: true})
	if errors.Is(err, offpeak.ErrNotFound) {
		err = errors.Join(fs.ErrNotExist, err)
	}
	if err != nil {
		return fmt.Errorf("pack %s: %w", e.name, err)
	}
	s.lease.skipped(packed)
	tree, err := blob.Upload(ctx, remote{s.lease}, packed, nil)
	if err != nil {
		return fmt.Errorf("upload %s: %w", e.name, err)
	}
	in := wire.NewCheckpoint{Attempt: s.lease.Attempt, Name: e.name, Tree: tree, Metered: ran, Size: packed.Size()}
	err = s.lease.Link.Call(ctx, func(ctx context.Context, d *wire.Direct) error {
		_, err := d.AddCheckpoint(ctx, s.lease.ID, in)
		return err
	})
	if err != nil {
		return fmt.Errorf("declare %s: %w", e.name, err)
	}
	s.lease.Log.Info("checkpoint stored", "name", e.name, "size", in.Size, "ran_ms", int64(ran))
	return nil
}

// literal is the pattern that matches a name and nothing else.
func literal(name string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(name)
}
