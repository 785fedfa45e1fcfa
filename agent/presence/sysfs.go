package presence

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"syscall"
)

// sysPower reads what the machine runs on from a tree like /sys. ErrAbsent: it has
// no battery of its own. A UPS is none, nor is a mouse's.
func sysPower(sys fs.FS) (Power, error) {
	const dir = "class/power_supply"
	entries, err := fs.ReadDir(sys, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return Power{}, fmt.Errorf("battery is %w", ErrAbsent)
	} else if err != nil {
		return Power{}, fmt.Errorf("read power supplies: %w", err)
	}
	var batteries []charge
	online, offline, discharging := false, false, false
	for _, e := range entries {
		s := supply{sys, path.Join(dir, e.Name())}
		kind, err := s.text("type")
		switch {
		case gone(err):
			continue
		case err != nil:
			return Power{}, fmt.Errorf("read power supply %s: %w", e.Name(), err)
		}
		switch kind {
		case "Mains", "USB", "Wireless":
			if scope, _ := s.text("scope"); scope == "Device" {
				continue
			}
			on, ok := s.number("online")
			online = online || ok && on > 0
			offline = offline || ok && on == 0 && kind == "Mains"
		case "Battery":
			scope, _ := s.text("scope")
			if in, ok := s.number("present"); scope == "Device" || ok && in == 0 {
				continue
			}
			c, err := s.charge()
			if gone(err) {
				continue
			} else if err != nil {
				return Power{}, fmt.Errorf("read battery %s: %w", e.Name(), err)
			}
			batteries = append(batteries, c)
			status, err := s.text("status")
			if err != nil && !gone(err) {
				return Power{}, fmt.Errorf("read battery %s: %w", e.Name(), err)
			}
			discharging = discharging || status == "Discharging"
			online = online || status == "Charging" || status == "Full"
		}
	}
	if len(batteries) == 0 {
		return Power{}, fmt.Errorf("battery is %w", ErrAbsent)
	}
	// A charger that is too weak leaves the battery discharging: that is on battery.
	return Power{Battery: discharging || offline && !online, Percent: together(batteries)}, nil
}

// gone says that a file is not there, or its device not any more.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.ENXIO)
}

// charge is what one battery holds, and how much that is of all; full is 0 where it
// does not say.
type charge struct {
	percent float64
	full    float64
}

// together is what several batteries hold: by their size where all say it.
func together(list []charge) int {
	var sum, all, plain float64
	sized := true
	for _, c := range list {
		sized = sized && c.full > 0
		sum, all, plain = sum+c.percent*c.full, all+c.full, plain+c.percent
	}
	if sized {
		return int(sum / all)
	}
	return int(plain / float64(len(list)))
}

// supply is the folder of one power supply.
type supply struct {
	sys fs.FS
	dir string
}

func (s supply) text(name string) (string, error) {
	b, err := fs.ReadFile(s.sys, path.Join(s.dir, name))
	return strings.TrimSpace(string(b)), err
}

func (s supply) number(name string) (float64, bool) {
	text, err := s.text(name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return float64(n), err == nil
}

func (s supply) charge() (c charge, err error) {
	now, full, ok := s.amounts("energy")
	if !ok {
		// In µAh: as good a measure among batteries of one voltage.
		now, full, ok = s.amounts("charge")
	}
	if ok {
		c.full = full
	}
	text, err := s.text("capacity")
	if err == nil {
		n, bad := strconv.Atoi(text)
		if bad == nil && n >= 0 {
			c.percent = float64(min(n, 100))
			return c, nil
		}
		err = fmt.Errorf("capacity %q is no percentage", text)
	}
	if ok {
		c.percent = min(100*now/full, 100)
		return c, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		if _, there := s.text("status"); there == nil {
			return c, errors.New("it does not say how full it is")
		}
	}
	return c, err
}

func (s supply) amounts(unit string) (now, full float64, ok bool) {
	now, ok1 := s.number(unit + "_now")
	full, ok2 := s.number(unit + "_full")
	return now, full, ok1 && ok2 && full > 0 && now >= 0
}

// sysHeat reads the processor's temperature from a tree like /sys: the hottest of
// the sensors that are known to be its. ErrAbsent: there is none.
func sysHeat(sys fs.FS) (float64, error) {
	names, err := fs.Glob(sys, "class/hwmon/hwmon*/name")
	if err != nil {
		return 0, err
	}
	hottest, found := 0.0, false
	var lost error
	for _, name := range names {
		b, _ := fs.ReadFile(sys, name)
		switch strings.TrimSpace(string(b)) {
		case "coretemp", "k10temp", "zenpower", "cpu_thermal":
		default:
			continue
		}
		sensors, _ := fs.Glob(sys, path.Join(path.Dir(name), "temp*_input"))
		for _, sensor := range sensors {
			b, err := fs.ReadFile(sys, sensor)
			if err != nil {
				lost = err
				continue
			}
			// Millidegrees; a sensor that is broken says what can't be.
			n, err := strconv.Atoi(strings.TrimSpace(string(b)))
			if err != nil || n < -50_000 || n > 200_000 {
				lost = fmt.Errorf("sensor says %q", strings.TrimSpace(string(b)))
				continue
			}
			if c := float64(n) / 1000; !found || c > hottest {
				hottest, found = c, true
			}
		}
	}
	switch {
	case found:
		return hottest, nil
	case lost != nil:
		return 0, fmt.Errorf("read the processor's temperature: %w", lost)
	}
	return 0, fmt.Errorf("processor's temperature sensor is %w", ErrAbsent)
}
