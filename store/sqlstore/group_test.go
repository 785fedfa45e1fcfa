package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"offpeak"
)

// Those that come while a batch is under way are the next one, at most so many; one
// that fails does not fail the others, and what is the connection's fails them all
// without being tried one by one.
func TestGroup(t *testing.T) {
	odd := errors.New("odd")
	lost := fmt.Errorf("lost: %w", offpeak.ErrUnavailable)
	for _, c := range []struct {
		name    string
		members int
		fails   func(list []int) error
		batches []int
		want    func(q int) error
	}{
		{"together", 11, func([]int) error { return nil }, []int{1, 10}, func(int) error { return nil }},
		{"bounded", mostTogether + 3, func([]int) error { return nil }, []int{1, mostTogether, 2}, func(int) error { return nil }},
		{"one fails", 5, func(list []int) error {
			if slices.Contains(list, 3) {
				return odd
			}
			return nil
		}, []int{1, 4, 2, 2, 1, 1}, func(q int) error {
			if q == 3 {
				return odd
			}
			return nil
		}},
		{"all fail", 5, func(list []int) error {
			if len(list) > 1 {
				return lost
			}
			return nil
		}, []int{1, 4}, func(q int) error {
			if q > 0 {
				return lost
			}
			return nil
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var batches []int
				first := make(chan struct{})
				g := group[int, int]{run: func(_ context.Context, list []int) ([]answer[int], error) {
					batches = append(batches, len(list))
					if len(batches) == 1 {
						<-first
					}
					out := make([]answer[int], len(list))
					for i, q := range list {
						out[i].v = 10 * q
					}
					return out, c.fails(list)
				}}
				var wg sync.WaitGroup
				ask := func(q int) {
					wg.Go(func() {
						v, err := g.do(t.Context(), q)
						if want := c.want(q); !errors.Is(err, want) || err == nil && v != 10*q {
							t.Errorf("%d is answered %d, %v; want %v", q, v, err, want)
						}
					})
					synctest.Wait()
				}
				for q := range c.members {
					ask(q)
				}
				close(first)
				wg.Wait()
				if !slices.Equal(batches, c.batches) {
					t.Errorf("batches of %v, want %v", batches, c.batches)
				}
			})
		})
	}
}
