package offpeak

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Offer is an ask joined with what is free on a node now.
type Offer struct {
	Node    NodeID
	Account AccountID
	Ask     Ask
	// Free is what no live lease holds; FreeDevices are the devices in it.
	Free        Resources
	FreeDevices []Device
	// Capacity and Devices are the same for the idle node.
	Capacity Resources
	Devices  []Device
	OS, Arch string
	Region   string
	Drivers  []string
	// Shared are the drivers that other accounts' jobs may use too.
	Shared []string
	Labels map[string]string
	// Ready says that the node is online, open and available; Why says why not.
	Ready bool
	Why   FitCode
	// FreeAt is when the last of the leases that hold something here reaches its
	// time limit. The zero time: nothing is held, or nobody knows.
	FreeAt time.Time
}

// FitCode is the stable code of the filter that a node failed; "" fits.
type FitCode string

// The filters, in the order in which they are tried. Those up to FitGPU hold
// for the idle node as well: time alone will not lift them.
const (
	FitOK FitCode = ""
	// FitDriver: the node lacks the driver.
	FitDriver FitCode = "driver"
	FitOS     FitCode = "os"
	FitArch   FitCode = "arch"
	FitLabel  FitCode = "label"
	FitTrust  FitCode = "trust"
	// FitStranger: the node runs jobs for this driver from its own account only.
	FitStranger FitCode = "stranger"
	FitPrice    FitCode = "price"
	// FitVRAM: too few devices of the node have the VRAM.
	FitVRAM FitCode = "vram"
	// FitGPU: too few devices of the node have the vendor or model.
	FitGPU    FitCode = "gpu"
	FitCPU    FitCode = "cpu"
	FitMemory FitCode = "memory"
	FitDisk   FitCode = "disk"
	// FitOffline to FitKept: the node takes no work now.
	FitOffline  FitCode = "offline"
	FitDraining FitCode = "draining"
	FitClosed   FitCode = "closed"
	FitInUse    FitCode = "in_use"
	// FitNoAsk: the node's owner asks nothing now, so it is offered to nobody.
	FitNoAsk FitCode = "no_ask"
	// FitKept: the node is kept for a job that bid more than what ran there.
	FitKept FitCode = "kept"
	// FitBusyGPU, FitBusyCPU, FitBusyMemory, FitBusyDisk: other leases hold it.
	FitBusyGPU    FitCode = "gpu_busy"
	FitBusyCPU    FitCode = "cpu_busy"
	FitBusyMemory FitCode = "memory_busy"
	FitBusyDisk   FitCode = "disk_busy"
	// FitFence: an earlier attempt failed there and another node fits.
	FitFence FitCode = "fence"
)

// Reason is why a requirement does not fit an offer. The zero Reason fits.
type Reason struct {
	Code FitCode `json:"code"`
	// Want and Have put numbers to it, for people.
	Want string `json:"want,omitempty"`
	Have string `json:"have,omitempty"`
}

// OK says that nothing stands in the way.
func (r Reason) OK() bool { return r.Code == FitOK }

// Lasting says that waiting alone will not lift the reason.
func (r Reason) Lasting() bool {
	switch r.Code {
	case FitDriver, FitOS, FitArch, FitLabel, FitTrust, FitStranger, FitPrice, FitVRAM, FitGPU, FitCPU, FitMemory, FitDisk:
		return true
	}
	return false
}

func (r Reason) String() string {
	if r.Want == "" && r.Have == "" {
		return string(r.Code)
	}
	return fmt.Sprintf("%s: wants %s, has %s", r.Code, r.Want, r.Have)
}

// Fit is the one predicate that decides whether a job of account with a task
// for driver fits an offer. It names the first filter that fails, in the order
// of the FitCode constants: what the node lacks altogether before what is
// merely taken now.
func (r Requirements) Fit(account AccountID, driver string, o Offer) Reason {
	return r.reason(r.refused(account, driver, &o), account, driver, &o)
}

// Fits is Fit for those who ask about many offers and need no words: it says
// whether the Reason would be OK, and allocates nothing where all GPUs asked
// for are alike.
func (r Requirements) Fits(account AccountID, driver string, o *Offer) bool {
	return r.refused(account, driver, o) == FitOK
}

// refused is the first filter that o fails. For devices it is FitGPU or
// FitBusyGPU, whatever they lack: reason looks closer.
func (r *Requirements) refused(account AccountID, driver string, o *Offer) FitCode {
	switch {
	case !slices.Contains(o.Drivers, driver):
		return FitDriver
	case r.OS != "" && r.OS != o.OS:
		return FitOS
	case r.Arch != "" && r.Arch != o.Arch:
		return FitArch
	}
	for k, v := range r.Where {
		if o.label(k) != v {
			return FitLabel
		}
	}
	switch {
	case r.Trust == TrustOwn && account != o.Account, r.Trust == TrustValidated && account != o.Account:
		return FitTrust
	case account != o.Account && !slices.Contains(o.Shared, driver):
		return FitStranger
	case o.Ask.For(*r) > r.limit():
		return FitPrice
	case !served(r.GPUs, o.Devices):
		return FitGPU
	case r.CPU > o.Capacity.CPU:
		return FitCPU
	case r.Memory > o.Capacity.Memory:
		return FitMemory
	case r.Disk > o.Capacity.Disk:
		return FitDisk
	case !o.Ready:
		return cmp.Or(o.Why, FitOffline)
	case !served(r.GPUs, o.FreeDevices):
		return FitBusyGPU
	case r.CPU > o.Free.CPU:
		return FitBusyCPU
	case r.Memory > o.Free.Memory:
		return FitBusyMemory
	case r.Disk > o.Free.Disk:
		return FitBusyDisk
	}
	return FitOK
}

// reason puts words to the filter that refused.
func (r *Requirements) reason(code FitCode, account AccountID, driver string, o *Offer) Reason {
	switch code {
	case FitDriver:
		return Reason{code, driver, strings.Join(o.Drivers, ", ")}
	case FitOS:
		return Reason{code, r.OS, o.OS}
	case FitArch:
		return Reason{code, r.Arch, o.Arch}
	case FitLabel:
		// In order, so that the same question always gets the same answer.
		for _, k := range slices.Sorted(maps.Keys(r.Where)) {
			v, have := r.Where[k], o.label(k)
			if have == v {
				continue
			}
			if have == "" {
				have = "none"
			} else {
				have = k + "=" + have
			}
			return Reason{code, k + "=" + v, have}
		}
	case FitTrust:
		if r.Trust == TrustOwn {
			return Reason{code, string(TrustOwn), "another account's node"}
		}
		return Reason{code, string(TrustValidated), "not validated"}
	case FitStranger:
		return Reason{code, "a node that takes other accounts' " + driver + " jobs", "its own account's only"}
	case FitPrice:
		return Reason{code, r.limit().String(), o.Ask.For(*r).String()}
	case FitGPU:
		_, why := matchDevices(r.GPUs, o.Devices)
		return why
	case FitCPU:
		return Reason{code, cores(r.CPU), cores(o.Capacity.CPU)}
	case FitMemory:
		return Reason{code, r.Memory.String(), o.Capacity.Memory.String()}
	case FitDisk:
		return Reason{code, r.Disk.String(), o.Capacity.Disk.String()}
	case FitBusyGPU:
		_, why := matchDevices(r.GPUs, o.FreeDevices)
		return Reason{code, why.Want, why.Have}
	case FitBusyCPU:
		return Reason{code, cores(r.CPU), cores(o.Free.CPU)}
	case FitBusyMemory:
		return Reason{code, r.Memory.String(), o.Free.Memory.String()}
	case FitBusyDisk:
		return Reason{code, r.Disk.String(), o.Free.Disk.String()}
	}
	return Reason{Code: code}
}

// limit is the most that the job pays an hour.
func (r *Requirements) limit() Price {
	if r.MaxPrice != nil && *r.MaxPrice < MaxPrice {
		return *r.MaxPrice
	}
	return MaxPrice
}

// label is the value of a label; the region is one of them.
func (o *Offer) label(k string) string {
	if k == "region" {
		return o.Region
	}
	return o.Labels[k]
}

// Assign picks the devices that a job gets from an offer it fits: for each
// request the device with the least VRAM that serves, so that large cards stay
// free. ok is false if the free devices do not serve.
func (r Requirements) Assign(o Offer) (res Resources, ok bool) {
	ids, why := matchDevices(r.GPUs, o.FreeDevices)
	return Resources{CPU: r.CPU, Memory: r.Memory, Disk: r.Disk, Devices: ids}, why.OK()
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
	return d.VRAM >= w.VRAM && w.named(d)
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
func (w GPURequest) shortage(left []Device) Reason {
	var best, named *Device
	for i := range left {
		d := &left[i]
		if best == nil || d.VRAM > best.VRAM {
			best = d
		}
		if w.named(d) && (named == nil || d.VRAM > named.VRAM) {
			named = d
		}
	}
	name := strings.TrimSpace(w.Vendor + " " + w.Model)
	switch {
	case best == nil || best.VRAM < w.VRAM || named != nil:
		if named == nil {
			named = best
		}
		if named == nil {
			return Reason{FitVRAM, w.VRAM.String(), "no GPU left"}
		}
		return Reason{FitVRAM, w.VRAM.String(), fmt.Sprintf("%s on %s", named.VRAM, named.Model)}
	default:
		return Reason{FitGPU, name, best.Model}
	}
}

func cores(milli int64) string {
	switch {
	case milli == 1000:
		return "1 core"
	case milli%1000 == 0:
		return fmt.Sprintf("%d cores", milli/1000)
	}
	return fmt.Sprintf("%.1f cores", float64(milli)/1000)
}
