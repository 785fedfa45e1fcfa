package supervisor

import (
	"testing"
	"time"

	"offpeak"
)

// at is a moment at which both clocks stand at d.
func at(d time.Duration) instant { return instant{Boot: int64(d), Mono: int64(d)} }

func TestDue(t *testing.T) {
	lease := Lease{Granted: 0, Timeout: 60 * time.Second}
	for _, c := range []struct {
		name string
		w    watch
		now  instant
		act  act
		wait time.Duration
	}{
		{"nothing is due without bounds", watch{}, at(time.Hour), actNone, 0},
		{"waits for three quarters of the lease", watch{lease: lease}, at(44 * time.Second), actNone, time.Second},
		{"freezes at three quarters", watch{lease: lease}, at(45 * time.Second), actFreeze, 0},
		{"freezes at once after a suspend", watch{lease: lease}, instant{Boot: int64(time.Hour), Mono: int64(time.Second)}, actFreeze, 0},
		{"a suspend is not run time", watch{limit: time.Minute}, instant{Boot: int64(time.Hour), Mono: int64(time.Second)}, actNone, 59 * time.Second},
		{"a frozen job by order freezes for lack of a lease too", watch{lease: lease, ordered: true}, at(45 * time.Second), actFreeze, 0},
		{"keeps a frozen job", watch{lease: lease, unleased: true, unleasedAt: int64(45 * time.Second), keep: time.Minute}, at(100 * time.Second), actNone, 5 * time.Second},
		{"kills a job frozen too long", watch{lease: lease, unleased: true, unleasedAt: int64(45 * time.Second), keep: time.Minute}, at(105 * time.Second), actLost, 0},
		{"the time limit gives notice", watch{limit: time.Minute}, at(time.Minute), actLimit, 0},
		{"frozen time is not run time", watch{limit: time.Minute, ordered: true, frozenAt: int64(time.Second)}, at(time.Hour), actNone, 0},
		{"earlier frozen time neither", watch{limit: time.Minute, pausing: 30 * time.Second}, at(time.Minute), actNone, 30 * time.Second},
		{"a noticed job is not noticed again", watch{limit: time.Minute, noticed: offpeak.EndDrained, killAt: int64(2 * time.Minute)}, at(time.Minute), actNone, time.Minute},
		{"the grace ends", watch{noticed: offpeak.EndDrained, killAt: int64(time.Minute)}, at(time.Minute), actGone, 0},
		{"the lease holds during the grace", watch{lease: lease, noticed: offpeak.EndDrained, killAt: int64(time.Minute)}, at(50 * time.Second), actFreeze, 0},
		{"nothing is due after a kill", watch{lease: lease, killed: offpeak.EndDrained}, at(time.Hour), actNone, 0},
	} {
		if act, wait := c.w.due(c.now); act != c.act || wait != c.wait {
			t.Errorf("%s: %v after %s, want %v after %s", c.name, act, wait, c.act, c.wait)
		}
	}
}

func TestFrozenByTwoCauses(t *testing.T) {
	w := watch{lease: Lease{Timeout: time.Minute}}
	if !w.freeze(at(10*time.Second), false) || w.why() != "" {
		t.Error("an order did not freeze")
	}
	if w.freeze(at(45*time.Second), true) || w.why() != offpeak.EndNodeLost {
		t.Error("the second cause changed the tree")
	}
	if w.thaw(at(50*time.Second), false) || !w.frozen() {
		t.Error("an order thawed a tree without a lease")
	}
	if w.renew(Lease{Granted: -1, Timeout: time.Hour}, at(51*time.Second)) {
		t.Error("an older lease lifts")
	}
	if w.renew(Lease{Granted: int64(time.Second), Timeout: time.Second}, at(51*time.Second)) {
		t.Error("a lease that has run out lifts")
	}
	if !w.renew(Lease{Granted: int64(50 * time.Second), Timeout: time.Minute}, at(51*time.Second)) {
		t.Error("a newer lease does not lift")
	}
	if !w.thaw(at(60*time.Second), true) || w.frozen() {
		t.Error("not thawed")
	}
	if got := w.ran(at(70 * time.Second)); got != 20*time.Second {
		t.Errorf("ran %s", got)
	}
}

func TestParseGroups(t *testing.T) {
	const mounts = `25 30 0:22 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
26 30 0:23 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
27 30 0:24 /docker/abc /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
28 30 0:25 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
29 30 0:26 / /proc rw - proc proc rw
broken line
`
	const self = "9:memory:/a/b\n8:cpu,cpuacct:/\n7:pids:/docker/abc/job\n0::/user.slice/" + agentLeaf + "\nbroken\n"
	got := parseGroups(mounts, self)
	for c, want := range map[string]string{
		"memory": "/sys/fs/cgroup/memory/a/b",
		"cpu":    "/sys/fs/cgroup/cpu,cpuacct",
		"pids":   "/sys/fs/cgroup/pids/job",
		"":       "/sys/fs/cgroup/unified/user.slice",
	} {
		if got[c].point != want || got[c].v2 != (c == "") {
			t.Errorf("%q: %+v, want %s", c, got[c], want)
		}
	}
}
