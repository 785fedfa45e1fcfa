package presence

import (
	"context"
	"fmt"
	"os/exec"
	"time"
)

func system(Options) ([]Source, Announcer, func()) {
	list := []Source{
		input("ioreg", false, func(ctx context.Context) (time.Duration, error) {
			text, err := tool(ctx, "/usr/sbin/ioreg", "-r", "-d", "1", "-c", "IOHIDSystem")
			if err != nil {
				return 0, err
			}
			return ioregIdle(text)
		}),
		power(func(ctx context.Context) (Power, error) {
			text, err := tool(ctx, "/usr/bin/pmset", "-g", "batt")
			if err != nil {
				return Power{}, err
			}
			return pmsetPower(text)
		}),
	}
	return list, nil, func() {}
}

// tool returns what a program prints.
func tool(ctx context.Context, path string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = Bound / 4
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("run %s: %w", path, err)
	}
	return string(out), nil
}
