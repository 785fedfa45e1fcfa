// Package arrays stays with an array of jobs for a person: how the whole stands in
// a line, what its members print, each line with the member's index before it, and
// what they leave behind, a folder each.
//
// It knows no flags; package people holds the commands. A Whole belongs to one
// goroutine; it starts its own and waits for them.
package arrays

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"offpeak"
	"offpeak/cmd/offpeak/cli/follow"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/transfer"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

const (
	// atOnce is how many members' logs are followed at once.
	atOnce = 16
	// pace is the shortest time between two lines of progress.
	pace = 2 * time.Second
	// net is how often is looked without having been told.
	net = 15 * time.Second
	// rest is the shortest time between two looks, so that a burst of events is one.
	rest = 300 * time.Millisecond
	// longest is the longest line that is waited for to end.
	longest = 64 << 10
)

// Whole is one array.
type Whole struct {
	Env  world.Env
	Hub  *remote.Hub
	Note func(line string)
	Desk transfer.Desk
	ID   offpeak.GroupID
	// Quiet leaves out how the whole fares, Raw passes control characters on to a
	// terminal.
	Quiet, Raw bool
}

// Code is the exit code that stands for how an array ended.
func Code(g offpeak.Group) int {
	switch g.State {
	case offpeak.JobSucceeded:
		return 0
	case offpeak.JobCancelled:
		return follow.ExitCancelled
	}
	return 1
}

// Exit turns the end of an array into the end of a command.
func Exit(g offpeak.Group) error {
	if code := Code(g); code != 0 {
		return &world.ExitError{Code: code}
	}
	return nil
}

// Counts says in a line how many members are in each state.
func Counts(g offpeak.Group) string {
	var parts []string
	for _, s := range offpeak.JobStates() {
		if n := g.Counts[s]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	return strings.Join(parts, ", ")
}

// Progress says in a line how far an array is.
func Progress(g offpeak.Group) string {
	done := 0
	for s, n := range g.Counts {
		if s.Terminal() {
			done += n
		}
	}
	return fmt.Sprintf("%d of %d ended: %s", done, g.Members, Counts(g))
}

// Get returns the array as it is.
func (w *Whole) Get(ctx context.Context) (offpeak.Group, error) {
	return remote.Ask(ctx, w.Hub, remote.Following, func(ctx context.Context, d *wire.Direct) (offpeak.Group, error) { return d.Group(ctx, w.ID) })
}

// Wait returns the array once all its members have ended, however often the hub
// restarts.
func (w *Whole) Wait(ctx context.Context) (offpeak.Group, error) {
	for {
		g, err := remote.Ask(ctx, w.Hub, remote.Following, func(ctx context.Context, d *wire.Direct) (offpeak.Group, error) {
			return d.WaitGroup(ctx, w.ID, 20*time.Second)
		})
		if err != nil || g.State.Terminal() {
			return g, err
		}
	}
}

// Members lists members in states (all if there are none) by index.
func (w *Whole) Members(ctx context.Context, states ...offpeak.JobState) ([]offpeak.Job, error) {
	var out []offpeak.Job
	q := url.Values{"group": {string(w.ID)}, "limit": {"500"}}
	for _, s := range states {
		q.Add("state", string(s))
	}
	for {
		page, err := remote.Ask(ctx, w.Hub, remote.Following, func(ctx context.Context, d *wire.Direct) (wire.List[offpeak.Job], error) { return d.Jobs(ctx, q) })
		if err != nil {
			return nil, err
		}
		if out = append(out, page.Items...); page.Next == "" {
			break
		}
		q.Set("cursor", page.Next)
	}
	slices.SortFunc(out, func(a, b offpeak.Job) int { return a.Index - b.Index })
	return out, nil
}

// begun are the states of members that may have a log.
func begun() []offpeak.JobState {
	return slices.DeleteFunc(offpeak.JobStates(), func(s offpeak.JobState) bool { return s == offpeak.JobBlocked })
}

// Cancel cancels the whole.
func (w *Whole) Cancel(ctx context.Context) error {
	op := remote.NewOp()
	return w.Hub.Call(ctx, remote.Mutating, func(ctx context.Context, d *wire.Direct) error {
		_, err := d.CancelGroup(ctx, op, w.ID)
		return err
	})
}

// OrLeave follows the array while signals may ask to leave or to cancel it.
func (w *Whole) OrLeave(ctx context.Context, signals <-chan os.Signal) (offpeak.Group, error) {
	return follow.OrLeave(ctx, signals, w.Follow, follow.Leave{
		Env: w.Env, Note: w.Note, What: "array", GoOn: "offpeak logs -f " + string(w.ID), Cancel: w.Cancel,
	})
}

// Logs prints what the members have written, one after another, and only records
// that pick takes.
func (w *Whole) Logs(ctx context.Context, pick func(index int, rec wire.LogRecord) (bool, error)) error {
	members, err := w.Members(ctx, begun()...)
	if err != nil {
		return err
	}
	out := w.lines()
	for _, j := range members {
		if j.Attempt > 0 {
			err = errors.Join(err, w.member(ctx, out, j.Index, false, pick))
		}
	}
	return errors.Join(err, out.close())
}

func (w *Whole) member(ctx context.Context, out *lines, index int, on bool, pick func(int, wire.LogRecord) (bool, error)) error {
	err := w.Hub.FollowLog(ctx, w.ID.Member(index), on, func(rec wire.LogRecord) error {
		if pick != nil {
			if take, err := pick(index, rec); err != nil || !take {
				return err
			}
		}
		return out.write(index, rec)
	})
	return errors.Join(err, out.end(index))
}

// Follow prints what members write and says how the whole fares, until all have
// ended.
func (w *Whole) Follow(ctx context.Context) (offpeak.Group, error) { return w.FollowOnly(ctx, nil) }

// FollowOnly is Follow for the records that pick takes.
func (w *Whole) FollowOnly(ctx context.Context, pick func(index int, rec wire.LogRecord) (bool, error)) (offpeak.Group, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	kick := make(chan struct{}, 1)
	kicked := func() {
		select {
		case kick <- struct{}{}:
		default:
		}
	}
	todo := newPile()
	out := w.lines()
	var all sync.WaitGroup
	// Whatever was missed while there was no stream of events is found by a look.
	look := make(chan struct{}, 1)
	missed := func() {
		select {
		case look <- struct{}{}:
		default:
		}
		kicked()
	}
	missed()
	all.Go(func() {
		// Without events the array is still followed, only less promptly.
		if err := w.Hub.Events(ctx, "", "", missed, func(e offpeak.Event) error {
			g, index, ok := e.Job.Member()
			if ok && g == w.ID {
				if e.Attempt > 0 {
					todo.add(index)
				}
				kicked()
			}
			return nil
		}); err != nil && ctx.Err() == nil {
			w.Note("no events: " + err.Error())
		}
	})
	failed := make(chan error, atOnce)
	var readers sync.WaitGroup
	for range atOnce {
		readers.Go(func() {
			for index, ok := todo.next(); ok; index, ok = todo.next() {
				if err := w.member(ctx, out, index, true, pick); err != nil {
					failed <- err
					todo.close()
					return
				}
			}
		})
	}
	g, err := w.watch(ctx, kick, look, todo, failed)
	if err != nil {
		stop()
	}
	todo.close()
	readers.Wait()
	stop()
	all.Wait()
	select {
	case first := <-failed:
		err = errors.Join(err, first)
	default:
	}
	return g, errors.Join(err, out.close())
}

// watch says how the array fares until all members have ended and their logs are on
// the pile.
func (w *Whole) watch(ctx context.Context, kick, look <-chan struct{}, todo *pile, failed chan error) (offpeak.Group, error) {
	said, at := "", time.Time{}
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return offpeak.Group{}, ctx.Err()
		case err := <-failed:
			return offpeak.Group{}, err
		case <-kick:
		case <-next.C:
		}
		g, err := w.Get(ctx)
		if err != nil {
			return g, err
		}
		ended := g.State.Terminal()
		select {
		case <-look:
			err = w.pile(ctx, todo)
		default:
			if ended {
				err = w.pile(ctx, todo)
			}
		}
		if err != nil {
			return g, err
		}
		again := net
		if line := Progress(g); line != said && !w.Quiet {
			if ago := time.Since(at); ago >= pace || ended {
				said, at = line, time.Now()
				w.Note(line)
			} else {
				again = pace - ago
			}
		}
		if ended {
			return g, nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(rest):
		}
		next.Reset(again)
	}
}

// pile puts all members on the pile that have begun.
func (w *Whole) pile(ctx context.Context, todo *pile) error {
	members, err := w.Members(ctx, begun()...)
	if err != nil {
		return err
	}
	for _, j := range members {
		if j.Attempt > 0 {
			todo.add(j.Index)
		}
	}
	return nil
}

// Ended says what an array that did not succeed leaves to do.
func (w *Whole) Ended(ctx context.Context, g offpeak.Group) {
	if g.State != offpeak.JobFailed {
		return
	}
	failed, err := w.Members(ctx, offpeak.JobFailed)
	if err != nil || len(failed) == 0 {
		return
	}
	var list []int
	first := failed[0].Index
	for _, j := range failed {
		list = append(list, j.Index)
		if j.Reason != offpeak.EndGangFailed {
			first = j.Index // the others of its gang ended for its sake
		}
	}
	const most = 20
	x := offpeak.IndexesOf(list[:min(most, len(list))]).String()
	if len(list) > most {
		x += ", …"
	}
	w.Note(fmt.Sprintf("failed: %s; read offpeak logs %s --index %d; again: offpeak retry --failed %s", x, w.ID, first, w.ID))
}

// Fetch lays the outputs of members that succeeded out in folders named by index.
func (w *Whole) Fetch(ctx context.Context, out string) (folders []string, err error) {
	members, err := w.Members(ctx, offpeak.JobSucceeded)
	if err != nil {
		return nil, err
	}
	for _, j := range members {
		if j.Output == "" {
			continue
		}
		folder := filepath.Join(out, strconv.Itoa(j.Index))
		if err := w.Desk.Fetch(ctx, j.Output, j.Spec.Task.Outputs, folder); err != nil {
			return folders, fmt.Errorf("member %d: %w", j.Index, err)
		}
		folders = append(folders, folder)
	}
	return folders, nil
}

// pile is members whose logs are to be followed, each once.
type pile struct {
	mu     sync.Mutex // guards what follows
	cond   *sync.Cond
	seen   map[int]bool
	list   []int
	closed bool
}

func newPile() *pile {
	p := &pile{seen: map[int]bool{}}
	p.cond = sync.NewCond(&p.mu)
	return p
}

func (p *pile) add(index int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.seen[index] {
		p.seen[index], p.list = true, append(p.list, index)
		p.cond.Signal()
	}
}

// next waits for one; ok is false when there will be none.
func (p *pile) next() (index int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.list) == 0 && !p.closed {
		p.cond.Wait()
	}
	if len(p.list) == 0 {
		return 0, false
	}
	index, p.list = p.list[0], p.list[1:]
	return index, true
}

// close lets next end once the pile is empty.
func (p *pile) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cond.Broadcast()
}

// lines writes whole lines, each with the member's index before it.
type lines struct {
	mu   sync.Mutex // guards what follows
	sink *follow.Sink
	rest map[part][]byte
}

// part is one stream of one member.
type part struct {
	index  int
	stream string
}

func (w *Whole) lines() *lines {
	f := follow.New(follow.Config{Env: w.Env, Hub: w.Hub, Note: w.Note, Raw: w.Raw})
	return &lines{sink: f.Logs(), rest: map[part][]byte{}}
}

func (l *lines) write(index int, rec wire.LogRecord) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := part{index, rec.Stream}
	data := slices.Concat(l.rest[at], rec.Data)
	end := bytes.LastIndexByte(data, '\n') + 1
	// A line without end is cut where it would have to be kept for ever.
	if len(data)-end > longest {
		end = len(data)
	}
	l.rest[at] = data[end:]
	return l.put(at, data[:end])
}

func (l *lines) put(at part, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	var out bytes.Buffer
	for line := range bytes.Lines(data) {
		fmt.Fprintf(&out, "[%d] %s", at.index, line)
	}
	if data[len(data)-1] != '\n' {
		out.WriteByte('\n')
	}
	to := l.sink.Stdout
	if at.stream == "stderr" {
		to = l.sink.Stderr
	}
	_, err := to.Write(out.Bytes())
	return err
}

// end writes what a member left without an end of line.
func (l *lines) end(index int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, stream := range []string{"stdout", "stderr"} {
		at := part{index, stream}
		errs = append(errs, l.put(at, l.rest[at]))
		delete(l.rest, at)
	}
	return errors.Join(errs...)
}

func (l *lines) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sink.Close()
}
