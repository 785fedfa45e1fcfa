package doctor

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"offpeak"
	"offpeak/agent/books"
	"offpeak/agent/presence"
	"offpeak/wire"
)

func of[T any](v T, err error) func(context.Context) (T, error) {
	return func(context.Context) (T, error) { return v, err }
}

// well is a machine to which nothing is wanting.
func well() World {
	used, heat := offpeak.GiB, 44.0
	return World{
		Settings: of(Settings{Presence: true, Accept: "own", GPUs: "all"}, nil),
		Folder:   of(Folder{Path: "/home/me/agent", Free: 100 * offpeak.GiB}, nil),
		Node: of(Node{
			Joined: true, ID: "node_1", Name: "attic", Hubs: []string{"https://hub.example"}, Fingerprint: "ab", Running: &Running{PID: 7, Connected: true},
		}, nil),
		Hub: func(context.Context, string, string) (Hub, error) {
			return Hub{Family: "IPv6", Via: "http://proxy:3128", Told: true, Ahead: time.Second, Took: 12 * time.Millisecond}, nil
		},
		Fences:  of(Fences{Best: []string{"pid_namespace"}, Limited: true}, nil),
		Drivers: func(context.Context) []Driver { return []Driver{{Name: "process"}, {Name: "wasm"}} },
		Machine: of(offpeak.Inventory{CPU: 8000, Memory: 16 * offpeak.GiB, Disk: 90 * offpeak.GiB, OS: "linux", Arch: "amd64"}, nil),
		Devices: of(Devices{List: []books.Device{{Model: "RTX", Total: 24 * offpeak.GiB, Offered: 22 * offpeak.GiB, Used: &used, Foreign: offpeak.GiB, Temperature: &heat}}}, nil),
		Presence: of(presence.Verdict{Allow: presence.AllowAll, Rules: []presence.Rule{
			{Name: presence.RuleInput, Allow: presence.AllowAll, Seen: "untouched for 10m"}, {Name: presence.RuleBattery, Allow: presence.AllowAll, Seen: "mains"},
		}}, nil),
		Egress:  func(context.Context) error { return nil },
		Service: of([]string{"/etc/systemd/system/offpeak-agent.service"}, nil),
	}
}

// find returns the lines that say text.
func find(lines []Line, text string) (out []Line) {
	for _, l := range lines {
		if strings.Contains(l.Said, text) {
			out = append(out, l)
		}
	}
	return out
}

func TestWell(t *testing.T) {
	lines := Examine(t.Context(), well())
	if Worst(lines) != OK {
		t.Errorf("of a machine that is well: %+v", lines)
	}
	for _, want := range []string{"nothing that is unsafe", "the agent's alone", "100.0GiB free", `"attic" (node_1)`, "pid 7", "over IPv6 through the proxy http://proxy:3128; its key is the pinned one",
		"within 30s", "a namespace of its own", "are limited", "works", "8 cores, 16.0GiB of memory", "24.0GiB of memory, 22.0GiB offered now, 1.0GiB held by other programs, 44 °C", "untouched for 10m", "closed but for", "offpeak-agent.service"} {
		if len(find(lines, want)) == 0 {
			t.Errorf("nothing says %q in %+v", want, lines)
		}
	}
	if again := Examine(t.Context(), World{}); len(again) != 0 {
		t.Errorf("nothing was looked at, and %+v found", again)
	}
}

// What is wrong is named, with how bad it is and what to do.
func TestIll(t *testing.T) {
	gone := errors.New("no answer")
	for name, c := range map[string]struct {
		change func(*World)
		level  Level
		said   string
		next   string
	}{
		"settings":          {func(w *World) { w.Settings = of(Settings{}, errors.New(`agent.yaml: "colour" is not known`)) }, Fail, `"colour"`, "mend"},
		"any process job":   {func(w *World) { w.Settings = of(Settings{Accept: "any", Presence: true}, nil) }, Warn, "--accept any", "--accept own"},
		"no limits":         {func(w *World) { w.Settings = of(Settings{NoLimits: true, Presence: true}, nil) }, Warn, "--no-limits", "leave"},
		"root":              {func(w *World) { w.Settings = of(Settings{Root: true, Presence: true}, nil) }, Warn, "root", "user of its own"},
		"nobody looks":      {func(w *World) { w.Settings = of(Settings{}, nil) }, Warn, "--presence=false", ""},
		"folder unreadable": {func(w *World) { w.Folder = of(Folder{}, gone) }, Fail, "no answer", "--data"},
		"folder of another": {func(w *World) { w.Folder = of(Folder{Foreign: true, Free: offpeak.TiB}, nil) }, Fail, "another user's", "--data"},
		"folder open":       {func(w *World) { w.Folder = of(Folder{Path: "/d", Open: true, Free: offpeak.TiB}, nil) }, Fail, "read by others", "chmod -R go= /d"},
		"folder read-only":  {func(w *World) { w.Folder = of(Folder{Write: errors.New("read-only"), Free: offpeak.TiB}, nil) }, Fail, "read-only", "mend"},
		"folder absent":     {func(w *World) { w.Folder = of(Folder{Absent: true, Free: offpeak.TiB}, nil) }, OK, "not there yet", ""},
		"disk full":         {func(w *World) { w.Folder = of(Folder{Free: offpeak.MiB}, nil) }, Fail, "no job fits", "make room"},
		"disk nearly full":  {func(w *World) { w.Folder = of(Folder{Free: offpeak.GiB}, nil) }, Warn, "few jobs fit", "make room"},
		"before joining":    {func(w *World) { w.Node = of(Node{}, nil) }, Warn, "in no grid yet", "agent join"},
		"identity lost":     {func(w *World) { w.Node = of(Node{Lost: errors.New("the key is gone: join again")}, nil) }, Fail, "key is gone", ""},
		"rules damaged":     {func(w *World) { w.Node = of(Node{Joined: true, Rules: "they were damaged"}, nil) }, Warn, "damaged", "policy set"},
		"no agent":          {func(w *World) { w.Node = of(Node{Joined: true}, nil) }, Warn, "none runs", "offpeak agent"},
		"a clone":           {func(w *World) { w.Node = of(Node{Joined: true, Running: &Running{Conflict: true}}, nil) }, Fail, "identity", "stop one"},
		"agent without hub": {func(w *World) { w.Node = of(Node{Joined: true, Running: &Running{Problem: "timeout"}}, nil) }, Warn, "without its hub: timeout", "hub"},
		"hub away":          {func(w *World) { w.Hub = func(context.Context, string, string) (Hub, error) { return Hub{}, gone } }, Fail, "can't be reached: no answer", "HTTPS_PROXY"},
		"hub of another key": {func(w *World) {
			w.Hub = func(context.Context, string, string) (Hub, error) {
				return Hub{}, &wire.UntrustedError{Base: "x", Err: gone}
			}
		}, Fail, "no answer", "trust nothing"},
		"clock behind": {func(w *World) {
			w.Hub = func(context.Context, string, string) (Hub, error) { return Hub{Told: true, Ahead: time.Hour}, nil }
		}, Warn, "1h0m0s behind", "set-ntp"},
		"clock ahead": {func(w *World) {
			w.Hub = func(context.Context, string, string) (Hub, error) { return Hub{Told: true, Ahead: -time.Hour}, nil }
		}, Warn, "1h0m0s ahead of", "set-ntp"},
		"no supervisor": {func(w *World) { w.Fences = of(Fences{}, gone) }, Fail, "no job can be started", "data folder"},
		"a weak fence":  {func(w *World) { w.Fences = of(Fences{Best: []string{"process_group"}, Limited: true}, nil) }, Warn, "process group alone", "user namespaces"},
		"unlimited":     {func(w *World) { w.Fences = of(Fences{Best: []string{"cgroup_v2"}}, nil) }, Warn, "not limited", "Delegate=yes"},
		"a fence's warning": {func(w *World) {
			w.Fences = of(Fences{Best: []string{"cgroup_v2"}, Warnings: []string{"no pids controller"}}, nil)
		}, Warn, "no pids controller", ""},
		"a driver that is not": {func(w *World) {
			w.Drivers = func(context.Context) []Driver {
				return []Driver{{Name: "wasm"}, {"bwrap", errors.New("bwrap is not installed")}}
			}
		}, Warn, "not here: bwrap", "apt-get install bubblewrap"},
		"no driver":       {func(w *World) { w.Drivers = func(context.Context) []Driver { return []Driver{{"wasm", gone}} } }, Fail, "no job can run", ""},
		"nothing offered": {func(w *World) { w.Machine = of(offpeak.Inventory{}, nil) }, Fail, "0 cores", "--cpu"},
		"a warning of the kind": {func(w *World) {
			w.Machine = of(offpeak.Inventory{CPU: 1, Memory: 1, Warnings: []string{"disk: odd"}}, nil)
		}, Warn, "disk: odd", ""},
		"GPUs withheld":        {func(w *World) { w.Devices = of(Devices{Withheld: true}, nil) }, OK, "--gpus none", ""},
		"no GPU":               {func(w *World) { w.Devices = of(Devices{}, nil) }, OK, "none was found", "vendor's driver"},
		"a GPU that is silent": {func(w *World) { w.Devices = of(Devices{List: []books.Device{{Model: "Arc"}}}, nil) }, Warn, "does not tell its temperature", ""},
		"a GPU that throttles": {func(w *World) {
			w.Devices = of(Devices{List: []books.Device{{Model: "Arc", Throttled: []string{"power_cap"}}}}, nil)
		}, Warn, "power cap", "cooling"},
		"a GPU that is missing": {func(w *World) { w.Devices = of(Devices{Warnings: []string{"GPU missing: RTX"}}, nil) }, Warn, "GPU missing", ""},
		"the owner is there": {func(w *World) {
			w.Presence = of(presence.Verdict{Rules: []presence.Rule{{Name: presence.RuleInput, Seen: "you", Allow: presence.AllowNone}}}, nil)
		}, OK, "you, so no job runs now", ""},
		"a display that hides": {func(w *World) {
			w.Presence = of(presence.Verdict{Unknown: []string{"input: the display does not answer; you count as present"}, Rules: []presence.Rule{{Name: presence.RuleInput, Seen: "you", Allow: presence.AllowNone}}}, nil)
		}, Warn, "you count as present", "--if-input-unknown away"},
		"egress":     {func(w *World) { w.Egress = func(context.Context) error { return gone } }, Warn, "jobs get no network", ""},
		"no service": {func(w *World) { w.Service = of([]string(nil), nil) }, Warn, "not installed", "agent install"},
	} {
		t.Run(name, func(t *testing.T) {
			w := well()
			c.change(&w)
			lines := Examine(t.Context(), w)
			found := find(lines, c.said)
			if len(found) != 1 || found[0].Level != c.level || !strings.Contains(found[0].Next, c.next) || c.next == "" && found[0].Next != "" {
				t.Errorf("of %q: %+v, want %s with %q; all: %+v", c.said, found, c.level, c.next, lines)
			}
			if worst := Worst(lines); c.level == Fail && worst != Fail || c.level != Fail && worst == Fail {
				t.Errorf("the worst is %s", worst)
			}
		})
	}
}

// One hub of several that answers is enough.
func TestSeveralHubs(t *testing.T) {
	w := well()
	w.Node = of(Node{Joined: true, Hubs: []string{"https://a", "https://b"}, Running: &Running{Connected: true}}, nil)
	w.Hub = func(_ context.Context, address, _ string) (Hub, error) {
		if address == "https://a" {
			return Hub{}, errors.New("no answer")
		}
		return Hub{Told: true}, nil
	}
	lines := Examine(t.Context(), w)
	if l := find(lines, "https://a can't be reached"); len(l) != 1 || l[0].Level != Warn || Worst(lines) != Warn {
		t.Errorf("%+v", lines)
	}
	if l := find(lines, "https://b answers"); len(l) != 1 || !strings.Contains(l[0].Said, "signed by an authority") {
		t.Errorf("%+v", lines)
	}
}

// What hangs costs its own line.
func TestHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := well()
		release := make(chan struct{})
		defer close(release)
		w.Devices = func(context.Context) (Devices, error) { <-release; return Devices{}, nil }
		w.Hub = func(ctx context.Context, _, _ string) (Hub, error) { <-ctx.Done(); return Hub{}, ctx.Err() }
		began := time.Now()
		lines := Examine(t.Context(), w)
		if took := time.Since(began); took > Bound+time.Second {
			t.Errorf("it took %v", took)
		}
		if l := find(lines, "no answer within"); len(l) != 1 || l[0].Check != "GPUs" || l[0].Level != Warn {
			t.Errorf("the hang: %+v", l)
		}
		if len(find(lines, "can't be reached")) != 1 || len(find(lines, "untouched for 10m")) != 1 {
			t.Errorf("the rest: %+v", lines)
		}
	})
}
