package cli

import (
	"errors"
	"fmt"
	"io"

	"offpeak"
)

// Report prints an error for people and returns the exit code.
func Report(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	code := 1
	if errors.Is(err, offpeak.ErrInvalid) {
		code = 2
	}
	if exit, ok := errors.AsType[*ExitError](err); ok {
		code = exit.Code
	}
	if text := err.Error(); text != "" {
		fmt.Fprintln(w, "error: "+text)
	}
	return code
}
