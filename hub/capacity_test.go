package hub_test

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"offpeak"
	"offpeak/hub"
	"offpeak/wire"
)

// cycle is one job's way through one node, up to the cause of its end.
type cycle struct {
	*agent
	job   offpeak.JobID
	lease wire.Desired
	stage string
}

// mine are the leases that the agent holds: an offer is none of them yet.
func (c *cycle) mine() []offpeak.LeaseID {
	if c.stage == "offered" {
		return nil
	}
	return []offpeak.LeaseID{c.lease.Lease}
}

// reach brings the lease to a stage.
func (c *cycle) reach(stage string) {
	c.stage = stage
	if stage == "offered" {
		return
	}
	c.accept(c.lease)
	if stage == "preparing" {
		return
	}
	c.run(c.lease)
	if stage == "finishing" {
		_, err := c.report(c.lease, "finishing", nil)
		must(c.g.t, err)
	}
}

// stopped beats until the lease is asked to stop or is gone, and says which.
func (c *cycle) stopped(within time.Duration) offpeak.EndReason {
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(5 * time.Second) {
		held := c.beat(c.mine()...).Leases
		at := slices.IndexFunc(held, func(d wire.Desired) bool { return d.Lease == c.lease.Lease })
		if at < 0 {
			return ""
		}
		if held[at].Stop != "" {
			return held[at].Stop
		}
	}
	c.g.t.Fatalf("lease in %s was not stopped within %s", c.stage, within)
	return ""
}

// endOr ends the lease for a reason, or declines it where it is only offered.
func (c *cycle) endOr(reason offpeak.EndReason) {
	if c.stage == "offered" {
		reason = offpeak.EndDeclined
	}
	_, err := c.report(c.lease, "ended", func(r *wire.Report) {
		r.Reason, r.Started = reason, c.stage == "running" || c.stage == "finishing"
		if reason == offpeak.EndCompleted {
			zero := 0
			r.ExitCode = &zero
		}
	})
	must(c.g.t, err)
}

// causes are all ways in which a lease can end, by name.
func causes() map[string]func(c *cycle) {
	intent := func(c *cycle, in wire.IntentChange) {
		_, err := c.g.hub.SetIntent(c.g.t.Context(), c.g.op(), c.g.account, c.id, in)
		must(c.g.t, err)
	}
	return map[string]func(c *cycle){
		"complete": func(c *cycle) { c.endOr(offpeak.EndCompleted) },
		"fail":     func(c *cycle) { c.endOr(offpeak.EndExitNonzero) },
		"error":    func(c *cycle) { c.endOr(offpeak.EndNodeError) },
		"cancel": func(c *cycle) {
			_, err := c.g.hub.Cancel(c.g.t.Context(), c.g.op(), c.g.account, c.job)
			must(c.g.t, err)
			if c.stage != "offered" {
				c.endOr(offpeak.EndCancelled)
			}
		},
		"lose": func(c *cycle) {
			time.Sleep(62 * time.Second)
			synctest.Wait()
			c.beat()
		},
		"restart": func(c *cycle) {
			c.open("one-after-" + string(c.lease.Lease))
			c.beat()
		},
		"preempt": func(c *cycle) {
			in := c.heartbeat(c.mine()...)
			in.Availability, in.Why = offpeak.NodeInUse, offpeak.EndOwnerReturned
			_, err := c.g.hub.Heartbeat(c.g.t.Context(), c.id, in)
			must(c.g.t, err)
			c.endOr(offpeak.EndOwnerReturned)
			c.beat()
		},
		"timeout": func(c *cycle) {
			if c.stage == "offered" {
				time.Sleep(17 * time.Second)
				return
			}
			if reason := c.stopped(5 * time.Minute); reason != "" && c.stage != "finishing" {
				c.endOr(reason)
			} else if reason != "" {
				c.keep(2*time.Minute, c.lease.Lease) // never ends it by itself
			}
		},
		"drain": func(c *cycle) {
			intent(c, wire.IntentChange{Intent: offpeak.NodeDraining, Stop: true})
			if s := c.beat(c.mine()...); len(s.Leases) > 0 {
				c.endOr(offpeak.EndDrained)
			}
			intent(c, wire.IntentChange{Intent: offpeak.NodeOpen})
		},
		"hub restart": func(c *cycle) {
			c.g.stop()
			time.Sleep(90 * time.Second)
			c.g.start()
			c.beat(c.mine()...)
			if c.stage != "offered" {
				c.endOr(offpeak.EndCompleted)
			}
		},
	}
}

// Whatever ends a lease, at whatever stage, the node is free afterwards: in the
// store, and in the picture that matching works on, since each job asks for all
// the devices that there are.
func TestNoCauseOfAnEndKeepsCapacity(t *testing.T) {
	cycles := 300
	if raced {
		cycles = 60
	}
	// Every cause in turn is more faults in a row than a node may have.
	bubble(t, hub.Config{Quarantine: time.Millisecond}, func(t *testing.T, g *grid) {
		rng := rand.New(rand.NewPCG(21, 22))
		a := g.join("one")
		devices := []offpeak.Device{{ID: "GPU-0", Vendor: "nvidia", VRAM: offpeak.GiB}, {ID: "GPU-1", Vendor: "nvidia", VRAM: offpeak.GiB}}
		inv := g.node(a.id).Inventory
		inv.Devices = devices
		must(t, g.hub.SetInventory(t.Context(), a.id, inv))
		spec := small()
		spec.Requirements.GPUs = make([]offpeak.GPURequest, len(devices))
		spec.Limits.Time, spec.Limits.Prepare = offpeak.Duration(time.Minute), offpeak.Duration(30*time.Second)
		all := causes()
		names := slices.Sorted(maps.Keys(all))
		stages := []string{"offered", "preparing", "running", "finishing"}
		for i := range cycles {
			c := &cycle{agent: a, job: g.submit(spec)}
			c.lease = a.offered()
			if c.lease.Job != c.job {
				t.Fatalf("cycle %d: offered %s, want %s", i, c.lease.Job, c.job)
			}
			c.reach(stages[rng.IntN(len(stages))])
			cause := names[rng.IntN(len(names))]
			all[cause](c)
			synctest.Wait()
			// Where the job goes on, the next attempt may be offered by now.
			if _, err := g.hub.Cancel(t.Context(), g.op(), g.account, c.job); err != nil && !errors.Is(err, offpeak.ErrConflict) {
				t.Fatal(err)
			}
			if n := g.node(a.id).Reserved; n.CPU != 0 || n.Memory != 0 || n.Disk != 0 || len(n.Devices) != 0 {
				t.Fatalf("cycle %d, %s in %s: the node still reserves %+v", i, cause, c.stage, n)
			}
			free, err := g.store.FreeDevices(t.Context(), a.id)
			if err != nil || len(free) != len(devices) {
				t.Fatalf("cycle %d, %s in %s: free devices %v, %v", i, cause, c.stage, free, err)
			}
			if j := g.job(c.job); !j.State.Terminal() {
				t.Fatalf("cycle %d, %s in %s: the job is %s", i, cause, c.stage, j.State)
			}
			a.beat()
		}
	})
}
