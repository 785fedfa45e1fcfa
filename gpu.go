package offpeak

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Tolerance is one part in so many of the VRAM asked for that a device may lack:
// 2 %. Cards tell a little less than the name they are sold under, since a part
// is the driver's: a "24 GB" card tells 24,564 MiB and lets a job have a few
// hundred less. It is the same share of every size, so asking for more never
// admits a card that asking for less does not.
const Tolerance = 50

// Least is the memory that is enough for the request.
func (w *GPURequest) Least() Bytes { return w.VRAM - w.VRAM/Tolerance }

// Tolerated says in words where a job that fits an offer gets devices that have
// less memory than it asks for; "" where it gets all of it.
func (r *Requirements) Tolerated(o *Offer) string {
	res, ok := r.Assign(*o)
	if !ok {
		return ""
	}
	for i, id := range res.Devices {
		for k := range o.FreeDevices {
			d := &o.FreeDevices[k]
			if w := &r.GPUs[i]; d.ID == id && d.VRAM < w.VRAM {
				return fmt.Sprintf("%s on %s counts as %s: up to 2 %% less does", d.VRAM, d.Model, w.VRAM)
			}
		}
	}
	return ""
}

// version reads up to four numbers with dots between: "8.6", "550.54.14".
func version(s string) (v [4]uint32, ok bool) {
	i, digits := 0, 0
	for _, c := range []byte(s) {
		switch {
		case c >= '0' && c <= '9' && digits < 6:
			v[i], digits = v[i]*10+uint32(c-'0'), digits+1
		case c == '.' && digits > 0 && i < len(v)-1:
			i, digits = i+1, 0
		default:
			return v, false
		}
	}
	return v, digits > 0
}

// reaches says that a version is known and not below the least; "" is no least.
func reaches(have, least string) bool {
	if least == "" {
		return true
	}
	h, known := version(have)
	l, _ := version(least)
	return known && slices.Compare(h[:], l[:]) >= 0
}

func countGPUs(n int) string {
	switch n {
	case 0:
		return "no GPU"
	case 1:
		return "1 GPU"
	}
	return fmt.Sprintf("%d GPUs", n)
}

// asked says in words which devices are wanted.
func asked(want []GPURequest) string {
	var kinds []string
	for _, w := range want {
		kind := strings.TrimSpace(w.Vendor + " " + w.Model)
		if w.VRAM > 0 {
			kind = strings.TrimSpace(kind + " with " + w.VRAM.String())
		}
		if w.Compute != "" {
			kind = strings.TrimSpace(kind + " of compute capability " + w.Compute)
		}
		if kind != "" && !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	return strings.TrimSpace(countGPUs(len(want)) + " " + strings.Join(kinds, " and "))
}

// served says whether each request can have a device of its own. Requests that
// are all alike, the usual case, need only be counted.
func served(want []GPURequest, have []Device) bool {
	if len(want) > len(have) {
		return false
	}
	for _, w := range want {
		if w != want[0] {
			_, why := matchDevices(want, have)
			return why.OK()
		}
	}
	left := len(want)
	for i := range have {
		if left == 0 {
			break
		}
		if want[0].serves(&have[i]) {
			left--
		}
	}
	return left == 0
}

// matchDevices gives each request a device of its own, such that the devices
// taken are the smallest that serve: sorted by VRAM, none of them could be
// smaller. It offers the devices one by one, small ones first, and takes one if
// the requests can be shared out so that it serves as well (an augmenting path).
// Sets of devices that can serve at once form a matroid, so this is the best set.
func matchDevices(want []GPURequest, have []Device) ([]DeviceID, Reason) {
	if len(want) == 0 {
		return nil, Reason{}
	}
	if len(have) < len(want) {
		code := FitGPU
		if slices.ContainsFunc(want, func(w GPURequest) bool { return w.VRAM > 0 }) {
			code = FitVRAM
		}
		return nil, Reason{code, asked(want), countGPUs(len(have))}
	}
	devices := slices.Clone(have)
	slices.SortStableFunc(devices, func(a, b Device) int { return cmp.Compare(a.VRAM, b.VRAM) })
	given := make([]int, len(want)) // request → index of its device, or none
	const none = -1
	for i := range given {
		given[i] = none
	}
	var seen []bool
	var take func(d int) bool
	take = func(d int) bool {
		for r, w := range want {
			if seen[r] || !w.serves(&devices[d]) {
				continue
			}
			seen[r] = true
			if given[r] == none || take(given[r]) {
				given[r] = d
				return true
			}
		}
		return false
	}
	left := len(want)
	var spare []Device
	for d := range devices {
		seen = make([]bool, len(want))
		if left > 0 && take(d) {
			left--
		} else {
			spare = append(spare, devices[d])
		}
	}
	if left > 0 {
		var short Reason
		for r, w := range want {
			if given[r] != none {
				continue
			}
			if why := w.shortage(spare); short.OK() || (short.Code != FitVRAM && why.Code == FitVRAM) {
				short = why
			}
		}
		return nil, short
	}
	out := make([]DeviceID, len(want))
	for r, d := range given {
		out[r] = devices[d].ID
	}
	return out, Reason{}
}

func (w *GPURequest) serves(d *Device) bool {
	return d.VRAM >= w.Least() && w.takes(d) && w.named(d) && reaches(d.Compute, w.Compute) && reaches(d.Driver, w.Driver)
}

// takes says whether the device's kind of memory will do.
func (w *GPURequest) takes(d *Device) bool {
	return w.Kind == GPUAny || d.Unified == (w.Kind == GPUUnified)
}

func (w *GPURequest) named(d *Device) bool {
	return (w.Vendor == "" || strings.EqualFold(w.Vendor, d.Vendor)) && containsFold(d.Model, w.Model)
}

// containsFold says whether sub is in s, case ignored, without allocating where
// both are ASCII.
func containsFold(s, sub string) bool {
	if !ascii(s) || !ascii(sub) {
		return strings.Contains(strings.ToLower(s), strings.ToLower(sub))
	}
	for i := 0; i+len(sub) <= len(s); i++ {
		if strings.EqualFold(s[i:i+len(sub)], sub) {
			return true
		}
	}
	return false
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// shortage says why none of the devices left serves: VRAM before names, since
// VRAM is the first filter. It names the device that comes closest.
func (w *GPURequest) shortage(left []Device) Reason {
	pick := func(from []*Device, keep func(*Device) bool) (out []*Device) {
		for _, d := range from {
			if keep(d) {
				out = append(out, d)
			}
		}
		return out
	}
	// most is the first of those with the most memory.
	most := func(of []*Device) *Device {
		return slices.MaxFunc(of, func(a, b *Device) int { return cmp.Compare(a.VRAM, b.VRAM) })
	}
	all := make([]*Device, len(left))
	for i := range left {
		all[i] = &left[i]
	}
	if len(all) == 0 {
		return Reason{FitVRAM, w.VRAM.String(), "no GPU left"}
	}
	kin := pick(all, w.takes)
	if len(kin) == 0 {
		d := most(all)
		if w.Kind == GPUUnified {
			return Reason{FitUnified, "a GPU that shares the main memory", d.Model + " with memory of its own"}
		}
		return Reason{FitUnified, "a GPU with memory of its own", d.Model + ", which shares the main memory"}
	}
	named := pick(kin, w.named)
	if len(named) > 0 || most(kin).VRAM < w.Least() {
		near := most(kin)
		if len(named) > 0 {
			near = most(named)
		}
		if near.VRAM < w.Least() {
			return Reason{FitVRAM, w.wanted(near.VRAM), fmt.Sprintf("%s on %s", near.VRAM, near.Model) + w.lent(near) + w.uncounted(all)}
		}
	}
	if len(named) == 0 {
		return Reason{FitGPU, strings.TrimSpace(w.Vendor + " " + w.Model), most(kin).Model}
	}
	large := pick(named, func(d *Device) bool { return d.VRAM >= w.Least() })
	able := pick(large, func(d *Device) bool { return reaches(d.Compute, w.Compute) })
	if len(able) == 0 {
		return Reason{FitCompute, "compute capability " + w.Compute, newest(large, func(d *Device) string { return d.Compute })}
	}
	return Reason{FitGPUDriver, "GPU driver " + w.Driver, newest(able, func(d *Device) string { return d.Driver })}
}

// wanted says how much memory would do; of the tolerance where that is close.
func (w *GPURequest) wanted(have Bytes) string {
	if have >= w.VRAM-w.VRAM/20 {
		return fmt.Sprintf("%s (%s with the tolerance of 2 %%)", w.VRAM, w.Least())
	}
	return w.VRAM.String()
}

// lent says that others than the grid have the memory that a device lacks.
func (w *GPURequest) lent(d *Device) string {
	if d.Total < w.Least() || d.Unified {
		return ""
	}
	return fmt.Sprintf(" while others hold the rest of its %s", d.Total)
}

// uncounted names a device whose memory would be enough if it were its own.
func (w *GPURequest) uncounted(all []*Device) string {
	for _, d := range all {
		if d.VRAM >= w.Least() && !w.takes(d) && d.Unified {
			return fmt.Sprintf("; %s of main memory on %s do not count", d.VRAM, d.Model)
		}
	}
	return ""
}

// newest is the highest version among devices, and whose it is.
func newest(of []*Device, text func(*Device) string) string {
	d := slices.MaxFunc(of, func(a, b *Device) int {
		x, _ := version(text(a))
		y, _ := version(text(b))
		return slices.Compare(x[:], y[:])
	})
	return cmp.Or(text(d), "none known") + " on " + d.Model
}
