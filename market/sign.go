package market

import (
	"math"
	"math/bits"
	"strings"

	"offpeak"
)

// signature is a sketch of what an offer has, in bits: one that fits a job has
// every bit that the job needs. The converse does not hold. The signature of
// several offers is the union of theirs.
type signature struct {
	// traits has the bits of the constants below.
	traits uint64
	// names is a Bloom filter of the account, the region and the labels.
	names [2]uint64
}

// The bits of traits, by the first of each group. Numbers are thermometers: the
// bit of every step that the number reaches is set.
const (
	driverBits = 0  // 4: process, wasm, container, any other
	sharedBits = 4  // 4: the same, for other accounts' jobs
	osBits     = 8  // 4: linux, windows, darwin, any other
	archBits   = 12 // 3: amd64, arm64, any other
	regionBits = 15 // 16: by hash
	cpuBits    = 31 // 10
	memoryBits = 41 // 12
	diskBits   = 53 // 7
	countBits  = 60 // 4: two, three, four, eight devices
)

func (s *signature) add(t signature) {
	s.traits |= t.traits
	s.names[0] |= t.names[0]
	s.names[1] |= t.names[1]
}

func (s *signature) has(need signature) bool {
	return s.traits&need.traits == need.traits && s.names[0]&need.names[0] == need.names[0] && s.names[1]&need.names[1] == need.names[1]
}

// name adds a name to the filter: four of its bits.
func (s *signature) name(kind, value string) {
	h := hash(kind, value)
	for range 4 {
		s.names[h>>6&1] |= 1 << (h & 63)
		h >>= 7
	}
}

// amounts adds the thermometers.
func (s *signature) amounts(r offpeak.Resources, devices int) {
	s.traits |= steps(r.CPU, 1000, 2000, 4000, 6000, 8000, 12_000, 16_000, 24_000, 32_000, 64_000) << cpuBits
	s.traits |= steps(int64(r.Memory/offpeak.GiB), 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128) << memoryBits
	s.traits |= steps(int64(r.Disk/offpeak.GiB), 10, 50, 100, 250, 500, 1000, 2000) << diskBits
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

// sign sketches an offer of which res and devices can be had.
func sign(o *offpeak.Offer, res offpeak.Resources, devices int) signature {
	var s signature
	for _, d := range o.Drivers {
		s.traits |= driverBit(d) << driverBits
	}
	for _, d := range o.Shared {
		s.traits |= driverBit(d) << sharedBits
	}
	s.traits |= osBit(o.OS)<<osBits | archBit(o.Arch)<<archBits | regionBit(o.Region)<<regionBits
	s.amounts(res, devices)
	s.name("\x00account", string(o.Account))
	s.name("region", o.Region)
	for k, v := range o.Labels {
		s.name(k, v)
	}
	return s
}

// question is what is asked of the index, prepared once.
type question struct {
	// need are the bits of every offer that fits.
	need signature
	// shared and own: an offer has the bits of either.
	shared uint64
	own    [2]uint64
	// vendor and model are of the first device asked for, vram of the largest.
	vendor, model string
	vram          int64
	cores         int
	// least and limit bound the keys.
	least, limit int64
}

func newQuestion(r *offpeak.Requirements, account offpeak.AccountID, driver string) question {
	q := question{least: math.MinInt64}
	q.need.traits = driverBit(driver) << driverBits
	if r.OS != "" {
		q.need.traits |= osBit(r.OS) << osBits
	}
	if r.Arch != "" {
		q.need.traits |= archBit(r.Arch) << archBits
	}
	q.need.amounts(offpeak.Resources{CPU: r.CPU, Memory: r.Memory, Disk: r.Disk}, len(r.GPUs))
	for k, v := range r.Where {
		if v == "" {
			continue // also who has no such label
		}
		q.need.name(k, v)
		if k == "region" {
			q.need.traits |= regionBit(v) << regionBits
		}
	}
	for _, text := range r.Match {
		// The other conditions are met by what an offer lacks, which bits can't say.
		if k, v, is := strings.Cut(text, "="); is && !strings.HasSuffix(k, "!") {
			q.need.name(k, v)
		}
	}
	var own signature
	own.name("\x00account", string(account))
	if r.Trust == offpeak.TrustOwn || r.Trust == offpeak.TrustValidated {
		q.need.add(own)
	}
	q.shared, q.own = driverBit(driver)<<sharedBits, own.names
	q.cores = coreClass(r.CPU).cores
	for i, g := range r.GPUs {
		q.vram = max(q.vram, vramClass(g.Least()))
		if i == 0 {
			q.vendor, q.model = g.Vendor, strings.ToLower(g.Model)
		}
	}
	return q
}

// admits says whether offers of the class may fit.
func (q *question) admits(c *class) bool {
	if c.vram < q.vram || c.cores < q.cores {
		return false
	}
	return c.mixed || ((q.vendor == "" || strings.EqualFold(c.vendor, q.vendor)) && strings.Contains(c.model, q.model))
}

// passes says whether an offer with the traits that are needed may fit.
func (q *question) passes(traits uint64, names [2]uint64) bool {
	return names[0]&q.need.names[0] == q.need.names[0] && names[1]&q.need.names[1] == q.need.names[1] &&
		(traits&q.shared != 0 || (names[0]&q.own[0] == q.own[0] && names[1]&q.own[1] == q.own[1]))
}

func driverBit(d string) uint64 { return oneOf(d, "process", "wasm", "container") }
func osBit(s string) uint64     { return oneOf(s, "linux", "windows", "darwin") }
func archBit(s string) uint64   { return oneOf(s, "amd64", "arm64") }
func regionBit(s string) uint64 { return 1 << (hash("region", s) % 16) }

// oneOf is the bit of s among the known, or the one after them.
func oneOf(s string, known ...string) uint64 {
	for i, k := range known {
		if s == k {
			return 1 << i
		}
	}
	return 1 << len(known)
}

// hash is FNV-1a over both strings, its bits mixed since all of them are used.
func hash(kind, value string) uint64 {
	h := uint64(14695981039346656037)
	for _, s := range [...]string{kind, "\x00", value} {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * 1099511628211
		}
	}
	h = (h ^ h>>32) * 0xd6e8feb86659fd93
	return h ^ h>>32
}

// class parts a forest, so that a question looks at few of the offers and meets
// prices that have little to do with what it asks for: dear cards do not hide
// behind a crowd of cheap ones. An offer's class says the most that it has.
type class struct {
	// vendor is the devices' vendor, model their model in lower case; "" with mixed.
	vendor, model string
	// mixed says that the devices have several names, or that nobody looked.
	mixed bool
	// vram is the memory of the largest device in GiB, cores the CPU as a power of
	// two; both rounded down and bounded.
	vram  int64
	cores int
}

const (
	maxVRAMClass = 256
	maxCoreClass = 8
)

// deviceClass is the class of offers by their devices, of any CPU.
func deviceClass(have []offpeak.Device) class {
	c := class{cores: maxCoreClass}
	for i, d := range have {
		c.vram = max(c.vram, vramClass(d.VRAM))
		c.mixed = c.mixed || (i > 0 && (d.Vendor != have[0].Vendor || d.Model != have[0].Model))
	}
	if len(have) > 0 && !c.mixed {
		c.vendor, c.model = have[0].Vendor, strings.ToLower(have[0].Model)
	}
	return c
}

func vramClass(v offpeak.Bytes) int64 {
	return min(max(int64(v/offpeak.GiB), 0), maxVRAMClass)
}

// coreClass is the class of offers by their CPU, of any devices.
func coreClass(milli int64) class {
	return class{mixed: true, vram: maxVRAMClass, cores: min(bits.Len64(uint64(max(milli/1000, 0))), maxCoreClass)}
}
