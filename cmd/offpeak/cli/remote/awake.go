package remote

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"offpeak"
	"offpeak/wire"
)

const (
	// askAfter is how long a call is left alone before its hub is asked whether it
	// is awake, and askEvery how often it is asked after that.
	askAfter = time.Second
	askEvery = 5 * time.Second
	// awakeWithin is how long the answer may take.
	awakeWithin = 3 * time.Second
)

// AsleepError ends a call to a hub that takes connections and answers nothing, as
// one that is frozen does, while there are other hubs to ask. The outcome of the
// call is unknown.
type AsleepError struct{ Base string }

func (e *AsleepError) Error() string {
	return fmt.Sprintf("%s: no answer in %s", e.Base, awakeWithin)
}

// Unwrap makes errors.Is(e, offpeak.ErrUnavailable) true.
func (e *AsleepError) Unwrap() error { return offpeak.ErrUnavailable }

// whileAwake runs f, and ends it with an *AsleepError when the hub falls asleep
// over it. A call may rightly take long, so its own silence says nothing: the hub is
// asked something else beside it. Where there is no other hub to go to, f takes the
// time it takes.
func (h *Hub) whileAwake(ctx context.Context, d *wire.Direct, f func(ctx context.Context) error) error {
	if len(h.directs) == 1 {
		return f(ctx)
	}
	ctx, end := context.WithCancelCause(ctx)
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		if err := watch(ctx, d); err != nil {
			end(err)
		}
	}()
	err := f(ctx)
	asleep, ok := errors.AsType[*AsleepError](context.Cause(ctx))
	end(nil)
	<-watching
	if ok && (errors.Is(err, context.Canceled) || errors.Is(err, offpeak.ErrUnavailable)) {
		return asleep
	}
	return err
}

// watch asks a hub now and then, until ctx is done or it does not answer. Any answer
// will do: whether the hub is well is for the call to find out.
func watch(ctx context.Context, d *wire.Direct) error {
	for wait := askAfter; ; wait = askEvery {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		once, cancel := context.WithTimeout(ctx, awakeWithin)
		resp, err := d.Raw(once, http.MethodGet, "/health", "", nil, "")
		late := once.Err() != nil
		cancel()
		if err == nil {
			_ = resp.Body.Close()
		} else if late && ctx.Err() == nil {
			return &AsleepError{d.Base}
		}
	}
}
