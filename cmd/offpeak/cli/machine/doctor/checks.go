package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"offpeak"
	"offpeak/agent/presence"
	"offpeak/wire"
)

// What little disk is left to jobs, and how far clocks may be apart.
const (
	noDisk     = 256 * offpeak.MiB
	littleDisk = 2 * offpeak.GiB
	closeClock = 30 * time.Second
)

func settings(ctx context.Context, w *World) (out []Line) {
	const check = "settings"
	if w.Settings == nil {
		return nil
	}
	s, err := w.Settings(ctx)
	if err != nil {
		return []Line{{check, Fail, err.Error(), "mend the file or the variable that it names"}}
	}
	if s.Accept == "any" {
		out = append(out, Line{check, Warn, "unfenced process jobs of any account run here (--accept any): they can do what your user can", "run the agent with --accept own unless you trust every account of the grid"})
	}
	if s.NoLimits {
		out = append(out, Line{check, Warn, "jobs are held to no limits (--no-limits): one may take all memory", "leave --no-limits out"})
	}
	if s.Root {
		out = append(out, Line{check, Warn, "this is root: a job that breaks out of its fence has the whole machine", "run the agent as a user of its own"})
	}
	if !s.Presence {
		out = append(out, Line{check, Warn, "nobody looks whether you are at the machine (--presence=false): right for a machine that is nobody's desk", ""})
	}
	if len(out) == 0 {
		out = []Line{{check, OK, "nothing that is unsafe", ""}}
	}
	return out
}

func folder(ctx context.Context, w *World) (out []Line) {
	const check = "data folder"
	if w.Folder == nil {
		return nil
	}
	f, err := w.Folder(ctx)
	if err != nil {
		return []Line{{check, Fail, err.Error(), "choose another with --data"}}
	}
	switch {
	case f.Foreign:
		out = append(out, Line{check, Fail, f.Path + " is another user's", "run this as the user that runs the agent, or choose another folder with --data"})
	case f.Write != nil:
		out = append(out, Line{check, Fail, fmt.Sprintf("%s: nothing can be written: %v", f.Path, f.Write), "mend its permissions or its disk, or choose another with --data"})
	case f.Absent:
		out = append(out, Line{check, OK, f.Path + " is not there yet; it is made when this machine joins", ""})
	case f.Open:
		out = append(out, Line{check, Fail, f.Path + " can be read by others, and it holds the node's key", "chmod -R go= " + f.Path})
	default:
		out = append(out, Line{check, OK, f.Path + " is the agent's alone and can be written", ""})
	}
	switch {
	case f.Free < noDisk:
		out = append(out, Line{"disk", Fail, f.Free.String() + " free: no job fits", "make room, or move the data folder with --data"})
	case f.Free < littleDisk:
		out = append(out, Line{"disk", Warn, about(f.Free) + " free: few jobs fit", "make room, or move the data folder with --data"})
	default:
		out = append(out, Line{"disk", OK, about(f.Free) + " free", ""})
	}
	return out
}

// about is a size for people.
func about(b offpeak.Bytes) string {
	if b >= offpeak.GiB {
		return fmt.Sprintf("%.1fGiB", float64(b)/float64(offpeak.GiB))
	}
	return fmt.Sprintf("%dMiB", b/offpeak.MiB)
}

// node says who the machine is and whether its hubs can be reached.
func node(ctx context.Context, w *World) (out []Line) {
	if w.Node == nil {
		return nil
	}
	n, err := w.Node(ctx)
	switch {
	case err != nil:
		return []Line{{"node", Fail, err.Error(), "run this as the user that runs the agent"}}
	case n.Lost != nil:
		out = append(out, Line{"node", Fail, n.Lost.Error(), ""})
	case !n.Joined:
		return []Line{{"node", Warn, "this machine is in no grid yet", "offpeak agent join TOKEN, with a token of `offpeak token join` on the hub's side"}}
	default:
		out = append(out, Line{"node", OK, fmt.Sprintf("%q (%s)", n.Name, n.ID), ""})
	}
	if n.Rules != "" {
		out = append(out, Line{"rules", Warn, n.Rules, "set them again with offpeak agent policy set"})
	}
	out = append(out, running(n.Running)...)
	return append(out, hubs(ctx, w, n)...)
}

func running(r *Running) []Line {
	const check = "agent"
	switch {
	case r == nil:
		return []Line{{check, Warn, "none runs, so the grid gets nothing of this machine", "start it with offpeak agent"}}
	case r.Conflict:
		return []Line{{check, Fail, "another agent uses this node's identity: a copied disk, or a cloned machine", "stop one of the two, remove its data folder and join it again"}}
	case !r.Connected:
		return []Line{{check, Warn, fmt.Sprintf("runs, pid %d, without its hub: %s", r.PID, r.Problem), "see what is said of the hub below"}}
	}
	return []Line{{check, OK, fmt.Sprintf("runs, pid %d, and its hub answers", r.PID), ""}}
}

func hubs(ctx context.Context, w *World, n Node) (out []Line) {
	if w.Hub == nil {
		return nil
	}
	answers, errs := make([]Hub, len(n.Hubs)), make([]error, len(n.Hubs))
	var all sync.WaitGroup
	for i, address := range n.Hubs {
		all.Go(func() { answers[i], errs[i] = w.Hub(ctx, address, n.Fingerprint) })
	}
	all.Wait()
	reached, told := 0, false
	for i, address := range n.Hubs {
		h, err := answers[i], errs[i]
		l := hub(address, n.Fingerprint, h, err)
		if err == nil {
			reached++
		}
		out = append(out, l)
		if err == nil && h.Told && !told {
			told = true
			out = append(out, clock(h.Ahead))
		}
	}
	// One that answers is enough.
	for i := range out {
		if reached > 0 && out[i].Level == Fail {
			out[i].Level = Warn
		}
	}
	if !told {
		out = append(out, Line{"clock", Warn, "not compared: no hub said what time it is", ""})
	}
	return out
}

func hub(address, fingerprint string, h Hub, err error) Line {
	const check = "hub"
	if _, other := errors.AsType[*wire.UntrustedError](err); other {
		return Line{check, Fail, fmt.Sprintf("%s: %v", address, err), "trust nothing there: ask its operator whether its key changed, then leave and join again"}
	}
	if err != nil {
		return Line{check, Fail, fmt.Sprintf("%s can't be reached: %v", address, err), "see that the hub runs, that this machine is on the network, and what HTTPS_PROXY and NO_PROXY say"}
	}
	text := fmt.Sprintf("%s answers in %s", address, h.Took.Round(time.Millisecond))
	if h.Family != "" {
		text += " over " + h.Family
	}
	if h.Via != "" {
		text += " through the proxy " + h.Via
	}
	switch {
	case strings.HasPrefix(address, "http:"):
		text += "; it is on this machine, so nothing is encrypted"
	case fingerprint != "":
		text += "; its key is the pinned one"
	default:
		text += "; its certificate is signed by an authority that this system trusts"
	}
	return Line{check, OK, text, ""}
}

func clock(ahead time.Duration) Line {
	if ahead.Abs() <= closeClock {
		return Line{"clock", OK, fmt.Sprintf("within %s of the hub's", closeClock), ""}
	}
	word := "behind"
	if ahead < 0 {
		word = "ahead of"
	}
	return Line{"clock", Warn, fmt.Sprintf("%s %s the hub's: no job suffers, but your hours and what is shown are off", ahead.Abs().Round(time.Second), word), "let the system set its clock by the network (timedatectl set-ntp true)"}
}

func fences(ctx context.Context, w *World) (out []Line) {
	const check = "fences"
	if w.Fences == nil {
		return nil
	}
	f, err := w.Fences(ctx)
	if err != nil {
		return []Line{{check, Fail, "no job can be started: " + err.Error(), "see that the data folder's disk allows programs to run"}}
	}
	words := map[string]string{
		"pid_namespace": "a namespace of its own, which ends with all that is in it", "cgroup_v2": "a cgroup, which names all that a job started",
		"cgroup_v1": "a cgroup, which names all that a job started", "subreaper": "the supervisor's children, looked for one by one", "process_group": "its process group alone",
	}
	switch {
	case len(f.Best) == 0:
		out = append(out, Line{check, Fail, "nothing holds a job's processes together", ""})
	case f.Best[0] == "pid_namespace" || strings.HasPrefix(f.Best[0], "cgroup"):
		out = append(out, Line{check, OK, "a job's processes are held by " + words[f.Best[0]], ""})
	default:
		out = append(out, Line{check, Warn, "a job's processes are held by " + words[f.Best[0]] + ": one that means to can stay", "allow user namespaces, or run the agent as a systemd service with Delegate=yes"})
	}
	if f.Limited {
		out = append(out, Line{"limits", OK, "CPU, memory and processes of jobs are limited", ""})
	} else {
		out = append(out, Line{"limits", Warn, "CPU, memory and processes of jobs are not limited: no cgroup may be written", "run the agent as a systemd service with Delegate=yes"})
	}
	for _, text := range f.Warnings {
		out = append(out, Line{check, Warn, text, ""})
	}
	return out
}

// cure is what makes a driver work that does not.
func cure(driver string) string {
	switch driver {
	case "bwrap":
		return "install bubblewrap (Debian: apt-get install bubblewrap) and allow user namespaces"
	case "container":
		return "install Podman (Debian: apt-get install podman) or Docker, for the user that runs the agent"
	case "gvisor":
		return "install runsc of gVisor (Debian: apt-get install runsc)"
	case "microvm":
		return "no version of Offpeak has it yet"
	}
	return ""
}

func drivers(ctx context.Context, w *World) (out []Line) {
	if w.Drivers == nil {
		return nil
	}
	works := false
	for _, d := range w.Drivers(ctx) {
		if d.Err != nil {
			out = append(out, Line{"driver " + d.Name, Warn, "not here: " + d.Err.Error(), cure(d.Name)})
			continue
		}
		works = true
		out = append(out, Line{"driver " + d.Name, OK, "works", ""})
	}
	if !works {
		out = append(out, Line{"drivers", Fail, "none works, so no job can run", ""})
	}
	return out
}

func machine(ctx context.Context, w *World) []Line {
	const check = "machine"
	if w.Machine == nil {
		return nil
	}
	inv, err := w.Machine(ctx)
	if err != nil {
		return []Line{{check, Fail, err.Error(), ""}}
	}
	out := []Line{{check, OK, fmt.Sprintf("offers %g cores, %s of memory and %s of disk (%s, %s)", float64(inv.CPU)/1000, about(inv.Memory), about(inv.Disk), inv.OS, inv.Arch), ""}}
	if inv.CPU == 0 || inv.Memory == 0 {
		out[0].Level, out[0].Next = Fail, "see --cpu and --memory"
	}
	for _, text := range inv.Warnings {
		out = append(out, Line{check, Warn, text, ""})
	}
	return out
}

func devices(ctx context.Context, w *World) (out []Line) {
	const check = "GPU"
	if w.Devices == nil {
		return nil
	}
	d, err := w.Devices(ctx)
	switch {
	case err != nil:
		return []Line{{check, Warn, err.Error(), ""}}
	case d.Withheld:
		return []Line{{check, OK, "none is offered: you said --gpus none", ""}}
	}
	for _, g := range d.List {
		text := fmt.Sprintf("%s: %s of memory, %s offered now", g.Model, about(g.Total), about(g.Offered))
		l := Line{check, OK, "", ""}
		switch {
		case g.Used == nil:
			l.Level, text = Warn, text+"; it does not tell who holds its memory, so jobs may find less"
		case g.Foreign > 0:
			text += fmt.Sprintf(", %s held by other programs", about(g.Foreign))
		}
		if g.Temperature == nil {
			l.Level, text = Warn, text+"; it does not tell its temperature, so no rule minds its heat"
		} else {
			text += fmt.Sprintf(", %.0f °C", *g.Temperature)
		}
		if len(g.Throttled) > 0 {
			l.Level, text = Warn, text+", slowed down by "+strings.ReplaceAll(strings.Join(g.Throttled, ", "), "_", " ")
			l.Next = "see to its cooling and its power supply"
		}
		l.Said = text
		out = append(out, l)
	}
	for _, text := range d.Warnings {
		out = append(out, Line{check, Warn, text, ""})
	}
	if len(out) == 0 {
		out = []Line{{check, OK, "none was found; jobs without a GPU run here", "if there is one, install its vendor's driver: nvidia-smi, rocm-smi or the kernel's own must see it"}}
	}
	return out
}

// rules says what each of the owner's rules sees now, and what counts where nothing can
// be seen. That a rule forbids work is its owner's will, and no fault.
func rules(ctx context.Context, w *World) (out []Line) {
	if w.Presence == nil {
		return nil
	}
	v, err := w.Presence(ctx)
	if err != nil {
		return []Line{{"presence", Warn, err.Error(), ""}}
	}
	unknown := map[string]string{}
	for _, text := range v.Unknown {
		name, why, _ := strings.Cut(text, ": ")
		unknown[name] = why
	}
	for _, r := range v.Rules {
		l := Line{"rule " + r.Name, OK, r.Seen, ""}
		switch r.Allow {
		case presence.AllowNone:
			l.Said += ", so no job runs now"
		case presence.AllowCPU:
			l.Said += ", so no job runs on a GPU now"
		}
		if why := unknown[r.Name]; why != "" {
			l.Level, l.Said = Warn, l.Said+"; can't be seen: "+why
			if r.Name == presence.RuleInput && r.Allow != presence.AllowAll {
				l.Next = "run the agent in your session, or say what counts: offpeak agent policy set --if-input-unknown away"
			}
		}
		out = append(out, l)
	}
	return out
}

func egress(ctx context.Context, w *World) []Line {
	const check = "egress"
	if w.Egress == nil {
		return nil
	}
	if err := w.Egress(ctx); err != nil {
		return []Line{{check, Warn, "jobs get no network: " + err.Error(), ""}}
	}
	return []Line{{check, OK, "a job's network is closed but for what is allowed", ""}}
}

func service(ctx context.Context, w *World) []Line {
	const check = "service"
	if w.Service == nil {
		return nil
	}
	found, err := w.Service(ctx)
	switch {
	case err != nil:
		return []Line{{check, Warn, err.Error(), ""}}
	case len(found) == 0:
		return []Line{{check, Warn, "not installed: the agent is gone when the machine starts anew", "offpeak agent install"}}
	}
	return []Line{{check, OK, strings.Join(found, ", "), ""}}
}
