package offpeak

import (
	"errors"
	"iter"
	"slices"
	"testing"
	"time"
	_ "time/tzdata"
)

func TestParseWindow(t *testing.T) {
	for in, want := range map[string]string{
		"22:00-06:00":                "daily 22:00-06:00",
		" mon-fri  22:00-06:00 ":     "mon-fri 22:00-06:00",
		"sat,sun 00:00-24:00":        "sat,sun 00:00-24:00",
		"fri-mon 23:00-06:00":        "mon,fri-sun 23:00-06:00",
		"sun,tue,wed,thu 0:00-01:00": "",
		"00:00-00:00":                "",
		"13:239-14:00":               "",
		"24:00-06:00":                "",
		"22:00-24:01":                "",
		"22:60-23:00":                "",
		"-1:00-02:00":                "",
		"22:00":                      "",
		"22:00-":                     "",
		"funday 22:00-23:00":         "",
		"22:00-06:00 mon":            "",
		"mon 22:00-06:00 tue":        "",
		"":                           "",
		"mon":                        "",
		"22-06":                      "",
		"22:00–06:00":                "",
	} {
		w, err := ParseWindow(in)
		if want == "" {
			if bad, ok := errors.AsType[*ValueError](err); !ok || bad.Rule == "" {
				t.Errorf("%q: %v, %v, want a *ValueError", in, w, err)
			}
			continue
		}
		if err != nil || w.String() != want {
			t.Errorf("%q: %q, %v, want %q", in, w, err, want)
		}
		back, err := ParseWindow(w.String())
		if err != nil || back != w {
			t.Errorf("%q does not come back: %v, %v", in, back, err)
		}
	}
}

// TestWindowIsTheClockOnTheWall looks at each minute of the days on which clocks
// are moved, and of others: a window is open exactly while the clock shows a time
// within it, and turns at no other moment than Turn says.
func TestWindowIsTheClockOnTheWall(t *testing.T) {
	for _, c := range []struct{ zone, day string }{
		{"Europe/Berlin", "2026-03-28"}, // forward on the 29th
		{"Europe/Berlin", "2026-10-24"}, // back on the 25th
		{"America/New_York", "2026-03-07"}, {"Australia/Lord_Howe", "2026-04-04"}, {"UTC", "2026-12-31"},
	} {
		zone, err := time.LoadLocation(c.zone)
		if err != nil {
			t.Fatal(err)
		}
		begin, err := time.ParseInLocation(time.DateOnly, c.day, zone)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"22:00-06:00", "sun 02:00-03:00", "sat 23:00-06:00", "sun 01:30-02:30", "sat,sun 00:00-24:00", "sun 00:00-03:00"} {
			w, err := ParseWindow(text)
			if err != nil {
				t.Fatal(err)
			}
			turn := Turn(begin, one(w))
			was := w.Open(begin)
			for at := begin; at.Before(begin.AddDate(0, 0, 3)); at = at.Add(time.Minute) {
				shows := Clock(at.Hour()*60 + at.Minute())
				want := false
				for _, day := range []time.Weekday{at.Weekday(), (at.Weekday() + 6) % 7} {
					today := day == at.Weekday()
					switch {
					case !w.Days.Has(day):
					case w.From < w.To:
						want = want || today && shows >= w.From && shows < w.To
					case today:
						want = want || shows >= w.From
					default:
						want = want || shows < w.To
					}
				}
				open := w.Open(at)
				if open != want {
					t.Fatalf("%s at %s: open %t, want %t", w, at, open, want)
				}
				if !at.Before(turn) {
					turn = Turn(at, one(w))
				} else if open != was {
					t.Fatalf("%s turned at %s, before %s", w, at, turn)
				}
				was = open
			}
		}
	}
}

func one(w Window) iter.Seq[Window] { return slices.Values([]Window{w}) }
