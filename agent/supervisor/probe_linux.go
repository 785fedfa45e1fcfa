package supervisor

import (
	"context"
	"fmt"
	"os"
	"time"
)

// Found is what a machine offers to fence and limit jobs.
type Found struct {
	// Fences are those that work here, best first.
	Fences []string
	// Limited says that CPU, memory and process limits are enforced.
	Limited bool
	// Warnings are for the machine's owner.
	Warnings []string
}

// Probe finds out what works by starting a supervisor with it. An agent calls
// it once, before it starts others: where the agent was given a cgroup of its
// own, Probe makes it fit to hold jobs. exe is the agent's binary, dir a folder
// for passing use.
func Probe(ctx context.Context, exe, dir string) (Found, error) {
	delegate()
	tmp, err := os.MkdirTemp(dir, "probe-*")
	if err != nil {
		return Found{}, fmt.Errorf("probe fences: %w", err)
	}
	defer os.RemoveAll(tmp)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	h, err := Spawn(ctx, Options{Exe: exe, Dir: tmp})
	if err != nil {
		return Found{}, fmt.Errorf("probe fences: %w", err)
	}
	st, err := h.Do(ctx, Request{Status: &struct{}{}})
	if eerr := h.End(ctx); err == nil {
		err = eerr
	}
	if err != nil {
		return Found{}, fmt.Errorf("probe fences: %w", err)
	}
	found := Found{Limited: st.Limited, Warnings: st.Warnings}
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
