package steady

import (
	"testing"
	"time"
)

func TestClock(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	wall, elapsed := start, time.Duration(0)
	c := New(func() time.Time { return wall }, func() time.Duration { return elapsed })
	for _, step := range []struct {
		what          string
		wall, elapsed time.Duration
		want          time.Duration // since the start
	}{
		{"both go on", time.Second, time.Second, time.Second},
		{"set back by an hour", time.Second - time.Hour, time.Second, 2 * time.Second},
		{"goes on at its own pace", time.Minute, time.Minute, 62 * time.Second},
		{"set right again", time.Hour, 0, 62 * time.Second},
		{"suspended", time.Hour, time.Second, time.Hour + 62*time.Second},
		{"drifts forwards", time.Second + time.Millisecond, time.Second, time.Hour + 63*time.Second + time.Millisecond},
	} {
		wall, elapsed = wall.Add(step.wall), elapsed+step.elapsed
		if got := c.Now().Sub(start); got != step.want {
			t.Errorf("%s: %s after the start, want %s", step.what, got, step.want)
		}
	}
}
