package underway

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestWaitIsForWhatHasBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Work
		if err := w.Wait(t.Context()); err != nil {
			t.Errorf("wait for nothing: %v", err)
		}
		first, second := w.Begin(), w.Begin()
		waited := make(chan error, 1)
		go func() { waited <- w.Wait(t.Context()) }()
		synctest.Wait()
		later := w.Begin()
		first()
		synctest.Wait()
		select {
		case err := <-waited:
			t.Fatalf("it did not wait for the second: %v", err)
		default:
		}
		second()
		if err := <-waited; err != nil {
			t.Errorf("wait: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := w.Wait(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("wait without the time for it: %v", err)
		}
		later()
	})
}
