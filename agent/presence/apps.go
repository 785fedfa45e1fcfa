package presence

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/shirou/gopsutil/v4/process"
)

// runningApps lists which of a policy's programs run, each once.
func runningApps(ctx context.Context, p Policy) ([]string, error) {
	if len(p.BusyApps) == 0 {
		return nil, nil
	}
	pids, err := process.PidsWithContext(ctx)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, pid := range pids {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		// Not NewProcess, which looks twice whether it is there.
		name, err := (&process.Process{Pid: pid}).NameWithContext(ctx)
		if err == nil && printable(name) && p.busy(name) && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out, nil
}

// printable says that a name that a program gave itself may be shown.
func printable(name string) bool {
	return name != "" && len(name) <= maxAppName && !strings.ContainsFunc(name, func(r rune) bool { return !strconv.IsPrint(r) })
}
