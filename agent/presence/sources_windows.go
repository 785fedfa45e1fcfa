package presence

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

func system(Options) ([]Source, Announcer, func()) {
	user, kernel, shell := windows.NewLazySystemDLL("user32.dll"), windows.NewLazySystemDLL("kernel32.dll"), windows.NewLazySystemDLL("shell32.dll")
	lastInput, ticks := user.NewProc("GetLastInputInfo"), kernel.NewProc("GetTickCount")
	status, state := kernel.NewProc("GetSystemPowerStatus"), shell.NewProc("SHQueryUserNotificationState")
	list := []Source{
		input("desktop", false, func(context.Context) (time.Duration, error) {
			// A service has a session of its own, in which nobody types.
			var session uint32
			if err := windows.ProcessIdToSessionId(uint32(os.Getpid()), &session); err == nil && session == 0 {
				return 0, errors.New("can't be seen from a service")
			}
			info := struct{ size, time uint32 }{size: 8}
			if err := found(lastInput, ticks); err != nil {
				return 0, err
			}
			if ok, _, err := lastInput.Call(uintptr(unsafe.Pointer(&info))); ok == 0 {
				return 0, fmt.Errorf("ask for the last input: %w", err)
			}
			now, _, _ := ticks.Call()
			// Both count milliseconds in 32 bits and begin again after 49 days.
			return time.Duration(uint32(now)-info.time) * time.Millisecond, nil
		}),
		screen(func(context.Context) (string, error) {
			var is uint32
			if err := found(state); err != nil {
				return "", err
			}
			if bad, _, _ := state.Call(uintptr(unsafe.Pointer(&is))); bad != 0 {
				return "", fmt.Errorf("ask for the state of the desktop: error %#x", bad)
			}
			const busy, game, presentation = 2, 3, 4
			switch is {
			case busy:
				return "a window", nil
			case game:
				return "a game", nil
			case presentation:
				return "a presentation", nil
			}
			return "", nil
		}),
		power(func(context.Context) (Power, error) {
			var s struct {
				line, flag, percent, saver byte
				left, full                 uint32
			}
			if err := found(status); err != nil {
				return Power{}, err
			}
			if ok, _, err := status.Call(uintptr(unsafe.Pointer(&s))); ok == 0 {
				return Power{}, fmt.Errorf("ask for the power status: %w", err)
			}
			return windowsPower(s.line, s.flag, s.percent)
		}),
	}
	return list, nil, func() {}
}

// found says that functions are there, without the panic that calling them would
// be.
func found(list ...*windows.LazyProc) error {
	for _, p := range list {
		if err := p.Find(); err != nil {
			return err
		}
	}
	return nil
}
