package replay_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"offpeak"
	"offpeak/bench/consumer"
	"offpeak/placement"
	"offpeak/placement/replay"
)

// narrow is traffic where it matters that small jobs take small cards: the machines
// with large cards have few cores and little memory, so whoever looks at these first
// puts small jobs there, and large ones wait. All ask the same, little.
func narrow(seed uint64) replay.Traffic {
	rng := rand.New(rand.NewPCG(seed, 1))
	s := newScript(48)
	for i := range 24 {
		s.at(0, replay.Step{Join: machine(fmt.Sprintf("small%02d", i), 32, 128, 8)})
	}
	for i := range 6 {
		s.at(0, replay.Step{Join: machine(fmt.Sprintf("large%02d", i), 6, 16, 24)})
	}
	for i := range s.t.Steps {
		s.t.Steps[i].Join.Ask = &offpeak.Ask{GPU: 50_000, CPU: 5_000}
	}
	long := func(median float64) float64 { return median * (0.5 + rng.Float64()) }
	minutes := s.t.Until.Sub(s.t.From).Minutes()
	n := 0
	for at := 0.0; at < minutes; at += rng.ExpFloat64() * 4 {
		n++
		j := work(fmt.Sprintf("small%04d", n), 4, long(1), 6)
		j.Requirements.Memory = 12 * offpeak.GiB
		s.at(at, replay.Step{Submit: j})
	}
	for at := 0.0; at < minutes; at += rng.ExpFloat64() * 18 {
		n++
		j := work(fmt.Sprintf("large%04d", n), 4, long(1.5), 20)
		j.Requirements.Memory = 12 * offpeak.GiB
		s.at(at, replay.Step{Submit: j})
	}
	s.t.Sort()
	return s.t
}

// planted is weights that look at cores and memory as much as they may.
func planted() replay.Set {
	t := placement.DefaultTuning()
	t.Weights = placement.Weights{VRAM: 1, CPU: 0.99, Memory: 0.99}
	return replay.Set{Name: "planted", Tuning: t}
}

func tryOn(t *replay.Traffic) func([]replay.Set) ([]replay.Result, error) {
	return func(sets []replay.Set) ([]replay.Result, error) {
		out := make([]replay.Result, len(sets))
		for i := range sets {
			var err error
			if out[i], err = replay.Run(t, sets[i], replay.Options{}); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
}

func TestSearchRecoversFromBadWeights(t *testing.T) {
	for _, seed := range []uint64{1, 2, 3} {
		traffic := narrow(seed)
		learn, held, err := replay.Hold(&traffic)
		if err != nil {
			t.Fatal(err)
		}
		goal := replay.DefaultObjective()
		on := func(set replay.Set) float64 {
			r, err := tryOn(&held)([]replay.Set{set})
			if err != nil {
				t.Fatal(err)
			}
			return goal.Of(&r[0])
		}
		s := replay.Search{From: planted(), Budget: 60, Seed: seed, Objective: goal, Flat: learn.Flat(planted().Policy), Try: tryOn(&learn)}
		found, _, tried, err := s.Run()
		if err != nil || tried > 60 {
			t.Fatal(tried, err)
		}
		best := planted()
		best.VRAM, best.CPU, best.Memory = 100, 0.01, 0.01
		bad, good, got := on(planted()), on(best), on(found)
		t.Logf("seed %d: planted %.3f h a job, best known %.3f, proposed %.3f after %d sets", seed, bad, good, got, tried)
		if bad-good < 0.15*bad {
			t.Errorf("seed %d: the planted weights cost %.3f, the best known %.3f: nothing to learn here", seed, bad, good)
		}
		if bad-got < 0.8*(bad-good) {
			t.Errorf("seed %d: planted %.3f, best known %.3f, proposed %.3f: less than 80 %% of the gain", seed, bad, good, got)
		}
		again, _, _, err := s.Run()
		if err != nil || !reflect.DeepEqual(again, found) {
			t.Errorf("seed %d: the same search found %+v, then %+v, %v", seed, found, again, err)
		}
	}
}

// What must hold of any run, on made-up traffic.
func TestMadeUpTraffic(t *testing.T) {
	for seed := range uint64(3) {
		traffic := consumer.New(seed).Traffic(consumer.Load{Nodes: 60, Jobs: 1500, Span: 48 * time.Hour, Away: 6 * time.Hour})
		if err := traffic.Check(); err != nil {
			t.Fatal(err)
		}
		set := replay.Set{Name: "default", Tuning: placement.DefaultTuning()}
		r, err := replay.Run(&traffic, set, replay.Options{})
		if err != nil {
			t.Fatal(err)
		}
		again, err := replay.Run(&traffic, set, replay.Options{})
		if err != nil || !reflect.DeepEqual(r, again) {
			t.Errorf("seed %d: two runs differ:\n%+v\n%+v", seed, r, again)
		}
		t.Logf("seed %d: %+v", seed, r)
		if r.Jobs != 1500 || r.Started == 0 || r.Interrupted == 0 || r.LostHours <= 0 || r.Paid <= 0 || r.WaitMedian > r.WaitP95 || r.Finished > r.Started {
			t.Errorf("seed %d: %+v", seed, r)
		}
	}
}

func BenchmarkReplay(b *testing.B) {
	traffic := consumer.New(1).Traffic(consumer.Load{Nodes: 1000, Jobs: 20_000, Span: 7 * 24 * time.Hour, Away: 6 * time.Hour})
	set := replay.Set{Tuning: placement.DefaultTuning()}
	for b.Loop() {
		if _, err := replay.Run(&traffic, set, replay.Options{}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/20_000, "µs/job")
}
