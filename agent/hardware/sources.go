package hardware

import (
	"time"

	"offpeak"
)

// slowly is how often a source is asked whose tool takes long.
const slowly = 5 * time.Minute

// all are the sources of a machine, in the order in which they are asked.
func (m *Meter) all(memory offpeak.Bytes) []*source {
	if m.src.Fake != "" {
		return []*source{{look: fake{dir: m.src.Fake, proc: m.src.Proc}.look}}
	}
	k := &kernel{src: &m.src, memory: memory, names: map[offpeak.DeviceID]string{}}
	r := &rocm{tool: tool{name: "rocm-smi", src: &m.src}, newer: tool{name: "amd-smi", src: &m.src}, kernel: k}
	a := &apple{tool: tool{name: "system_profiler", src: &m.src}, memory: memory}
	return []*source{
		{look: newNVIDIA(&m.src, memory).look},
		{look: k.look},
		{look: r.look, every: time.Minute},
		{look: a.look, every: slowly},
		{look: adapters(memory), every: slowly},
	}
}
