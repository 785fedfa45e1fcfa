package presence

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The parsers of macOS's tools are here, and not in a file for that system alone,
// so that they are tested on all.

// ioregIdle finds the time since the last input in what `ioreg -r -d 1 -c
// IOHIDSystem` prints.
func ioregIdle(text string) (time.Duration, error) {
	const key = `"HIDIdleTime"`
	for line := range strings.Lines(text) {
		_, rest, ok := strings.Cut(line, key)
		if !ok {
			continue
		}
		rest, ok = strings.CutPrefix(strings.TrimSpace(rest), "=")
		n, err := strconv.ParseUint(strings.TrimSpace(rest), 10, 64)
		if !ok || err != nil {
			return 0, fmt.Errorf("ioreg says %q", strings.TrimSpace(line))
		}
		return millis(n / uint64(time.Millisecond)), nil
	}
	return 0, errors.New("ioreg does not tell the time since the last input")
}

// pmsetPower reads what `pmset -g batt` prints. ErrAbsent: the machine has no
// battery of its own, though perhaps a UPS.
func pmsetPower(text string) (Power, error) {
	const source = "Now drawing from '"
	_, rest, ok := strings.Cut(text, source)
	from, list, ok2 := strings.Cut(rest, "'")
	if !ok || !ok2 {
		return Power{}, errors.New("pmset does not tell what the machine runs on")
	}
	var all []charge
	for line := range strings.Lines(list) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "-InternalBattery") || strings.Contains(line, "present: false") {
			continue
		}
		// -InternalBattery-0 (id=4653155)	92%; discharging; 5:21 remaining present: true
		before, _, ok := strings.Cut(line, "%")
		fields := strings.Fields(before)
		if !ok || len(fields) == 0 {
			return Power{}, fmt.Errorf("pmset says %q", line)
		}
		n, err := strconv.Atoi(fields[len(fields)-1])
		if err != nil || n < 0 || n > 100 {
			return Power{}, fmt.Errorf("pmset says %q", line)
		}
		all = append(all, charge{percent: float64(n)})
	}
	if len(all) == 0 {
		return Power{}, fmt.Errorf("battery is %w", ErrAbsent)
	}
	return Power{Battery: from == "Battery Power", Percent: together(all)}, nil
}
