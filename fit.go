package offpeak

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
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
	// Guests says whose jobs the owner takes; nil is everybody's.
	Guests *Guests
	// Opens is when the owner's hours next let the node work, or when its quarantine
	// ends, where that is known.
	Opens *time.Time
	// Ready says that the node is online, open and available; Why says why not.
	Ready bool
	Why   FitCode
	// FreeAt is when the last of the leases that hold something here reaches its
	// time limit. The zero time: nothing is held, or nobody knows.
	FreeAt time.Time
}

// FitCode is the stable code of the filter that a node failed; "" fits.
type FitCode string

// The filters, in the order in which they are tried. Those up to FitDisk hold
// for the idle node as well: time alone will not lift them.
const (
	FitOK FitCode = ""
	// FitDriver: the node lacks the driver.
	FitDriver FitCode = "driver"
	FitOS     FitCode = "os"
	FitArch   FitCode = "arch"
	// FitNode: the job names the nodes it may run on, or must not, and so rules
	// this one out. FitOwner: it does not run on nodes of this account.
	FitNode  FitCode = "node"
	FitOwner FitCode = "owner"
	FitLabel FitCode = "label"
	FitTrust FitCode = "trust"
	// FitAccount: the node's owner does not take jobs of the job's account.
	FitAccount FitCode = "account"
	// FitStranger: the node runs jobs for this driver from its own account only.
	FitStranger FitCode = "stranger"
	FitPrice    FitCode = "price"
	// FitVRAM: too few devices of the node have the VRAM.
	FitVRAM FitCode = "vram"
	// FitUnified: its devices share the main memory and the job asks for memory of
	// their own, or the other way round.
	FitUnified FitCode = "unified"
	// FitGPU: too few devices of the node have the vendor or model.
	FitGPU FitCode = "gpu"
	// FitCompute: their compute capability is below what is asked for, or unknown.
	FitCompute FitCode = "compute"
	// FitGPUDriver: the driver of the devices is older than asked for, or unknown.
	FitGPUDriver FitCode = "gpu_driver"
	FitCPU       FitCode = "cpu"
	FitMemory    FitCode = "memory"
	FitDisk      FitCode = "disk"
	// FitOffline to FitKept: the node takes no work now.
	FitOffline  FitCode = "offline"
	FitDraining FitCode = "draining"
	FitClosed   FitCode = "closed"
	FitInUse    FitCode = "in_use"
	// FitWindow: it is outside the hours in which its owner lets it work.
	FitWindow FitCode = "window"
	// FitQuarantined: jobs kept dying there by the node's fault.
	FitQuarantined FitCode = "quarantined"
	// FitNoAsk: the node's owner asks nothing now, so it is offered to nobody.
	FitNoAsk FitCode = "no_ask"
	// FitKept: the node is kept for a job that bid more than what ran there.
	FitKept FitCode = "kept"
	// FitBusyGPU, FitBusyCPU, FitBusyMemory, FitBusyDisk: other leases hold it.
	FitBusyGPU    FitCode = "gpu_busy"
	FitBusyCPU    FitCode = "cpu_busy"
	FitBusyMemory FitCode = "memory_busy"
	FitBusyDisk   FitCode = "disk_busy"
	// FitFence: an attempt of the job failed there, or was declined, a moment ago; the
	// fence ends by itself. Like those below it is not a matter of one offer, so Fit
	// never says it: who knows of the job's attempts, or of the account, does.
	FitFence FitCode = "fence"
	// FitQuota: the job's account has all the leases that its quota allows.
	FitQuota FitCode = "quota"
	// FitBudget, FitBalance: the job's budget or its account's balance does not
	// cover the first paid interval.
	FitBudget  FitCode = "budget"
	FitBalance FitCode = "balance"
)

// FitCodes returns the filters in the order in which they are tried.
func FitCodes() []FitCode {
	return []FitCode{
		FitDriver, FitOS, FitArch, FitNode, FitOwner, FitLabel, FitTrust, FitAccount, FitStranger, FitPrice,
		FitVRAM, FitUnified, FitGPU, FitCompute, FitGPUDriver, FitCPU, FitMemory, FitDisk,
		FitOffline, FitDraining, FitClosed, FitInUse, FitWindow, FitQuarantined, FitNoAsk, FitKept,
		FitBusyGPU, FitBusyCPU, FitBusyMemory, FitBusyDisk, FitFence, FitQuota, FitBudget, FitBalance,
	}
}

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
	case FitDriver, FitOS, FitArch, FitNode, FitOwner, FitLabel, FitTrust, FitAccount, FitStranger, FitPrice,
		FitVRAM, FitUnified, FitGPU, FitCompute, FitGPUDriver, FitCPU, FitMemory, FitDisk:
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
func (r *Requirements) Fits(account AccountID, driver string, o *Offer) bool {
	return r.refused(account, driver, o) == FitOK
}

// Refused is Fit without words: the code of the filter that failed. Where devices
// do not serve it is FitGPU or FitBusyGPU, whatever they lack.
func (r *Requirements) Refused(account AccountID, driver string, o *Offer) FitCode {
	return r.refused(account, driver, o)
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
	case len(r.Nodes) > 0 && !slices.Contains(r.Nodes, o.Node), slices.Contains(r.NotNodes, o.Node):
		return FitNode
	case slices.Contains(r.NotAccounts, o.Account):
		return FitOwner
	}
	for k, v := range r.Where {
		if o.label(k) != v {
			return FitLabel
		}
	}
	for _, text := range r.Match {
		if c, ok := parseCondition(text); !ok || !c.holds(o) {
			return FitLabel
		}
	}
	switch {
	case r.Trust == TrustOwn && account != o.Account, r.Trust == TrustValidated && account != o.Account:
		return FitTrust
	case account != o.Account && !o.Guests.Welcome(account):
		return FitAccount
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
	case FitNode:
		return Reason{code, r.nodesAsked(), string(o.Node)}
	case FitOwner:
		return Reason{code, "a node of another account", string(o.Account)}
	case FitLabel:
		return r.mislabelled(o)
	case FitTrust:
		if r.Trust == TrustOwn {
			return Reason{code, string(TrustOwn), "another account's node"}
		}
		return Reason{code, string(TrustValidated), "not validated"}
	case FitAccount:
		return Reason{code, "a node whose owner takes this account's jobs", "an owner who does not"}
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
	case FitWindow:
		have := "closed by its owner's hours"
		if o.Opens != nil {
			have = "opens at " + o.Opens.UTC().Format("2006-01-02 15:04 UTC")
		}
		return Reason{code, "a node that is open now", have}
	case FitQuarantined:
		have := "one job on probation, after several that died there"
		if o.Opens != nil {
			have = "several jobs that died there; one may try it at " + o.Opens.UTC().Format("2006-01-02 15:04 UTC")
		}
		return Reason{code, "a node where jobs do not die by its fault", have}
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

// Assign picks the devices that a job gets from an offer it fits: for each
// request the device with the least VRAM that serves, so that large cards stay
// free. ok is false if the free devices do not serve.
func (r Requirements) Assign(o Offer) (res Resources, ok bool) {
	ids, why := matchDevices(r.GPUs, o.FreeDevices)
	return Resources{CPU: r.CPU, Memory: r.Memory, Disk: r.Disk, Devices: ids}, why.OK()
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
