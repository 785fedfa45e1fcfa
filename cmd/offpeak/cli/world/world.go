// Package world is what every command of offpeak stands in: its streams and
// environment, the exit code it ends with, how an error and its next step are
// shown, and what the binary knows of itself.
//
// It knows no command. Its values are not shared between goroutines, but the
// streams of an Env may be. Errors carry what the process does with them: an
// *ExitError its exit code, one from Hint a next step, and every error that
// wraps offpeak.ErrInvalid is bad input, which is exit code 2.
package world

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

// Env is the outside world of a command.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	// Version and Commit are what the linker stamped, "" where it did not.
	Version, Commit string
}

// ExitUsage is the exit code for bad input.
const ExitUsage = 2

// ExitError ends the process with a code.
type ExitError struct {
	Code int
	// Err is printed, unless it is nil.
	Err error
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return ""
	}
	return e.Err.Error()
}

// Unwrap returns what is printed.
func (e *ExitError) Unwrap() error { return e.Err }

// Refuse marks an error as bad input; nil stays nil.
func Refuse(err error) error {
	if err == nil {
		return nil
	}
	return &ExitError{Code: ExitUsage, Err: err}
}

// BadInput is an error that ends the process with exit code 2.
func BadInput(format string, args ...any) error {
	return Refuse(fmt.Errorf(format, args...))
}

// Hint gives an error a next step of its own.
func Hint(err error, next string) error { return hinted{err, next} }

type hinted struct {
	error
	next string
}

func (h hinted) Unwrap() error { return h.error }

// Terminal says whether a stream is a terminal.
func Terminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
