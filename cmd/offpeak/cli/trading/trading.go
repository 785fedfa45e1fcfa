// Package trading holds the commands of the market, one file a command: what owners
// ask, what is offered, what a job would cost, what was paid.
//
// It owns their flags and what they print; how asks, windows and shares are written
// is the market's, how a hub is reached people's. Nothing here decides a price: the
// hub does. Commands are built by New and run one a process; the tests run them
// against a hub of their own.
package trading

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/market"
	"offpeak/wire"
)

// New returns the commands of the market.
func New(env world.Env) []*cobra.Command {
	return []*cobra.Command{newAsk(env), newMarket(env), newQuote(env)}
}

// read is a call that changes nothing.
func read[T any](ctx context.Context, hub *remote.Hub, f func(context.Context, *wire.Direct) (T, error)) (T, error) {
	return remote.Ask(ctx, hub, remote.Reading, f)
}

// change is a call that changes something, once however often it is made.
func change[T any](ctx context.Context, hub *remote.Hub, f func(context.Context, *wire.Direct, offpeak.OpID) (T, error)) (T, error) {
	op := remote.NewOp()
	return remote.Ask(ctx, hub, remote.Mutating, func(ctx context.Context, d *wire.Direct) (T, error) { return f(ctx, d, op) })
}

// askText prints what is asked, none where the node is offered to nobody.
func askText(a *offpeak.Ask) string {
	if a == nil {
		return "none"
	}
	return market.FormatAsk(*a)
}

// refused says which argument holds a value that breaks its rule.
func refused(field string, err error) error {
	if v, ok := errors.AsType[*offpeak.ValueError](err); ok {
		err = &offpeak.FieldError{Field: field, Value: v.Value, Rule: v.Rule}
	}
	return world.Refuse(err)
}

// inFlags names what the hub refuses of a plan by the flag, or the argument, that said it.
func inFlags(err error) error {
	p, ok := errors.AsType[*wire.Problem](err)
	if !ok || len(p.Errors) == 0 {
		return err
	}
	said := *p
	said.Errors = slices.Clone(p.Errors)
	for i := range said.Errors {
		e := &said.Errors[i]
		field := e.Location
		switch name, _, _ := strings.Cut(field, "["); name {
		case "ask", "ask.gpu":
			e.Location = "PRICE"
		case "ask.cpu":
			e.Location = "--cpu"
		case "windows":
			e.Location = "--window"
		case "zone", "from", "until", "floor":
			e.Location = "--" + name
		case "floor.gpu", "floor.cpu", "auto.floor":
			e.Location = "--floor"
		case "auto.discount_basis_points":
			e.Location = "--discount"
		case "auto.slack_basis_points":
			e.Location = "--slack"
		}
		said.Detail = strings.Replace(said.Detail, field+": ", e.Location+": ", 1)
	}
	return &said
}

// written refuses flags that were given and are empty: a variable that was not set
// must not be read as the default.
func written(cmd *cobra.Command, flags ...string) error {
	for _, name := range flags {
		if f := cmd.Flags().Lookup(name); f.Changed && f.Value.String() == "" {
			return world.Refuse(&offpeak.FieldError{Field: "--" + name, Rule: "is not empty: leave it out for the default"})
		}
	}
	return nil
}

// zone is where a person's clock hangs: as named, else the zone of this machine.
func zone(name string, getenv func(string) string) (string, *time.Location, error) {
	if name == "" {
		var ok bool
		if name, ok = machineZone(getenv); !ok {
			return "", nil, world.Refuse(&offpeak.FieldError{Field: "--zone", Rule: "is needed: this machine does not say in which time zone it is, for example Europe/Berlin"})
		}
	}
	z, err := time.LoadLocation(name)
	if err != nil || name == "Local" {
		return "", nil, world.Refuse(&offpeak.FieldError{Field: "--zone", Value: name, Rule: "is the name of a time zone, for example Europe/Berlin or America/New_York"})
	}
	return name, z, nil
}

// machineZone is the name of this machine's time zone, where it is known: Go has
// its rules, but calls it Local.
func machineZone(getenv func(string) string) (string, bool) {
	const link, folder = "/etc/localtime", "/zoneinfo/"
	if name := strings.TrimPrefix(getenv("TZ"), ":"); name != "" && !strings.HasPrefix(name, "/") {
		return name, true
	}
	if runtime.GOOS == "windows" {
		return "", false
	}
	to, err := os.Readlink(link)
	if at := strings.LastIndex(to, folder); err == nil && at >= 0 {
		return to[at+len(folder):], true
	}
	// Without the file a machine of this kind is on UTC.
	return "UTC", errors.Is(err, fs.ErrNotExist)
}

// moment reads a time that a person wrote by the clock of a zone.
func moment(field, text string, z *time.Location) (*time.Time, error) {
	if text == "" {
		return nil, nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return &t, nil
	}
	for _, layout := range []string{"2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, z); err == nil {
			return &t, nil
		}
	}
	return nil, world.Refuse(&offpeak.FieldError{Field: field, Value: text, Rule: "is a time, for example 2026-03-01, 2026-03-01 18:00 or 2026-03-01T18:00:00Z"})
}

// stamp prints a moment by this machine's clock, to the minute, "-" for none.
func stamp(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04")
}

// count is "1 offer" or "3 offers".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
