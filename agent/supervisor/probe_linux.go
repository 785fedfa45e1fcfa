package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"offpeak"
	"offpeak/agent/driver"
)

const (
	probePrefix = "probe-"
	// probeBound is how long a probe may take.
	probeBound = 10 * time.Second
)

// Found is what a machine offers to fence and limit jobs.
type Found struct {
	// Fences are those that work here, best first.
	Fences []string
	// Limited says that CPU, memory and process limits are enforced.
	Limited bool
	// NoNetwork is nil if jobs can be given a network namespace of their own, else
	// why not.
	NoNetwork error
	// Warnings are for the machine's owner.
	Warnings []string
}

// Probe finds out what works by starting a supervisor with it. An agent calls
// it once, before it starts others: where the agent was given a cgroup of its
// own, Probe makes it fit to hold jobs. exe is the agent's binary. In dir it makes
// a folder for passing use, and removes those of agents that were killed in the
// middle of this.
func Probe(ctx context.Context, exe, dir string) (Found, error) {
	delegate()
	if err := sweepProbes(dir, time.Now()); err != nil {
		return Found{}, fmt.Errorf("probe fences: %w", err)
	}
	tmp, err := os.MkdirTemp(dir, probePrefix+"*")
	if err != nil {
		return Found{}, fmt.Errorf("probe fences: %w", err)
	}
	defer os.RemoveAll(tmp)
	ctx, cancel := context.WithTimeout(ctx, probeBound)
	defer cancel()
	h, err := Spawn(ctx, Options{Exe: exe, Dir: tmp})
	if err != nil {
		return Found{}, fmt.Errorf("probe fences: %w", err)
	}
	st, err := h.Do(ctx, Request{Status: &struct{}{}})
	apart := tryApart(ctx, h, exe, tmp)
	if eerr := h.End(ctx); err == nil {
		err = eerr
	}
	if err != nil {
		return Found{}, fmt.Errorf("probe fences: %w", err)
	}
	found := Found{Limited: st.Limited, NoNetwork: apart, Warnings: st.Warnings}
	// What is below the best needs no trial: groups were looked for on the way,
	// and the last two are always there.
	cg := makeCgroups(groupName(tmp))
	defer cg.close()
	for _, f := range []struct {
		name string
		ok   bool
	}{
		{FencePIDNamespace, st.Fence == FencePIDNamespace},
		{FenceCgroupV2, cg.v2 != ""},
		{FenceCgroupV1, len(cg.v1) > 0},
		{FenceSubreaper, true},
		{FenceProcessGroup, true},
	} {
		if f.ok {
			found.Fences = append(found.Fences, f.name)
		}
	}
	return found, nil
}

// tryApart has a supervisor start something in a network namespace: a usage message.
func tryApart(ctx context.Context, h *Handle, exe, dir string) error {
	x, err := h.try(ctx, driver.Command{Path: exe, Args: []string{"offpeak", "supervise"}, Dir: dir, NoNetwork: true}, dir)
	if err == nil && (x.Reason == offpeak.EndNodeError || x.Reason == offpeak.EndCommandNotFound) {
		return errors.New(x.Detail)
	}
	return err
}

// try runs a command to its end.
func (h *Handle) try(ctx context.Context, c driver.Command, dir string) (Exit, error) {
	_, err := h.Do(ctx, Request{Start: &Start{
		Lease: "probe", Folder: dir, Grace: time.Second, KeepFrozen: time.Second,
		Command: c, Deadline: Lease{Granted: BootTime(), Timeout: probeBound},
	}})
	for err == nil {
		var st Status
		if st, err = h.Do(ctx, Request{Status: &struct{}{}}); err == nil && st.Phase == Exited {
			return *st.Exit, nil
		}
		time.Sleep(time.Millisecond)
	}
	return Exit{}, err
}

// Try has a supervisor of its own run a command to its end, without limits, to find
// out whether it can. dir is a folder for passing use.
func Try(ctx context.Context, exe, dir string, c driver.Command) (Exit, error) {
	ctx, cancel := context.WithTimeout(ctx, probeBound)
	defer cancel()
	h, err := Spawn(ctx, Options{Exe: exe, Dir: dir})
	if err != nil {
		return Exit{}, err
	}
	x, err := h.try(ctx, c, dir)
	return x, errors.Join(err, h.End(ctx))
}

// sweepProbes removes probes' folders that no probe uses any more: they are
// older than one may take, with a supervisor's last minute on top.
func sweepProbes(dir string, now time.Time) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), probePrefix) {
			continue
		}
		info, err := e.Info()
		if err != nil || now.Sub(info.ModTime()) < probeBound+lonelyIdle {
			continue // gone, or perhaps in use
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
