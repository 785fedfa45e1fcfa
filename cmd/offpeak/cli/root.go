package cli

import (
	"io"

	"github.com/spf13/cobra"
)

// Env is the outside world of a command.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
}

// ExitError ends the process with a code.
type ExitError struct {
	Code int
	Err  error
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return ""
	}
	return e.Err.Error()
}

func (e *ExitError) Unwrap() error { return e.Err }

// New returns the command tree.
func New(env Env) *cobra.Command {
	root := &cobra.Command{Use: "offpeak", Short: "A compute grid for idle hardware", SilenceErrors: true, SilenceUsage: true}
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	root.AddCommand(clientCommands(env)...)
	return root
}
