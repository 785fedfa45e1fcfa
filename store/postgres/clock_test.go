package postgres

import (
	"testing"
	"time"
)

func TestClockNoticesThatItWasSet(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name string
		// read is what the database says, elapsed what passed for the hub, and took
		// how long the answer took, for each of two looks after the first at 0.
		read, elapsed, took [2]time.Duration
		want                [2]time.Duration
	}{
		{name: "goes on", read: [2]time.Duration{time.Second, 2 * time.Second}, elapsed: [2]time.Duration{time.Second, 2 * time.Second}},
		{name: "drifts", read: [2]time.Duration{time.Hour + time.Second, 2*time.Hour + 2*time.Second}, elapsed: [2]time.Duration{time.Hour, 2 * time.Hour}},
		{
			name: "set forward", read: [2]time.Duration{time.Second, 2*time.Hour + 2*time.Second}, elapsed: [2]time.Duration{time.Second, 2 * time.Second},
			want: [2]time.Duration{0, 2 * time.Hour},
		},
		{
			name: "set back", read: [2]time.Duration{time.Second, -2*time.Hour + 2*time.Second}, elapsed: [2]time.Duration{time.Second, 2 * time.Second},
			want: [2]time.Duration{0, -2 * time.Hour},
		},
		{
			name: "a slow answer, of whatever moment", read: [2]time.Duration{time.Second, 9 * time.Second}, elapsed: [2]time.Duration{time.Second, 10 * time.Second},
			took: [2]time.Duration{0, 8 * time.Second},
		},
		{
			name: "a slow answer is no measure for the next", read: [2]time.Duration{time.Second, 9 * time.Second}, elapsed: [2]time.Duration{8 * time.Second, 9 * time.Second},
			took: [2]time.Duration{8 * time.Second, 0},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var at time.Duration
			c := clock{elapsed: func() time.Duration { return at }}
			if jump, _ := c.look(reading{at: start}, 0); jump != 0 {
				t.Fatalf("the first look = %s", jump)
			}
			for i := range tt.read {
				at = tt.elapsed[i]
				if jump, _ := c.look(reading{at: start.Add(tt.read[i])}, at-tt.took[i]); (jump - tt.want[i]).Abs() > time.Second {
					t.Errorf("look %d = %s, want about %s", i+1, jump, tt.want[i])
				}
			}
		})
	}
}

// What another hub took off is believed, whatever this hub's own clock says.
func TestClockBelievesOthers(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var at time.Duration
	c := clock{elapsed: func() time.Duration { return at }}
	c.look(reading{at: start}, 0)
	at = time.Second
	if jump, stale := c.look(reading{at: start.Add(time.Second), shift: -60e6, turn: 1}, at); jump != 0 || stale {
		t.Errorf("a minute that another hub took off = %s, stale %t", jump, stale)
	}
	at = 2 * time.Second
	if jump, _ := c.look(reading{at: start.Add(62 * time.Second), shift: -60e6, turn: 1}, at); (jump - time.Minute).Abs() > time.Second {
		t.Errorf("a minute that nobody took off = %s", jump)
	}
}

// What was read before a jump was taken off, and is looked at after it, is not the
// word of another hub: it would be the very jump.
func TestClockReadsAnewWhatIsStale(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	at := time.Second
	c := clock{elapsed: func() time.Duration { return at }}
	c.look(reading{at: start}, 0)
	back := start.Add(-2*time.Hour + time.Second)
	slow := reading{at: back}
	if jump, _ := c.look(reading{at: back}, at); (jump + 2*time.Hour).Abs() > time.Second {
		t.Fatalf("the clock was set back by %s", jump)
	}
	if jump, stale := c.look(reading{at: back, shift: (2 * time.Hour).Microseconds(), turn: 1}, at); jump != 0 || stale {
		t.Fatalf("once it is taken off: %s, stale %t", jump, stale)
	}
	if jump, stale := c.look(slow, at); jump != 0 || !stale {
		t.Errorf("what was read before = %s, stale %t", jump, stale)
	}
	if jump, stale := c.look(reading{at: back, shift: (2 * time.Hour).Microseconds(), turn: 1}, at); jump != 0 || stale {
		t.Errorf("after that: %s, stale %t", jump, stale)
	}
}
