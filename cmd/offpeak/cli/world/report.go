package world

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"offpeak"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/wire"
)

// Report prints an error and its next step for people and returns the exit
// code: that of an *ExitError, 2 for bad input, else 1.
func Report(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	code := 1
	if errors.Is(err, offpeak.ErrInvalid) || errors.Is(err, offpeak.ErrTooLarge) {
		code = ExitUsage
	}
	var exit *ExitError
	if errors.As(err, &exit) {
		code = exit.Code
		if exit.Err == nil {
			return code
		}
	}
	var problem *wire.Problem
	if errors.As(err, &problem) && len(problem.Errors) > 0 {
		for _, f := range problem.Errors {
			value := ""
			if text, ok := f.Value.(string); ok && text != "" && len(text) <= 128 {
				value = strconv.Quote(text) + ": "
			}
			fmt.Fprintln(w, "error: "+render.Safe(strings.TrimPrefix(f.Location, "body.")+": "+value+f.Message))
		}
	} else {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			fmt.Fprintln(w, "error: "+render.Safe(line))
		}
	}
	if next := nextStep(err, problem); next != "" {
		fmt.Fprintln(w, "next: "+render.Safe(next))
	}
	return code
}

// Named has a hub's refusal name what the person wrote, not the field of the request
// in which it was sent: written says it, "" where it is called the same.
func Named(err error, written func(field string) string) error {
	if p, ok := errors.AsType[*wire.Problem](err); ok {
		for i, e := range p.Errors {
			if name := written(strings.TrimPrefix(e.Location, "body.")); name != "" {
				p.Errors[i].Location = name
			}
		}
	}
	return err
}

func nextStep(err error, problem *wire.Problem) string {
	var h hinted
	var gaveUp *remote.GaveUpError
	var wrong *wire.KeyError
	var untrusted *wire.UntrustedError
	switch {
	case errors.As(err, &h):
		return h.next
	case problem != nil && problem.Next != "":
		return problem.Next
	case errors.As(err, &wrong):
		return "If the hub has a new key, ask its operator for the fingerprint (the hub prints it when it starts) and log in again: `offpeak login URL --fingerprint …`. Else trust nothing at this address."
	case errors.As(err, &untrusted):
		return "If the hub signs its own certificate, pin its key: `offpeak login URL --fingerprint …`; the hub prints the fingerprint when it starts."
	case errors.Is(err, offpeak.ErrNotFound):
		return "See that it is written right and that you are who you mean to be (`offpeak whoami`): what belongs to another account is not found either."
	case errors.Is(err, offpeak.ErrUnavailable) || errors.As(err, &gaveUp):
		return "See that the hub runs and its address is right (`offpeak context ls`)."
	}
	return ""
}
