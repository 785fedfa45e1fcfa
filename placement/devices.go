package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"offpeak"
)

// devices keeps one copy of each kind of device and of each set of devices that
// is free somewhere, so that what a job thinks of them is found out once for all
// nodes that have the same.
type devices struct {
	kinds   map[offpeak.Device]*kind
	uniform map[uniform]*deviceSet
	mixed   map[string]*deviceSet
	// answers are what the question at hand found of each kind, by its slot, side
	// by side since every question runs over them; unused are slots of kinds that
	// are gone. question numbers the questions.
	answers  []answer
	unused   []int
	question uint64
}

// answer is what the question of that number found of a kind.
type answer struct {
	question uint64
	serves   bool
	vram     offpeak.Bytes
	device   *offpeak.Device
}

// kind is a device without its id.
type kind struct {
	device offpeak.Device
	refs   int // sets of it
	slot   int // in answers
}

// uniform is a set of count devices of one kind.
type uniform struct {
	kind  *kind
	count int
}

// deviceSet is what devices are free on some nodes.
type deviceSet struct {
	uniform                  // kind is nil where they are of several
	key     string           // in devices.mixed
	refs    int              // nodes that have it
	devices []offpeak.Device // of a mixed set; their ids are their places
}

func newDevices() devices {
	return devices{kinds: make(map[offpeak.Device]*kind), uniform: make(map[uniform]*deviceSet), mixed: make(map[string]*deviceSet)}
}

// take returns the set of the devices, nil for none. Each take is given back.
func (d *devices) take(free []offpeak.Device) *deviceSet {
	if len(free) == 0 {
		return nil
	}
	s := d.find(free)
	s.refs++
	return s
}

func (d *devices) find(free []offpeak.Device) *deviceSet {
	first := nameless(free[0])
	for _, dev := range free[1:] {
		if nameless(dev) != first {
			return d.findMixed(free)
		}
	}
	k := d.kinds[first]
	if k == nil {
		k = d.newKind(first)
	}
	u := uniform{k, len(free)}
	s := d.uniform[u]
	if s == nil {
		s = &deviceSet{uniform: u}
		d.uniform[u] = s
		k.refs++
	}
	return s
}

func (d *devices) newKind(of offpeak.Device) *kind {
	k := &kind{device: of, slot: len(d.answers)}
	if last := len(d.unused) - 1; last >= 0 {
		k.slot, d.unused = d.unused[last], d.unused[:last]
	} else {
		d.answers = append(d.answers, answer{})
	}
	d.answers[k.slot] = answer{vram: of.VRAM, device: &k.device}
	d.kinds[of] = k
	return k
}

func (d *devices) findMixed(free []offpeak.Device) *deviceSet {
	all := make([]offpeak.Device, len(free))
	texts := make(map[offpeak.Device]string, len(free))
	for i, dev := range free {
		all[i] = nameless(dev)
		texts[all[i]] = fmt.Sprintf("%#v", all[i])
	}
	slices.SortFunc(all, func(x, y offpeak.Device) int {
		return cmp.Or(cmp.Compare(x.VRAM, y.VRAM), cmp.Compare(texts[x], texts[y]))
	})
	key := ""
	for i := range all {
		key += texts[all[i]]
		all[i].ID = offpeak.DeviceID(strconv.Itoa(i))
	}
	s := d.mixed[key]
	if s == nil {
		s = &deviceSet{uniform: uniform{nil, len(all)}, key: key, devices: all}
		d.mixed[key] = s
	}
	return s
}

func nameless(d offpeak.Device) offpeak.Device {
	d.ID = ""
	return d
}

// give takes a set back.
func (d *devices) give(s *deviceSet) {
	if s == nil {
		return
	}
	if s.refs--; s.refs > 0 {
		return
	}
	if s.kind == nil {
		delete(d.mixed, s.key)
		return
	}
	delete(d.uniform, s.uniform)
	if s.kind.refs--; s.kind.refs == 0 {
		delete(d.kinds, s.kind.device)
		d.answers[s.kind.slot] = answer{}
		d.unused = append(d.unused, s.kind.slot)
	}
}

// served says whether a set gives each request a device of its own, and how
// tightly: the share of the memory given that was asked for. It is 1 for a job
// that asks for none.
func (d *devices) served(a *ask, s *deviceSet) (vram float64, ok bool) {
	want := a.Requirements.GPUs
	if len(want) == 0 {
		return 1, true
	}
	if s == nil || s.count < len(want) {
		return 0, false
	}
	if s.kind != nil {
		return d.serves(a, s.kind.slot)
	}
	r := offpeak.Requirements{GPUs: want}
	res, ok := r.Assign(offpeak.Offer{FreeDevices: s.devices})
	if !ok {
		return 0, false
	}
	var given offpeak.Bytes
	for _, id := range res.Devices {
		i, _ := strconv.Atoi(string(id))
		given += s.devices[i].VRAM
	}
	return ratio(int64(a.vram), int64(given)), true
}

// serves is served for a set that has enough devices of one kind.
func (d *devices) serves(a *ask, slot int) (vram float64, ok bool) {
	of, want := &d.answers[slot], a.Requirements.GPUs
	if of.question != a.question {
		of.question, of.serves = a.question, true
		for i := range want {
			if !want[i].Serves(of.device) {
				of.serves = false
				break
			}
		}
	}
	return ratio(int64(a.vram), int64(of.vram)*int64(len(want))), of.serves
}
