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
			if jump := c.look(start, 0, 0); jump != 0 {
				t.Fatalf("the first look = %s", jump)
			}
			for i := range tt.read {
				at = tt.elapsed[i]
				if jump := c.look(start.Add(tt.read[i]), 0, at-tt.took[i]); (jump - tt.want[i]).Abs() > time.Second {
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
	c.look(start, 0, 0)
	at = time.Second
	if jump := c.look(start.Add(time.Second-time.Minute), -60e6, at); jump != 0 {
		t.Errorf("a minute that another hub took off = %s", jump)
	}
	at = 2 * time.Second
	if jump := c.look(start.Add(2*time.Second), -60e6, at); (jump - time.Minute).Abs() > time.Second {
		t.Errorf("a minute that nobody took off = %s", jump)
	}
}
