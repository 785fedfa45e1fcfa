// Package consumer makes up the machines of a grid of consumer hardware, and the
// jobs that people bring to it, from a seed: the same seed gives the same fleet.
//
// It owns the assumptions: which cards are common, what their owners ask, how
// many machines are taken, what jobs want. It must not know who uses them, so
// that whatever is measured is measured over the same fleet. A Source is not
// safe for concurrent use. Its test says how common the things are that
// measurements depend on.
package consumer

import (
	"fmt"
	"math/rand/v2"

	"offpeak"
)

// Source draws offers and jobs.
type Source struct {
	rng *rand.Rand
	// labels are the few sets of labels that nodes have, shared between them.
	labels []map[string]string
}

// Job is what a fleet is asked for.
type Job struct {
	Account      offpeak.AccountID
	Driver       string
	Requirements offpeak.Requirements
}

// New returns a source that is all determined by its seed.
func New(seed uint64) *Source {
	s := &Source{rng: rand.New(rand.NewPCG(seed, 0))}
	for _, tier := range tiers {
		for _, network := range networks {
			s.labels = append(s.labels, map[string]string{"tier": tier, "network": network})
		}
	}
	return s
}

// card is a GPU that people have, how many of a thousand machines with a GPU
// have it, and what an hour of it usually costs.
type card struct {
	vendor, model string
	vram          offpeak.Bytes
	share         int
	price         offpeak.Price
}

// cards are about what surveys of players' machines find, from common to rare.
func cards() []card {
	const m = 1000 // a thousandth of a credit
	return []card{
		{"nvidia", "NVIDIA GeForce RTX 3060", 12 * offpeak.GiB, 120, 45 * m},
		{"nvidia", "NVIDIA GeForce RTX 4060", 8 * offpeak.GiB, 110, 50 * m},
		{"nvidia", "NVIDIA GeForce GTX 1650", 4 * offpeak.GiB, 90, 15 * m},
		{"nvidia", "NVIDIA GeForce RTX 3050", 8 * offpeak.GiB, 80, 30 * m},
		{"nvidia", "NVIDIA GeForce RTX 4060 Ti", 8 * offpeak.GiB, 60, 60 * m},
		{"nvidia", "NVIDIA GeForce RTX 3070", 8 * offpeak.GiB, 60, 65 * m},
		{"nvidia", "NVIDIA GeForce GTX 1060 6GB", 6 * offpeak.GiB, 50, 18 * m},
		{"nvidia", "NVIDIA GeForce RTX 2060", 6 * offpeak.GiB, 50, 30 * m},
		{"nvidia", "NVIDIA GeForce RTX 4070", 12 * offpeak.GiB, 50, 95 * m},
		{"nvidia", "NVIDIA GeForce RTX 3080", 10 * offpeak.GiB, 40, 95 * m},
		{"amd", "AMD Radeon RX 6600", 8 * offpeak.GiB, 35, 30 * m},
		{"amd", "AMD Radeon RX 580", 8 * offpeak.GiB, 30, 15 * m},
		{"nvidia", "NVIDIA GeForce RTX 4070 Ti", 12 * offpeak.GiB, 30, 120 * m},
		{"apple", "Apple M2", 16 * offpeak.GiB, 30, 40 * m},
		{"amd", "AMD Radeon RX 6700 XT", 12 * offpeak.GiB, 25, 50 * m},
		{"nvidia", "NVIDIA GeForce RTX 4080", 16 * offpeak.GiB, 20, 180 * m},
		{"nvidia", "NVIDIA GeForce RTX 4060 Ti 16GB", 16 * offpeak.GiB, 20, 90 * m},
		{"intel", "Intel Arc A770", 16 * offpeak.GiB, 15, 60 * m},
		{"apple", "Apple M3 Pro", 32 * offpeak.GiB, 15, 90 * m},
		{"nvidia", "NVIDIA GeForce RTX 4090", 24*offpeak.GiB - 12*offpeak.MiB, 20, 350 * m},
		{"nvidia", "NVIDIA GeForce RTX 3090", 24 * offpeak.GiB, 15, 220 * m},
		{"amd", "AMD Radeon RX 7900 XTX", 24 * offpeak.GiB, 10, 180 * m},
		{"amd", "AMD Radeon RX 6800 XT", 16 * offpeak.GiB, 10, 90 * m},
		{"nvidia", "NVIDIA GeForce RTX 5090", 32 * offpeak.GiB, 5, 600 * m},
		{"nvidia", "Tesla P40", 24 * offpeak.GiB, 4, 70 * m},
		{"apple", "Apple M2 Ultra", 128 * offpeak.GiB, 3, 400 * m},
		{"nvidia", "NVIDIA RTX A6000", 48 * offpeak.GiB, 2, 500 * m},
		{"nvidia", "NVIDIA RTX 6000 Ada Generation", 48 * offpeak.GiB, 1, 800 * m},
	}
}

var (
	tiers    = []string{"home", "home", "home", "office", "lab"}
	networks = []string{"fibre", "cable", "dsl", "mobile"}
	regions  = []string{
		"us-east", "us-west", "us-central", "de", "uk", "fr", "br", "pl", "ca", "nl", "jp", "kr",
		"au", "es", "it", "se", "in", "tr", "cz", "fi", "no", "ch", "at", "is",
	}
)

// pick draws an index below n, low ones more often than high ones.
func (s *Source) pick(n int) int { return min(s.rng.IntN(n), s.rng.IntN(n)) }

func one[T any](s *Source, of ...T) T { return of[s.rng.IntN(len(of))] }

// chance is true so many times in a thousand.
func (s *Source) chance(perMille int) bool { return s.rng.IntN(1000) < perMille }

// around is p give or take 40 %, in thousandths of a credit.
func (s *Source) around(p offpeak.Price) offpeak.Price {
	const step = 1000
	return max(p*offpeak.Price(600+s.rng.IntN(801))/1000/step*step, step)
}

// Offer draws the offer of the i-th node. Every second node is of an owner who
// has another.
func (s *Source) Offer(i int) offpeak.Offer {
	o := offpeak.Offer{
		Node: offpeak.NodeID(fmt.Sprintf("node_%08d", i)), Account: offpeak.AccountID(fmt.Sprintf("acct_%07d", i/2)),
		OS: "windows", Arch: "amd64", Region: regions[s.pick(len(regions))],
		Drivers: []string{"process", "wasm"}, Shared: []string{"process", "wasm"},
		Labels: s.labels[s.rng.IntN(len(s.labels))], Ready: true,
	}
	cores := one(s, int64(4), 6, 6, 8, 8, 8, 12, 16, 16, 24, 32)
	o.Capacity = offpeak.Resources{
		CPU: cores * 1000, Memory: offpeak.Bytes(one(s, 8, 16, 16, 16, 32, 32, 64, 128)) * offpeak.GiB, Disk: offpeak.Bytes(one(s, 50, 100, 200, 200, 500, 1000)) * offpeak.GiB,
	}
	o.Ask.CPU = s.around(offpeak.Price(cores) * 2000)
	if !s.chance(200) {
		c := s.card()
		if c.vendor == "apple" {
			o.OS, o.Arch = "darwin", "arm64"
		}
		n := 1
		if c.vram >= 12*offpeak.GiB && c.vendor != "apple" && s.chance(80) {
			n = one(s, 2, 2, 2, 2, 3, 4, 4, 8)
		}
		for k := range n {
			id := offpeak.DeviceID(fmt.Sprintf("GPU-%08d-%d", i, k))
			o.Devices = append(o.Devices, offpeak.Device{ID: id, Vendor: c.vendor, Model: c.model, VRAM: c.vram, Unified: c.vendor == "apple"})
			o.Capacity.Devices = append(o.Capacity.Devices, id)
		}
		o.Ask.GPU = s.around(c.price)
	}
	if o.OS == "windows" && s.chance(250) {
		o.OS = "linux"
	}
	if s.chance(100) {
		o.Drivers = []string{"wasm"}
	}
	if s.chance(150) {
		o.Shared = nil
	}
	o.Free, o.FreeDevices = o.Capacity, o.Devices
	s.occupy(&o)
	return o
}

func (s *Source) card() card {
	all := cards()
	sum := 0
	for _, c := range all {
		sum += c.share
	}
	at := s.rng.IntN(sum)
	for _, c := range all {
		if at -= c.share; at < 0 {
			return c
		}
	}
	return all[0]
}

// occupy makes a fifth of the nodes unavailable, and leases hold part of a
// third of the others.
func (s *Source) occupy(o *offpeak.Offer) {
	switch {
	case s.chance(200):
		o.Ready, o.Why = false, one(s, offpeak.FitInUse, offpeak.FitInUse, offpeak.FitOffline, offpeak.FitDraining)
	case s.chance(333):
		held := s.rng.IntN(len(o.Devices) + 1)
		o.FreeDevices = o.Devices[held:]
		o.Free.Devices = o.Capacity.Devices[held:]
		o.Free.CPU -= o.Free.CPU / 4000 * int64(1+s.rng.IntN(4)) * 1000
		o.Free.Memory -= o.Free.Memory / 4 * offpeak.Bytes(1+s.rng.IntN(3))
	}
}

// Job draws what a submitter asks for. Strict adds that many further demands,
// so that fewer machines fit.
func (s *Source) Job(strict int) Job {
	j := Job{Account: offpeak.AccountID(fmt.Sprintf("acct_s%05d", s.rng.IntN(100_000))), Driver: "process"}
	r := &j.Requirements
	r.CPU, r.Memory, r.Disk, r.Trust = 1000, 2*offpeak.GiB, offpeak.GiB, offpeak.TrustAny
	if !s.chance(250) {
		r.GPUs = []offpeak.GPURequest{{VRAM: offpeak.Bytes(one(s, 4, 6, 8, 8, 12, 16, 24)) * offpeak.GB}}
	}
	for range strict {
		s.demand(r)
	}
	return j
}

func (s *Source) demand(r *offpeak.Requirements) {
	switch s.rng.IntN(9) {
	case 0:
		r.CPU = max(r.CPU, one(s, int64(4000), 8000, 16_000, 24_000))
	case 1:
		r.Memory = max(r.Memory, offpeak.Bytes(one(s, 12, 24, 48, 96))*offpeak.GiB)
	case 2:
		r.Disk = max(r.Disk, offpeak.Bytes(one(s, 80, 150, 400, 900))*offpeak.GiB)
	case 3:
		r.OS = one(s, "linux", "linux", "windows", "darwin")
	case 4:
		s.where(r, "region", regions[s.rng.IntN(len(regions))])
	case 5:
		s.where(r, "tier", one(s, "home", "office", "lab"))
	case 6:
		s.where(r, "network", one(s, networks...))
	case 7:
		if len(r.GPUs) > 0 {
			c := s.card()
			r.GPUs[0] = offpeak.GPURequest{VRAM: c.vram / 2, Vendor: c.vendor, Model: one(s, "", c.model)}
			if c.vendor == "apple" {
				r.GPUs[0].Kind = offpeak.GPUUnified // as a spec gets it with its defaults
			}
		}
	case 8:
		if len(r.GPUs) == 1 && s.chance(400) {
			r.GPUs = append(r.GPUs, r.GPUs[0])
		}
		if r.MaxPrice == nil {
			p := offpeak.Price(one(s, 10_000, 30_000, 60_000, 200_000))
			r.MaxPrice = &p
		}
	}
}

func (s *Source) where(r *offpeak.Requirements, k, v string) {
	if r.Where == nil {
		r.Where = make(map[string]string)
	}
	r.Where[k] = v
}
