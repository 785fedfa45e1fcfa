package e2e

import (
	"os"
	"strconv"
	"testing"
	"time"

	"offpeak/internal/gridtest"
	"offpeak/internal/pgtest"
)

// times is how often a test does what it does: as often as the variable says,
// else so often as continuous integration has time for.
func times(t *testing.T, variable string, unset int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return unset
	}
	n, err := strconv.Atoi(text)
	if err != nil || n <= 0 {
		t.Fatalf("%s is %q: it has to be a number above 0", variable, text)
	}
	return n
}

// Three hubs on one database under load: one of them is killed every second, each
// in its turn, and started again. OFFPEAK_HUB_KILLS sets how often, 15 times if
// unset.
func TestHubsKilledInTurn(t *testing.T) {
	kills := times(t, "OFFPEAK_HUB_KILLS", 15)
	g := gridtest.StartHubs(t, bin, pgtest.Start(t).Database(t), 3, several)
	c := gather(t, g)
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for i := range kills {
		<-second.C
		h := g.Hubs[i%len(g.Hubs)]
		h.Kill()
		h.Start()
	}
	t.Logf("%d kills in %s", kills, time.Since(c.began).Round(time.Second))
	c.settle()
}
