package consumer

import (
	"fmt"
	"math"
	"time"

	"offpeak"
	"offpeak/placement/replay"
)

// Load says how much traffic to draw.
type Load struct {
	Nodes, Jobs int
	Span        time.Duration
	// Work is the median of how long a job runs. Default 20m.
	Work time.Duration
	// Away is the median time for which an owner is away, and so the node the
	// grid's. 0: always.
	Away time.Duration
}

// Traffic draws what comes to a grid: nodes that join, whose owners return and
// leave again, and of which some are lost; jobs of twenty accounts, at a rate that
// changes over the day.
func (s *Source) Traffic(load Load) replay.Traffic {
	if load.Work == 0 {
		load.Work = 20 * time.Minute
	}
	from := time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)
	t := replay.Traffic{From: from, Until: from.Add(load.Span)}
	for i := range load.Nodes {
		s.life(&t, i, load)
	}
	for i := range load.Jobs {
		t.Steps = append(t.Steps, replay.Step{At: s.arrival(&t), Submit: s.work(i, load)})
	}
	t.Sort()
	return t
}

// life is one node's: it joins, its owner comes and goes, it may be lost.
func (s *Source) life(t *replay.Traffic, i int, load Load) {
	o := s.Offer(i)
	ask := o.Ask
	n := &replay.Node{
		ID: o.Node, Account: o.Account, Ask: &ask,
		Liveness: offpeak.NodeOnline, Intent: offpeak.NodeOpen, Availability: offpeak.NodeAvailable,
		Inventory: offpeak.Inventory{
			OS: o.OS, Arch: o.Arch, CPU: o.Capacity.CPU, Memory: o.Capacity.Memory, Disk: o.Capacity.Disk, Devices: o.Devices,
			Drivers: o.Drivers, Shared: o.Shared, Region: o.Region, Labels: o.Labels,
		},
	}
	at := t.From
	if s.chance(200) { // a fifth joins while it is recorded
		at = at.Add(time.Duration(s.rng.Int64N(int64(load.Span))))
	}
	t.Steps = append(t.Steps, replay.Step{At: at, Join: n})
	if load.Away == 0 {
		return
	}
	for {
		at = at.Add(s.long(load.Away))
		if at.After(t.Until) {
			return
		}
		gone, back := replay.Change{Node: o.Node, Availability: offpeak.NodeInUse}, replay.Change{Node: o.Node, Availability: offpeak.NodeAvailable}
		if s.chance(150) {
			gone, back = replay.Change{Node: o.Node, Liveness: offpeak.NodeOffline}, replay.Change{Node: o.Node, Liveness: offpeak.NodeOnline}
		}
		t.Steps = append(t.Steps, replay.Step{At: at, Change: &gone})
		if at = at.Add(s.long(load.Away / 4)); at.After(t.Until) {
			return
		}
		t.Steps = append(t.Steps, replay.Step{At: at, Change: &back})
	}
}

// long draws a time of which half are shorter than the median, some much longer.
func (s *Source) long(median time.Duration) time.Duration {
	return max(time.Duration(float64(median)*math.Exp(s.rng.NormFloat64())), time.Second).Truncate(time.Microsecond)
}

// arrival draws when a job comes: twice as often at noon as at midnight.
func (s *Source) arrival(t *replay.Traffic) time.Time {
	for {
		at := t.From.Add(time.Duration(s.rng.Int64N(int64(t.Until.Sub(t.From)))).Truncate(time.Microsecond))
		day := at.Sub(t.From).Hours() / 24
		if s.rng.Float64()*3 < 2-math.Cos(day*2*math.Pi) {
			return at
		}
	}
}

func (s *Source) work(i int, load Load) *replay.Job {
	strict := 0
	if s.chance(300) {
		strict = 1
	}
	drawn := s.Job(strict)
	j := &replay.Job{
		ID: offpeak.JobID(fmt.Sprintf("job_%08d", i)), Account: offpeak.AccountID(fmt.Sprintf("acct_t%02d", s.pick(20))),
		Driver: drawn.Driver, Requirements: drawn.Requirements,
		Work: offpeak.Duration(s.long(load.Work)), Prepare: offpeak.Duration(s.long(5 * time.Second)), Limit: offpeak.Duration(24 * time.Hour),
	}
	if s.chance(500) {
		j.Keep = offpeak.Duration(time.Minute)
	}
	return j
}
