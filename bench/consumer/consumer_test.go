package consumer_test

import (
	"reflect"
	"testing"

	"offpeak"
	"offpeak/bench/consumer"
)

// TestSameSeedSameFleet: a seed determines all that is drawn, another seed draws
// something else.
func TestSameSeedSameFleet(t *testing.T) {
	draw := func(seed uint64) (offers []offpeak.Offer, jobs []consumer.Job) {
		s := consumer.New(seed)
		for i := range 500 {
			offers, jobs = append(offers, s.Offer(i)), append(jobs, s.Job(i%7))
		}
		return offers, jobs
	}
	offers, jobs := draw(1)
	if o, j := draw(1); !reflect.DeepEqual(o, offers) || !reflect.DeepEqual(j, jobs) {
		t.Error("the same seed draws another fleet")
	}
	if o, j := draw(2); reflect.DeepEqual(o, offers) || reflect.DeepEqual(j, jobs) {
		t.Error("another seed draws the same fleet")
	}
}

// TestFleetIsWhatMeasurementsAssume: how common things are, in thousandths, give
// or take what a few thousand draws do.
func TestFleetIsWhatMeasurementsAssume(t *testing.T) {
	const n = 20_000
	s := consumer.New(7)
	count := map[string]int{}
	note := func(name string, is bool) {
		if is {
			count[name]++
		}
	}
	for i := range n {
		o := s.Offer(i)
		if err := o.Ask.Validate(); err != nil {
			t.Fatal(err)
		}
		within := o.Free.CPU >= 0 && o.Free.Memory > 0 && o.Free.CPU <= o.Capacity.CPU && o.Free.Memory <= o.Capacity.Memory && len(o.FreeDevices) <= len(o.Devices)
		if !within || len(o.Devices) != len(o.Capacity.Devices) || len(o.FreeDevices) != len(o.Free.Devices) || o.Ready == (o.Why != "") {
			t.Fatalf("%+v can't be", o)
		}
		if (len(o.Devices) > 0) != (o.Ask.GPU > 0) || o.Ask.CPU <= 0 {
			t.Fatalf("%+v has no price", o)
		}
		note("ready", o.Ready)
		note("with a device", len(o.Devices) > 0)
		note("with several devices", len(o.Devices) > 1)
		note("with 24 GB", len(o.Devices) > 0 && o.Devices[0].VRAM >= 24*offpeak.GB)
		note("with 48 GiB", len(o.Devices) > 0 && o.Devices[0].VRAM >= 48*offpeak.GiB)
		note("shared", len(o.Shared) > 0)
		note("wasm only", len(o.Drivers) == 1)
		note("windows", o.OS == "windows")
	}
	fits := 0
	var offers []offpeak.Offer
	for i := range 2000 {
		offers = append(offers, s.Offer(i))
	}
	for i := range n / 10 {
		j := s.Job(i % 7)
		note("jobs with devices", len(j.Requirements.GPUs) > 0)
		if i%10 == 0 {
			for k := range offers {
				if j.Requirements.Fits(j.Account, j.Driver, &offers[k]) {
					fits++
					break
				}
			}
		}
	}
	for _, c := range []struct {
		name        string
		of          int
		least, most int
	}{
		{"ready", n, 780, 820}, {"with a device", n, 780, 820}, {"with several devices", n, 20, 40}, {"with 24 GB", n, 50, 70}, {"with 48 GiB", n, 2, 10},
		{"shared", n, 835, 865}, {"wasm only", n, 90, 110}, {"windows", n, 690, 740}, {"jobs with devices", n / 10, 710, 790},
	} {
		if got := count[c.name] * 1000 / c.of; got < c.least || got > c.most {
			t.Errorf("%s: %d of a thousand, want %d to %d", c.name, got, c.least, c.most)
		}
	}
	if fits < 100 || fits > 199 {
		t.Errorf("of 200 jobs %d find a node among 2000: measurements want most to, and some not", fits)
	}
}
