package cli

import (
	"time"

	"github.com/spf13/pflag"

	"offpeak/placement/queue"
)

// queueOptions are the flags that say in which order jobs are matched.
type queueOptions struct{ config queue.Config }

func (o *queueOptions) flags(f *pflag.FlagSet) {
	d := queue.DefaultConfig()
	f.DurationVar(&o.config.HalfLife, "share-half-life", d.HalfLife, "after what time an account's use counts half when jobs of one priority are put in order; 0: use does not count, and the order is age")
	f.Float64Var(&o.config.GPU, "share-gpu", d.GPU, "how many cores a GPU counts as in an account's use")
	f.DurationVar(&o.config.ReserveAfter, "reserve-after", d.ReserveAfter, "how long a job waits before a node is kept for it; 0: none is, and a large job may wait for ever")
	f.IntVar(&o.config.Places, "reservations", d.Places, "most jobs `n` for which nodes are kept at once")
}

func (o *queueOptions) validate() error {
	switch c := o.config; {
	case c.HalfLife < 0 || c.HalfLife > 0 && c.HalfLife < time.Minute:
		return badInput("--share-half-life: %v: is 0s or at least 1m", c.HalfLife)
	case !(c.GPU > 0):
		return badInput("--share-gpu: %v: is more than 0", c.GPU)
	case c.ReserveAfter < 0:
		return badInput("--reserve-after: %v: is not negative; 0 keeps no node", c.ReserveAfter)
	case c.Places < 1:
		return badInput("--reservations: %d: is at least 1; --reserve-after 0 keeps no node", c.Places)
	}
	return nil
}
