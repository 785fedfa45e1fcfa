package placement

import (
	"slices"

	"offpeak"
)

// Reasons are all filters that an offer fails, in their order, each with what is
// missing: as if those before it had been lifted. Of what keeps a node from taking
// any work it names one.
func Reasons(job Job, o offpeak.Offer) (out []offpeak.Reason) {
	chain(job, &o, func(_ offpeak.FitCode, words func() offpeak.Reason) { out = append(out, words()) })
	return out
}

// chain asks the predicate again and again, lifting what it names.
func chain(job Job, offer *offpeak.Offer, failed func(offpeak.FitCode, func() offpeak.Reason)) {
	r, o := *job.Requirements, *offer
	said := make([]offpeak.FitCode, 0, 4)
	for range len(offpeak.FitCodes()) {
		code := r.Refused(job.Account, job.Driver, &o)
		words := func() offpeak.Reason { return r.Fit(job.Account, job.Driver, o) }
		if code == offpeak.FitOK {
			if until, fenced := job.Fenced(o.Node); fenced {
				failed(offpeak.FitFence, func() offpeak.Reason { return behind(until) })
			}
			return
		}
		if code == offpeak.FitGPU {
			code = words().Code // it looks closer
		}
		again := slices.Contains(said, code)
		if !again {
			said = append(said, code)
			failed(code, words)
		}
		lift(code, again, job.Driver, &r, &o)
	}
}

// lift takes a filter away: what the job asks for, or what the offer lacks. again
// says that lifting it was not enough.
func lift(code offpeak.FitCode, again bool, driver string, r *offpeak.Requirements, o *offpeak.Offer) {
	switch code {
	case offpeak.FitDriver:
		o.Drivers = append(slices.Clip(o.Drivers), driver)
	case offpeak.FitOS:
		r.OS = ""
	case offpeak.FitArch:
		r.Arch = ""
	case offpeak.FitNode:
		r.Nodes, r.NotNodes = nil, nil
	case offpeak.FitOwner:
		r.NotAccounts = nil
	case offpeak.FitLabel:
		r.Where, r.Match = nil, nil
	case offpeak.FitTrust:
		r.Trust = offpeak.TrustAny
	case offpeak.FitAccount:
		o.Guests = nil
	case offpeak.FitStranger:
		o.Shared = append(slices.Clip(o.Shared), driver)
	case offpeak.FitPrice:
		o.Ask = offpeak.Ask{}
	case offpeak.FitVRAM, offpeak.FitUnified, offpeak.FitGPU, offpeak.FitCompute, offpeak.FitGPUDriver:
		if again || len(o.Devices) < len(r.GPUs) {
			r.GPUs = nil
			return
		}
		r.GPUs = slices.Clone(r.GPUs)
		for i := range r.GPUs {
			g := &r.GPUs[i]
			switch code {
			case offpeak.FitVRAM:
				g.VRAM = 0
			case offpeak.FitUnified:
				g.Kind = offpeak.GPUAny
			case offpeak.FitGPU:
				g.Vendor, g.Model = "", ""
			case offpeak.FitCompute:
				g.Compute = ""
			case offpeak.FitGPUDriver:
				g.Driver = ""
			}
		}
	case offpeak.FitBusyGPU:
		r.GPUs = nil
	case offpeak.FitCPU, offpeak.FitBusyCPU:
		r.CPU = 0
	case offpeak.FitMemory, offpeak.FitBusyMemory:
		r.Memory = 0
	case offpeak.FitDisk, offpeak.FitBusyDisk:
		r.Disk = 0
	default:
		o.Ready = true
	}
}
