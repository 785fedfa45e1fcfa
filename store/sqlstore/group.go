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
}

type member[Q, A any] struct {
	q    Q
	a    answer[A]
	done chan struct{}
}

// do does one thing, in company if there is any.
func (g *group[Q, A]) do(ctx context.Context, q Q) (A, error) {
	if g.each {
		a := g.single(ctx, q)
		return a.v, a.err
	}
	m := &member[Q, A]{q: q, done: make(chan struct{})}
	g.mu.Lock()
	g.waiting = append(g.waiting, m)
	first := !g.running
	g.running = true
	g.mu.Unlock()
	if first {
		// Nobody's hurry ends what is done for others too; the engine bounds it.
		go g.batches(context.WithoutCancel(ctx))
	}
	select {
	case <-m.done:
		return m.a.v, m.a.err
	case <-ctx.Done():
		var none A
		return none, fmt.Errorf("wait for the commit, outcome unknown: %w: %w", offpeak.ErrUnavailable, ctx.Err())
	}
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
	if len(batch) > 1 {
		answers, err := g.run(ctx, list)
		switch {
		case err == nil:
			for i, m := range batch {
				m.a = answers[i]
			}
			return
		case broken(err):
			for _, m := range batch {
				m.a.err = err
			}
			return
		}
	}
	// Alone it is clear whose fault it is.
	for _, m := range batch {
		m.a = g.single(ctx, m.q)
	}
}

func (g *group[Q, A]) single(ctx context.Context, q Q) answer[A] {
	answers, err := g.run(ctx, []Q{q})
	if err != nil {
		return answer[A]{err: err}
	}
	return answers[0]
}

// together is a group's run: fn in one transaction. A member that is alone and
// refused leaves nothing to commit.
func together[Q, A any](s *Store, fn func(t *verb, list []Q) ([]answer[A], error)) func(ctx context.Context, list []Q) ([]answer[A], error) {
	return func(ctx context.Context, list []Q) ([]answer[A], error) {
		return transact(ctx, s, func(t *verb) ([]answer[A], error) {
			answers, err := fn(t, list)
			if err == nil && len(list) == 1 {
				err = answers[0].err
			}
			return answers, err
		})
	}
}

// broken says that an error is the disk's or the connection's, not the verb's.
func broken(err error) bool {
	return errors.Is(err, offpeak.ErrStorage) || errors.Is(err, offpeak.ErrUnavailable)
}

// fatal says that an error of one member is that of the whole transaction.
func fatal(err error) bool {
	_, raced := errors.AsType[*RacedError](err)
	return raced || broken(err)
}
