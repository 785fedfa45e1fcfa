package hardware

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"offpeak"
)

// Visible are the variables by which vendors' runtimes are told which devices a
// job has: have are the machine's, held the job's, in the order in which it asked
// for them. Devices go by UUID, since numbers differ between tools: CUDA counts
// by speed, its tool by bus. Intel's runtime knows numbers alone; its order is
// pinned to the bus's. A job is not told of devices that others hold. None of
// this is a fence.
func Visible(have []offpeak.Device, held []offpeak.DeviceID) map[string]string {
	by := map[string][]string{}
	all := make([]string, len(held))
	for i, id := range held {
		vendor := "nvidia" // also for one that is gone since
		if j := slices.IndexFunc(have, func(d offpeak.Device) bool { return d.ID == id }); j >= 0 {
			vendor = have[j].Vendor
		}
		all[i] = string(id)
		by[vendor] = append(by[vendor], string(id))
	}
	nvidia := strings.Join(by["nvidia"], ",")
	env := map[string]string{
		"OFFPEAK_DEVICES":        strings.Join(all, ","),
		"CUDA_VISIBLE_DEVICES":   nvidia,
		"NVIDIA_VISIBLE_DEVICES": cmp.Or(nvidia, "void"),
	}
	switch amd := by["amd"]; {
	case len(amd) == 0 && slices.ContainsFunc(have, func(d offpeak.Device) bool { return d.Vendor == "amd" }):
		env["ROCR_VISIBLE_DEVICES"], env["HIP_VISIBLE_DEVICES"] = "", "-1"
	case len(amd) == 0:
	case !slices.ContainsFunc(amd, func(id string) bool { return !strings.HasPrefix(id, "GPU-") }):
		env["ROCR_VISIBLE_DEVICES"] = strings.Join(amd, ",")
		// What stands above that runtime counts what it lets through, and takes
		// CUDA's variable for its own where it has none.
		numbers := make([]string, len(amd))
		for i := range amd {
			numbers[i] = strconv.Itoa(i)
		}
		env["HIP_VISIBLE_DEVICES"] = strings.Join(numbers, ",")
		if nvidia == "" {
			delete(env, "CUDA_VISIBLE_DEVICES")
		}
	case nvidia == "":
		// One without a UUID can't be named to it: the job sees all of AMD's, and
		// OFFPEAK_DEVICES says which is its own.
		delete(env, "CUDA_VISIBLE_DEVICES")
	}
	if intel := by["intel"]; len(intel) > 0 {
		var order []string
		for _, d := range have {
			if d.Vendor == "intel" {
				order = append(order, string(d.ID))
			}
		}
		slices.Sort(order) // addresses on the bus, all of one length
		var numbers []string
		for _, id := range intel {
			if i := slices.Index(order, id); i >= 0 {
				numbers = append(numbers, strconv.Itoa(i))
			}
		}
		env["ZE_ENABLE_PCI_ID_DEVICE_ORDER"], env["ZE_AFFINITY_MASK"] = "1", strings.Join(numbers, ",")
	}
	return env
}
