package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"offpeak"
)

// answer is what became of one member of a batch.
type answer[A any] struct {
	v   A
	err error
}

// mostTogether bounds a batch, so that the first is not answered last.
const mostTogether = 256

// group does what comes while a batch is under way together, as the next batch:
// for an engine on which every transaction is a wait of its own.
type group[Q, A any] struct {
	// each has everything done by itself.
	each bool
	// run does a batch in one transaction, which an error undoes.
	run func(ctx context.Context, list []Q) ([]answer[A], error)

	mu      sync.Mutex // guards what follows
	waiting []*member[Q, A]
	running bool
	closed  bool
	// under is the goroutine that does batches, while there are any.
	under sync.WaitGroup
}

type member[Q, A any] struct {
	q    Q
	a    answer[A]
	done chan struct{}
}

// do does one thing, in company if there is any.
func (g *group[Q, A]) do(ctx context.Context, q Q) (A, error) {
	m := &member[Q, A]{q: q, done: make(chan struct{})}
	if !g.join(ctx, m) {
		a := g.single(ctx, q)
		return a.v, a.err
	}
	select {
	case <-m.done:
		return m.a.v, m.a.err
	case <-ctx.Done():
		var none A
		return none, fmt.Errorf("wait for the commit, outcome unknown: %w: %w", offpeak.ErrUnavailable, ctx.Err())
	}
}

// join has a member done in the next batch, unless everything is done by itself.
func (g *group[Q, A]) join(ctx context.Context, m *member[Q, A]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.each || g.closed {
		return false
	}
	g.waiting = append(g.waiting, m)
	if !g.running {
		g.running = true
		// Nobody's hurry ends what is done for others too; the engine bounds it.
		g.under.Go(func() { g.batches(context.WithoutCancel(ctx)) })
	}
	return true
}

// close ends batches once those that wait are done. What comes later is done by itself.
func (g *group[Q, A]) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.under.Wait()
}

// batches runs until nobody waits.
func (g *group[Q, A]) batches(ctx context.Context) {
	for {
		g.mu.Lock()
		n := min(len(g.waiting), mostTogether)
		batch := g.waiting[:n:n]
		g.waiting = g.waiting[n:]
		g.running = n > 0
		g.mu.Unlock()
		if n == 0 {
			return
		}
		g.batch(ctx, batch)
		for _, m := range batch {
			close(m.done)
		}
	}
}

func (g *group[Q, A]) batch(ctx context.Context, batch []*member[Q, A]) {
	list := make([]Q, len(batch))
	for i, m := range batch {
		list[i] = m.q
	}
	answers := apart(list, func(list []Q) ([]answer[A], error) { return g.run(ctx, list) }, refuse[Q, A])
	for i, m := range batch {
		m.a = answers[i]
	}
}

func (g *group[Q, A]) single(ctx context.Context, q Q) answer[A] {
	answers, err := g.run(ctx, []Q{q})
	if err != nil {
		return refuse[Q, A](q, err)
	}
	return answers[0]
}

func refuse[Q, A any](_ Q, err error) answer[A] { return answer[A]{err: err} }

// apart has a list done in one transaction. Where that is refused it tries the halves
// by themselves, and so on down to the members that are refused alone: theirs are the
// answers that refused gives. What breaks the store is nobody's fault, and the answer
// of all who were in it.
func apart[Q, A any](list []Q, run func(list []Q) ([]A, error), refused func(q Q, err error) A) []A {
	out, err := run(list)
	switch {
	case err == nil:
		return out
	case len(list) > 1 && !Broken(err):
		half := len(list) / 2
		return append(apart(list[:half:half], run, refused), apart(list[half:], run, refused)...)
	}
	out = make([]A, len(list))
	for i, q := range list {
		out[i] = refused(q, err)
	}
	return out
}

// writeEach runs a verb that is many, of which each stands alone. An error is that of
// all: nothing was done, or it is ErrUnavailable.
func writeEach[Q, A any](ctx context.Context, s *Store, what string, list []Q, fn func(t *verb, list []Q) ([]A, error), refused func(q Q, err error) A) ([]A, error) {
	var lost error
	tries := 0
	out := apart(list, func(list []Q) ([]A, error) {
		if lost != nil {
			return nil, lost
		}
		tries++
		out, err := transact(ctx, s, func(t *verb) ([]A, error) { return fn(t, list) })
		switch {
		case err == nil || !Broken(err) && ctx.Err() == nil:
		case tries == 1:
			lost = err
		default:
			lost = fmt.Errorf("part of it may be done: %w: %w", offpeak.ErrUnavailable, err)
		}
		return out, err
	}, refused)
	if lost != nil {
		return nil, fmt.Errorf("%s: %w", what, lost)
	}
	return out, nil
}

// together is a group's run: fn in one transaction. A member that is alone and
// refused leaves nothing to commit.
func together[Q, A any](s *Store, fn func(t *verb, list []Q) ([]answer[A], error)) func(ctx context.Context, list []Q) ([]answer[A], error) {
	return func(ctx context.Context, list []Q) ([]answer[A], error) {
		answers, err := transact(ctx, s, func(t *verb) ([]answer[A], error) {
			answers, err := fn(t, list)
			if err == nil && len(list) == 1 {
				err = answers[0].err
			}
			return answers, err
		})
		if err == nil {
			s.verbs.Add(int64(len(list) - 1)) // one was counted with its transaction
		}
		return answers, err
	}
}

// Broken says that an error is the disk's or the connection's, not the verb's.
func Broken(err error) bool {
	return errors.Is(err, offpeak.ErrStorage) || errors.Is(err, offpeak.ErrUnavailable)
}

// fatal says that an error of one member is that of the whole transaction.
func fatal(err error) bool {
	_, raced := errors.AsType[*RacedError](err)
	return raced || Broken(err)
}
