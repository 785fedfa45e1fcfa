package people

import (
	"testing"

	"offpeak"
)

// A device's memory is printed to the byte, with its unit and whose it is.
func TestMemoryOfDevices(t *testing.T) {
	for want, d := range map[string]offpeak.Device{
		"4GiB":                         {VRAM: 4 * offpeak.GiB},
		"4095MiB":                      {VRAM: 4*offpeak.GiB - offpeak.MiB},
		"24564MiB":                     {VRAM: 24564 * offpeak.MiB},
		"143771MiB":                    {VRAM: 143771 * offpeak.MiB},
		"144385MiB":                    {VRAM: 141*offpeak.GiB + offpeak.MiB},
		"25753026561B":                 {VRAM: 25753026561},
		"24178MiB of 24564MiB":         {VRAM: 24178 * offpeak.MiB, Total: 24564 * offpeak.MiB},
		"16GiB of the main memory":     {VRAM: 16 * offpeak.GiB, Unified: true},
		"117925MiB of the main memory": {VRAM: 117925 * offpeak.MiB, Unified: true},
	} {
		if got := memory(d); got != want {
			t.Errorf("%d bytes: %q, want %q", d.VRAM, got, want)
		}
	}
}
