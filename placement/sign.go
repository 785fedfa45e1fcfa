package placement

import (
	"strings"

	"offpeak"
)

// signature is a sketch of what a node has, in bits: one that fits a job has
// every bit that the job needs. The converse does not hold. The signature of
// several nodes is the union of theirs. The market's index has one of its own:
// the two rooms do not know each other.
type signature struct {
	// traits has the bits of the constants below.
	traits uint64
	// names is a Bloom filter of the account, the region and the labels.
	names [2]uint64
}

// The bits of traits, by the first of each group. Steps are a thermometer: the
// bit of every step that the number reaches is set.
const (
	driverBits = 0  // 4: process, wasm, container, any other
	sharedBits = 4  // 4: the same, for other accounts' jobs
	osBits     = 8  // 4: linux, windows, darwin, any other
	archBits   = 12 // 3: amd64, arm64, any other
	regionBits = 15 // 24: by hash
	diskBits   = 39 // 12
	countBits  = 51 // 4: two, three, four, eight devices
)

func (s *signature) add(t signature) {
	s.traits |= t.traits
	s.names[0] |= t.names[0]
	s.names[1] |= t.names[1]
}

func (s *signature) has(need *signature) bool {
	return s.traits&need.traits == need.traits && s.names[0]&need.names[0] == need.names[0] && s.names[1]&need.names[1] == need.names[1]
}

// name adds a name to the filter: four of its bits.
func (s *signature) name(kind, value string) {
	h := hashName(kind, value)
	for range 4 {
		s.names[h>>6&1] |= 1 << (h & 63)
		h >>= 7
	}
}

// amounts adds what changes with the leases.
func (s *signature) amounts(disk offpeak.Bytes, devices int) {
	s.traits |= steps(int64(disk/offpeak.GiB), 1, 2, 5, 10, 20, 50, 100, 250, 500, 1000, 2000, 4000) << diskBits
	s.traits |= steps(int64(devices), 2, 3, 4, 8) << countBits
}

// steps sets a bit for each step that n reaches.
func steps(n int64, at ...int64) (out uint64) {
	for i, step := range at {
		if n >= step {
			out |= 1 << i
		}
	}
	return out
}

// sign sketches what of an offer does not change with the leases.
func sign(o *offpeak.Offer) signature {
	var s signature
	for _, d := range o.Drivers {
		s.traits |= driverBit(d) << driverBits
	}
	// Where few accounts are welcome the node has their names instead.
	few := o.Guests != nil && len(o.Guests.Allow) > 0 && len(o.Guests.Allow) <= 8
	for _, d := range o.Shared {
		if !few {
			s.traits |= driverBit(d) << sharedBits
		}
	}
	if few {
		for _, guest := range o.Guests.Allow {
			s.name(accountName, string(guest))
		}
	}
	s.traits |= osBit(o.OS)<<osBits | archBit(o.Arch)<<archBits | regionBit(o.Region)<<regionBits
	s.name(accountName, string(o.Account))
	s.name("region", o.Region)
	for k, v := range o.Labels {
		s.name(k, v)
	}
	return s
}

// accountName can't be the name of a label.
const accountName = "\x00account"

// need is what the index asks of a node before the predicate does.
type need struct {
	signature
	// A node has a bit of shared or all of own.
	shared      uint64
	own         [2]uint64
	cpu, memory int64
	// limit is the highest price of one device, or without any.
	limit offpeak.Price
}

func (a *ask) need() need {
	r := a.Requirements
	q := need{cpu: r.CPU, memory: int64(r.Memory), limit: offpeak.MaxPrice}
	if r.MaxPrice != nil {
		q.limit = min(q.limit, *r.MaxPrice)
	}
	if n := offpeak.Price(len(r.GPUs)); n > 1 && q.limit > 0 {
		q.limit /= n
	}
	q.traits = driverBit(a.Driver) << driverBits
	if r.OS != "" {
		q.traits |= osBit(r.OS) << osBits
	}
	if r.Arch != "" {
		q.traits |= archBit(r.Arch) << archBits
	}
	q.amounts(r.Disk, len(r.GPUs))
	for k, v := range r.Where {
		if v == "" {
			continue // also who has no such label
		}
		q.name(k, v)
		if k == "region" {
			q.traits |= regionBit(v) << regionBits
		}
	}
	for _, text := range r.Match {
		// k=v needs what Where does; the others are left to the predicate.
		if k, v, valued := strings.Cut(text, "="); valued && v != "" && !strings.Contains(k, "!") {
			q.name(k, v)
		}
	}
	var own signature
	own.name(accountName, string(a.Account))
	if r.Trust == offpeak.TrustOwn || r.Trust == offpeak.TrustValidated {
		q.add(own)
	}
	q.shared, q.own = driverBit(a.Driver)<<sharedBits, own.names
	return q
}

// welcome says whether a node with these bits may take the account's jobs.
func (q *need) welcome(traits uint64, names *[2]uint64) bool {
	return traits&q.shared != 0 || (names[0]&q.own[0] == q.own[0] && names[1]&q.own[1] == q.own[1])
}

func driverBit(d string) uint64 { return oneOf(d, "process", "wasm", "container") }
func osBit(s string) uint64     { return oneOf(s, "linux", "windows", "darwin") }
func archBit(s string) uint64   { return oneOf(s, "amd64", "arm64") }
func regionBit(s string) uint64 { return 1 << (hashName("region", s) % 24) }

// oneOf is the bit of s among the known, or the one after them.
func oneOf(s string, known ...string) uint64 {
	for i, k := range known {
		if s == k {
			return 1 << i
		}
	}
	return 1 << len(known)
}

// hashName mixes its bits since all of them are used.
func hashName(kind, value string) uint64 {
	return mix(hashText(hashText(hashText(hashStart, kind), "\x00"), value))
}
