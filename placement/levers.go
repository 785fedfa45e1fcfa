package placement

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"offpeak"
)

// lever is one thing of what a job asks for that a person can change.
type lever struct {
	// lifts are the filters that it may lift, the one that it is named by first.
	lifts []offpeak.FitCode
	flag  string
	// grace is what it takes to be otherwise, where it changes none of what the job
	// asks of a node; money is how much of that there is and must be.
	grace grace
	money func(g grace) (from, to offpeak.MicroCredits)
	// drop asks for none of it.
	drop func(r *offpeak.Requirements)
	// values are requirements with less of it, for a node, those nearest to what is
	// asked for first.
	values func(r *offpeak.Requirements, o *offpeak.Offer) []offpeak.Requirements
	// take copies what it changes.
	take func(to, from *offpeak.Requirements)
	// text is what its flag says.
	text func(r *offpeak.Requirements) string
	// gap is how far is from one to the other, at most 1.
	gap func(from, to *offpeak.Requirements) float64
}

// levers are what can be changed of requirements.
func levers(r *offpeak.Requirements) (out []lever) {
	add := func(there bool, l lever) {
		if !there || len(out) == maxLevers {
			return
		}
		if drop := l.drop; l.values == nil && drop != nil {
			l.values = func(r *offpeak.Requirements, _ *offpeak.Offer) []offpeak.Requirements {
				less := *r
				drop(&less)
				return []offpeak.Requirements{less}
			}
		}
		if l.gap == nil {
			l.gap = func(_, _ *offpeak.Requirements) float64 { return 1 }
		}
		out = append(out, l)
	}
	for _, code := range []offpeak.FitCode{offpeak.FitWindow, offpeak.FitQuarantined, offpeak.FitFence, offpeak.FitNoAsk} {
		add(true, lever{lifts: []offpeak.FitCode{code}, grace: grace{later: true}, drop: func(*offpeak.Requirements) {}, take: func(_, _ *offpeak.Requirements) {}})
	}
	add(r.MaxPrice != nil, priceLever())
	for _, l := range gpuLevers(r) {
		add(true, l)
	}
	add(r.CPU > 0, lever{
		lifts: []offpeak.FitCode{offpeak.FitCPU, offpeak.FitBusyCPU}, flag: "--cpu",
		drop: func(r *offpeak.Requirements) { r.CPU = 0 },
		values: func(r *offpeak.Requirements, o *offpeak.Offer) []offpeak.Requirements {
			less := *r
			less.CPU = o.Free.CPU
			return only(less, less.CPU > 0 && less.CPU < r.CPU)
		},
		take: func(to, from *offpeak.Requirements) { to.CPU = from.CPU },
		text: func(r *offpeak.Requirements) string {
			return strconv.FormatFloat(float64(r.CPU)/1000, 'f', -1, 64)
		},
		gap: func(from, to *offpeak.Requirements) float64 { return 1 - ratio(to.CPU, from.CPU) },
	})
	size := func(code, busy offpeak.FitCode, flag string, of func(*offpeak.Requirements) *offpeak.Bytes, free func(*offpeak.Offer) offpeak.Bytes) {
		add(*of(r) > 0, lever{
			lifts: []offpeak.FitCode{code, busy}, flag: flag,
			drop: func(r *offpeak.Requirements) { *of(r) = 0 },
			values: func(r *offpeak.Requirements, o *offpeak.Offer) []offpeak.Requirements {
				less := *r
				*of(&less) = sayable(free(o))
				return only(less, *of(&less) >= offpeak.MiB && *of(&less) < *of(r))
			},
			take: func(to, from *offpeak.Requirements) { *of(to) = *of(from) },
			text: func(r *offpeak.Requirements) string { return of(r).String() },
			gap:  func(from, to *offpeak.Requirements) float64 { return 1 - ratio(int64(*of(to)), int64(*of(from))) },
		})
	}
	size(offpeak.FitMemory, offpeak.FitBusyMemory, "--memory", func(r *offpeak.Requirements) *offpeak.Bytes { return &r.Memory }, func(o *offpeak.Offer) offpeak.Bytes { return o.Free.Memory })
	size(offpeak.FitDisk, offpeak.FitBusyDisk, "--disk", func(r *offpeak.Requirements) *offpeak.Bytes { return &r.Disk }, func(o *offpeak.Offer) offpeak.Bytes { return o.Free.Disk })
	add(r.OS != "", lever{
		lifts: []offpeak.FitCode{offpeak.FitOS}, flag: "--os", drop: func(r *offpeak.Requirements) { r.OS = "" },
		take: func(to, from *offpeak.Requirements) { to.OS = from.OS }, text: func(r *offpeak.Requirements) string { return r.OS },
	})
	add(r.Arch != "", lever{
		lifts: []offpeak.FitCode{offpeak.FitArch}, flag: "--arch", drop: func(r *offpeak.Requirements) { r.Arch = "" },
		take: func(to, from *offpeak.Requirements) { to.Arch = from.Arch }, text: func(r *offpeak.Requirements) string { return r.Arch },
	})
	add(len(r.Nodes) > 0, lever{
		lifts: []offpeak.FitCode{offpeak.FitNode}, flag: "--node", drop: func(r *offpeak.Requirements) { r.Nodes = nil },
		take: func(to, from *offpeak.Requirements) { to.Nodes = from.Nodes }, text: func(r *offpeak.Requirements) string { return listed(r.Nodes) },
	})
	add(len(r.NotNodes) > 0, lever{
		lifts: []offpeak.FitCode{offpeak.FitNode}, flag: "--not-node", drop: func(r *offpeak.Requirements) { r.NotNodes = nil },
		take: func(to, from *offpeak.Requirements) { to.NotNodes = from.NotNodes }, text: func(r *offpeak.Requirements) string { return listed(r.NotNodes) },
	})
	add(len(r.NotAccounts) > 0, lever{
		lifts: []offpeak.FitCode{offpeak.FitOwner}, flag: "--not-account", drop: func(r *offpeak.Requirements) { r.NotAccounts = nil },
		take: func(to, from *offpeak.Requirements) { to.NotAccounts = from.NotAccounts }, text: func(r *offpeak.Requirements) string { return listed(r.NotAccounts) },
	})
	add(len(r.Egress) > 0, lever{
		lifts: []offpeak.FitCode{offpeak.FitEgress}, flag: "--egress", drop: func(r *offpeak.Requirements) { r.Egress = nil },
		take: func(to, from *offpeak.Requirements) { to.Egress = from.Egress }, text: func(r *offpeak.Requirements) string { return strings.Join(r.Egress, ",") },
	})
	add(r.Trust != "" && r.Trust != offpeak.TrustAny, lever{
		lifts: []offpeak.FitCode{offpeak.FitTrust}, flag: "--trust", drop: func(r *offpeak.Requirements) { r.Trust = offpeak.TrustAny },
		take: func(to, from *offpeak.Requirements) { to.Trust = from.Trust }, text: func(r *offpeak.Requirements) string { return string(r.Trust) },
	})
	for _, k := range slices.Sorted(maps.Keys(r.Where)) {
		add(true, whereLever(k))
	}
	for _, m := range r.Match {
		add(true, matchLever(m))
	}
	return out
}

func whereLever(k string) lever {
	return lever{
		lifts: []offpeak.FitCode{offpeak.FitLabel}, flag: "--where",
		drop: func(r *offpeak.Requirements) {
			r.Where = maps.Clone(r.Where)
			delete(r.Where, k)
		},
		take: func(to, from *offpeak.Requirements) {
			if _, there := from.Where[k]; !there {
				to.Where = maps.Clone(to.Where)
				delete(to.Where, k)
			}
		},
		text: func(r *offpeak.Requirements) string {
			if v, there := r.Where[k]; there {
				return k + "=" + v
			}
			return ""
		},
	}
}

func matchLever(m string) lever {
	drop := func(r *offpeak.Requirements) {
		r.Match = slices.DeleteFunc(slices.Clone(r.Match), func(o string) bool { return o == m })
	}
	return lever{
		lifts: []offpeak.FitCode{offpeak.FitLabel}, flag: "--where", drop: drop,
		take: func(to, from *offpeak.Requirements) {
			if !slices.Contains(from.Match, m) {
				drop(to)
			}
		},
		text: func(r *offpeak.Requirements) string {
			if slices.Contains(r.Match, m) {
				return m
			}
			return ""
		},
	}
}

func priceLever() lever {
	return lever{
		lifts: []offpeak.FitCode{offpeak.FitPrice}, flag: "--max-price",
		drop: func(r *offpeak.Requirements) { r.MaxPrice = nil },
		values: func(r *offpeak.Requirements, o *offpeak.Offer) []offpeak.Requirements {
			more, price := *r, o.Ask.For(*r)
			more.MaxPrice = &price
			return only(more, price <= offpeak.MaxPrice)
		},
		take: func(to, from *offpeak.Requirements) { to.MaxPrice = from.MaxPrice },
		text: func(r *offpeak.Requirements) string {
			if r.MaxPrice == nil {
				return ""
			}
			return r.MaxPrice.String()
		},
		gap: func(from, to *offpeak.Requirements) float64 {
			if from.MaxPrice == nil || to.MaxPrice == nil {
				return 1
			}
			return 1 - ratio(int64(*from.MaxPrice), int64(*to.MaxPrice))
		},
	}
}

// devicesLift are the filters that ask for devices; of those the predicate without
// words names two.
func devicesLift(name offpeak.FitCode) []offpeak.FitCode {
	return []offpeak.FitCode{name, offpeak.FitGPU, offpeak.FitBusyGPU}
}

const gpusFlag = "--gpus"

// gpuLevers change what is asked of each device, or how many are asked for.
func gpuLevers(r *offpeak.Requirements) (out []lever) {
	if len(r.GPUs) == 0 {
		return nil
	}
	each := func(r *offpeak.Requirements, fn func(*offpeak.GPURequest)) {
		r.GPUs = slices.Clone(r.GPUs)
		for i := range r.GPUs {
			fn(&r.GPUs[i])
		}
	}
	take := func(fn func(to, from *offpeak.GPURequest)) func(to, from *offpeak.Requirements) {
		return func(to, from *offpeak.Requirements) {
			if len(to.GPUs) != len(from.GPUs) {
				return
			}
			to.GPUs = slices.Clone(to.GPUs)
			for i := range to.GPUs {
				fn(&to.GPUs[i], &from.GPUs[i])
			}
		}
	}
	words := func(of func(*offpeak.GPURequest) string) func(*offpeak.Requirements) string {
		return func(r *offpeak.Requirements) string {
			var all []string
			for i := range r.GPUs {
				if t := of(&r.GPUs[i]); t != "" && !slices.Contains(all, t) {
					all = append(all, t)
				}
			}
			return strings.Join(all, " and ")
		}
	}
	asks := func(of func(*offpeak.GPURequest) bool) bool {
		for i := range r.GPUs {
			if of(&r.GPUs[i]) {
				return true
			}
		}
		return false
	}
	if asks(func(g *offpeak.GPURequest) bool { return g.VRAM > 0 }) {
		out = append(out, lever{
			lifts: devicesLift(offpeak.FitVRAM), flag: "--vram",
			drop: func(r *offpeak.Requirements) { each(r, func(g *offpeak.GPURequest) { g.VRAM = 0 }) },
			values: func(r *offpeak.Requirements, o *offpeak.Offer) (list []offpeak.Requirements) {
				most := mostVRAM(r)
				for _, v := range sizes(o.FreeDevices, most) {
					less := *r
					each(&less, func(g *offpeak.GPURequest) { g.VRAM = min(g.VRAM, v) })
					list = append(list, less)
				}
				return list
			},
			take: take(func(to, from *offpeak.GPURequest) { to.VRAM = from.VRAM }),
			text: words(func(g *offpeak.GPURequest) string { return g.VRAM.String() }),
			gap: func(from, to *offpeak.Requirements) float64 {
				return 1 - ratio(int64(mostVRAM(to)), int64(mostVRAM(from)))
			},
		})
	}
	if len(r.GPUs) > 1 {
		fewer := func(r *offpeak.Requirements, n int) {
			// The largest go first: they are the hardest to find.
			list := slices.Clone(r.GPUs)
			slices.SortStableFunc(list, func(a, b offpeak.GPURequest) int { return cmp.Compare(a.VRAM, b.VRAM) })
			r.GPUs = list[:min(n, len(list))]
		}
		out = append(out, lever{
			// The price is that of all together.
			lifts: append(devicesLift(offpeak.FitGPU), offpeak.FitPrice, offpeak.FitQuota, offpeak.FitBudget, offpeak.FitBalance), flag: gpusFlag,
			drop: func(r *offpeak.Requirements) { fewer(r, 1) },
			values: func(r *offpeak.Requirements, o *offpeak.Offer) (list []offpeak.Requirements) {
				for n := min(len(r.GPUs)-1, len(o.FreeDevices)); n >= 1; n-- {
					less := *r
					fewer(&less, n)
					list = append(list, less)
				}
				return list
			},
			take: func(to, from *offpeak.Requirements) { fewer(to, len(from.GPUs)) },
			text: func(r *offpeak.Requirements) string { return strconv.Itoa(len(r.GPUs)) },
			gap: func(from, to *offpeak.Requirements) float64 {
				return 1 - ratio(int64(len(to.GPUs)), int64(len(from.GPUs)))
			},
		})
	}
	plain := func(code offpeak.FitCode, flag string, of func(*offpeak.GPURequest) *string, versions func(*offpeak.Device) string) {
		if !asks(func(g *offpeak.GPURequest) bool { return *of(g) != "" }) {
			return
		}
		l := lever{
			lifts: devicesLift(code), flag: flag,
			drop: func(r *offpeak.Requirements) { each(r, func(g *offpeak.GPURequest) { *of(g) = "" }) },
			take: take(func(to, from *offpeak.GPURequest) { *of(to) = *of(from) }),
			text: words(func(g *offpeak.GPURequest) string { return *of(g) }),
		}
		if versions != nil {
			l.values = func(r *offpeak.Requirements, o *offpeak.Offer) (list []offpeak.Requirements) {
				for _, v := range versionsOf(o.FreeDevices, versions) {
					less := *r
					each(&less, func(g *offpeak.GPURequest) {
						if *of(g) != "" && compareVersions(*of(g), v) > 0 {
							*of(g) = v
						}
					})
					list = append(list, less)
				}
				none := *r
				each(&none, func(g *offpeak.GPURequest) { *of(g) = "" })
				return append(list, none)
			}
		}
		out = append(out, l)
	}
	plain(offpeak.FitCompute, "--compute-capability", func(g *offpeak.GPURequest) *string { return &g.Compute }, func(d *offpeak.Device) string { return d.Compute })
	plain(offpeak.FitGPUDriver, "--gpu-driver", func(g *offpeak.GPURequest) *string { return &g.Driver }, func(d *offpeak.Device) string { return d.Driver })
	plain(offpeak.FitGPU, "--gpu-model", func(g *offpeak.GPURequest) *string { return &g.Model }, nil)
	plain(offpeak.FitGPU, "--gpu-vendor", func(g *offpeak.GPURequest) *string { return &g.Vendor }, nil)
	out = append(out, lever{
		lifts: devicesLift(offpeak.FitUnified), flag: "--gpu-kind",
		drop: func(r *offpeak.Requirements) { each(r, func(g *offpeak.GPURequest) { g.Kind = offpeak.GPUAny }) },
		take: take(func(to, from *offpeak.GPURequest) { to.Kind = from.Kind }),
		text: words(func(g *offpeak.GPURequest) string { return string(cmp.Or(g.Kind, offpeak.GPUDiscrete)) }),
	})
	return out
}

func only(r offpeak.Requirements, ok bool) []offpeak.Requirements {
	if !ok {
		return nil
	}
	return []offpeak.Requirements{r}
}

func mostVRAM(r *offpeak.Requirements) (most offpeak.Bytes) {
	for i := range r.GPUs {
		most = max(most, r.GPUs[i].VRAM)
	}
	return most
}

// sayable is a size as it is written, which may be a little less.
func sayable(b offpeak.Bytes) offpeak.Bytes {
	said, err := offpeak.ParseBytes(b.String())
	if err != nil {
		return 0
	}
	return min(said, b)
}

// sizes are what can be asked of the devices' memory, below a size, the largest
// first: the size that they are sold by where they count as that, else what they
// have.
func sizes(devices []offpeak.Device, below offpeak.Bytes) (out []offpeak.Bytes) {
	for i := range devices {
		have := devices[i].VRAM
		class := offpeak.GPURequest{VRAM: (have + offpeak.GiB - 1) / offpeak.GiB * offpeak.GiB}
		v := sayable(have)
		if class.Least() <= have {
			v = class.VRAM
		}
		for _, v := range []offpeak.Bytes{v, sayable(have)} {
			if v > 0 && v < below && !slices.Contains(out, v) {
				out = append(out, v)
			}
		}
	}
	slices.SortFunc(out, func(a, b offpeak.Bytes) int { return cmp.Compare(b, a) })
	return out
}

// versionsOf are the versions of devices that are numbers, the newest first.
func versionsOf(devices []offpeak.Device, of func(*offpeak.Device) string) (out []string) {
	for i := range devices {
		v := of(&devices[i])
		if v != "" && strings.Trim(v, "0123456789.") == "" && !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b string) int { return compareVersions(b, a) })
	return out
}

func compareVersions(a, b string) int {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(x), len(y)) {
		var m, n int
		if i < len(x) {
			m, _ = strconv.Atoi(x[i])
		}
		if i < len(y) {
			n, _ = strconv.Atoi(y[i])
		}
		if m != n {
			return cmp.Compare(m, n)
		}
	}
	return 0
}

func listed[T ~string](ids []T) string {
	const most = 3
	var out []string
	for _, id := range ids[:min(len(ids), most)] {
		out = append(out, string(id))
	}
	if more := len(ids) - most; more > 0 {
		out = append(out, fmt.Sprintf("%d more", more))
	}
	return strings.Join(out, ", ")
}
