// Package machine holds the commands with which an owner sees and rules what the
// agent does with the machine, one file a command.
//
// It owns their flags and what they print. What the rules mean is decided in
// agent/presence, what is kept and who is told in agent. Commands are built by New…
// and run one a process; the tests run them on data folders of their own.
package machine

import (
	"encoding/json"
	"io"

	"github.com/spf13/cobra"

	"offpeak/cmd/offpeak/cli/world"
)

// format is the flag that says how to print.
type format string

func (f *format) flag(cmd *cobra.Command) {
	cmd.Flags().StringVarP((*string)(f), "format", "o", "table", "print `table` or json")
}

// check refuses what is neither, before anything is done.
func (f format) check() error {
	if f != "table" && f != "json" {
		return world.BadInput("--format: %q: is table or json", string(f))
	}
	return nil
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return world.BadInput("%s takes no arguments, got %q", cmd.CommandPath(), args[0])
	}
	return nil
}
