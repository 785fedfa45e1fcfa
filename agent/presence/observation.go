package presence

import (
	"errors"
	"time"

	"offpeak"
)

// ErrAbsent says that a source has nothing to read on this machine, now: no display,
// no battery, no such service.
var ErrAbsent = errors.New("not there")

// Field is one thing that was looked at.
type Field[T any] struct {
	Value T
	// Known says that Value was read.
	Known bool
	// Absent says that there is nothing to read.
	Absent bool
	// Why says why Value is not known, for people.
	Why string
}

// Read is a field that was read.
func Read[T any](v T) Field[T] { return Field[T]{Value: v, Known: true} }

// Lost is a field that can't be read; Absent it is where err is ErrAbsent.
func Lost[T any](err error) Field[T] {
	return Field[T]{Why: err.Error(), Absent: errors.Is(err, ErrAbsent)}
}

// Observation is one look at the machine. The zero value saw nothing and knows of
// nothing to see.
type Observation struct {
	// Input is what each source of input says.
	Input []Input
	// Apps are those of the policy's programs that run.
	Apps Field[[]string]
	// FullScreen is the program that fills a screen, "" if none does.
	FullScreen Field[string]
	Power      Field[Power]
	// Metered says that the network is paid by volume.
	Metered Field[bool]
	// CPU is the processor's temperature in degrees Celsius.
	CPU     Field[float64]
	Devices Field[[]Device]
	// Asleep says that the machine is about to sleep, or is just waking.
	Asleep bool
}

// Input is for how long one source has seen no key and no pointer.
type Input struct {
	Source string
	// Hint says that it is a session's idle hint, which desktops may not set: it
	// counts where no other source knows.
	Hint bool
	Field[time.Duration]
}

// Power is what the machine runs on.
type Power struct {
	// Battery says that it runs on battery. A UPS is none.
	Battery bool
	// Percent is what all its batteries hold together.
	Percent int
}

// Device is what a GPU does now.
type Device struct {
	ID   offpeak.DeviceID
	Name string
	// Temperature is in degrees Celsius.
	Temperature Field[float64]
	// Others is the memory held by processes that are no job's.
	Others Field[offpeak.Bytes]
	// Use is how many percent of the time those processes keep it busy.
	Use Field[int]
}
