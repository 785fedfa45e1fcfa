package hardware

import (
	"math"
	"slices"

	"offpeak"
)

// What a reading must change by to be worth a word: anything less keeps what was
// said before.
const (
	newsDegrees = 4
	newsShare   = 20 // percent, of utilisation
	newsWatts   = 25
)

// Report is what a hub is told of a sample: as it was told before wherever that
// is still about right. Nil means that there is nothing new.
func Report(told []offpeak.Reading, s Sample) []offpeak.Reading {
	out := make([]offpeak.Reading, 0, len(s.Readings))
	news := len(told) != len(s.Readings)
	for i := range s.Readings {
		r := &s.Readings[i]
		var was offpeak.Reading
		if j := slices.IndexFunc(told, func(t offpeak.Reading) bool { return t.Device == r.Device.ID }); j >= 0 {
			was = told[j]
		} else {
			news = true
		}
		now := offpeak.Reading{Device: r.Device.ID, Throttled: r.Throttled}
		grain := 2 * step(r.Device.Total)
		now.Used = calm(was.Used, r.Used, grain, &news)
		if r.Used != nil {
			now.Others = calm(was.Others, &r.Foreign, grain, &news)
		}
		now.Temperature = calm(was.Temperature, whole(r.Temperature), newsDegrees, &news)
		now.Power = calm(was.Power, whole(r.Power), newsWatts, &news)
		now.Utilisation = calm(was.Utilisation, whole(r.Utilisation), newsShare, &news)
		news = news || !slices.Equal(was.Throttled, now.Throttled)
		out = append(out, now)
	}
	if !news {
		return nil
	}
	return out
}

// calm is what was said before, if what is now differs by less than the least.
func calm[N int | offpeak.Bytes](was, now *N, least N, news *bool) *N {
	if was != nil && now != nil && max(*was-*now, *now-*was) < least {
		return was
	}
	if was != nil || now != nil {
		*news = true
	}
	return now
}

func whole(f *float64) *int {
	if f == nil {
		return nil
	}
	n := int(math.Round(*f))
	return &n
}
