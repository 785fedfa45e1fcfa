package presence

import (
	"errors"
	"fmt"
)

// windowsPower reads the first bytes of a SYSTEM_POWER_STATUS. ErrAbsent: there is
// no battery. Windows does not tell a UPS from one.
func windowsPower(line, flag, percent byte) (Power, error) {
	const none, unknown, online = 128, 255, 1
	switch {
	case flag != unknown && flag&none != 0:
		return Power{}, fmt.Errorf("battery is %w", ErrAbsent)
	case line == unknown || flag == unknown:
		return Power{}, errors.New("what the machine runs on is not known to Windows")
	case percent > 100 && line != online:
		return Power{}, errors.New("how full the battery is is not known to Windows")
	}
	return Power{Battery: line != online, Percent: min(int(percent), 100)}, nil
}
