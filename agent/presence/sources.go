package presence

import (
	"context"
	"time"
)

// Options say where sources look.
type Options struct {
	// Getenv reads the agent's environment: it names displays and buses.
	Getenv func(string) string
	// Sys is where /sys is found; "" is /sys.
	Sys string
}

// How often what costs more to read is read at most.
const (
	everyApps   = 5 * time.Second
	everyScreen = 5 * time.Second
	everyPower  = 5 * time.Second
	everyHeat   = 5 * time.Second
	everyNet    = 30 * time.Second
)

// Sources are this machine's, with what tells of its sleep, nil if nothing does.
// Call done when no watcher uses them any more.
func Sources(o Options) (list []Source, announce Announcer, done func()) {
	list, announce, done = system(o)
	list = append(list, apps())
	return list, announce, done
}

// input is a source of the time since the last input.
func input(name string, hint bool, idle func(ctx context.Context) (time.Duration, error)) Source {
	put := func(o *Observation, f Field[time.Duration]) {
		o.Input = append(o.Input, Input{Source: name, Hint: hint, Field: f})
	}
	return Source{
		Name: name,
		Read: func(ctx context.Context, p Policy) (Reading, error) {
			if p.IdleAfter == 0 {
				return func(*Observation, time.Duration) {}, nil
			}
			d, err := idle(ctx)
			if err != nil {
				return nil, err
			}
			return func(o *Observation, age time.Duration) { put(o, Read(d+age)) }, nil
		},
		Lost: func(o *Observation, err error) { put(o, Lost[time.Duration](err)) },
	}
}

// field is a source of one field, which is read where the policy minds it.
func field[T any](name string, every time.Duration, of func(*Observation) *Field[T], minds func(Policy) bool, read func(context.Context, Policy) (T, error)) Source {
	return Source{
		Name: name, Every: every,
		Read: func(ctx context.Context, p Policy) (Reading, error) {
			if !minds(p) {
				return func(*Observation, time.Duration) {}, nil
			}
			v, err := read(ctx, p)
			if err != nil {
				return nil, err
			}
			return func(o *Observation, _ time.Duration) { *of(o) = Read(v) }, nil
		},
		Lost: func(o *Observation, err error) { *of(o) = Lost[T](err) },
	}
}

func apps() Source {
	return field("programs", everyApps, func(o *Observation) *Field[[]string] { return &o.Apps }, func(p Policy) bool { return len(p.BusyApps) > 0 }, runningApps)
}

func screen(read func(context.Context) (string, error)) Source {
	return field("full screen", everyScreen, func(o *Observation) *Field[string] { return &o.FullScreen }, func(p Policy) bool { return p.FullScreen },
		func(ctx context.Context, _ Policy) (string, error) { return read(ctx) })
}

func power(read func(context.Context) (Power, error)) Source {
	return field("battery", everyPower, func(o *Observation) *Field[Power] { return &o.Power }, func(p Policy) bool { return !p.OnBattery.Always },
		func(ctx context.Context, _ Policy) (Power, error) { return read(ctx) })
}

func network(read func(context.Context) (bool, error)) Source {
	return field("network", everyNet, func(o *Observation) *Field[bool] { return &o.Metered }, func(p Policy) bool { return p.Metered != Always },
		func(ctx context.Context, _ Policy) (bool, error) { return read(ctx) })
}

func heat(read func(context.Context) (float64, error)) Source {
	return field("processor's temperature", everyHeat, func(o *Observation) *Field[float64] { return &o.CPU }, func(p Policy) bool { return p.MaxCPUTemperature > 0 },
		func(ctx context.Context, _ Policy) (float64, error) { return read(ctx) })
}

// Devices is a source of what GPUs do; an empty list is a machine without any.
func Devices(measure func(context.Context) ([]Device, error)) Source {
	return field("GPUs", 0, func(o *Observation) *Field[[]Device] { return &o.Devices },
		func(p Policy) bool { return p.MaxTemperature > 0 || p.GPUMemory > 0 || p.GPUUse > 0 },
		func(ctx context.Context, _ Policy) ([]Device, error) {
			list, err := measure(ctx)
			if err == nil && len(list) == 0 {
				err = ErrAbsent
			}
			return list, err
		})
}
