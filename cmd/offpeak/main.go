// Command offpeak is a hub, an agent and their command line in one binary.
package main

import (
	"context"
	"os"
	// Owners name time zones, and not every system knows them.
	_ "time/tzdata"

	"offpeak/agent/driver/relay"
	"offpeak/agent/driver/wasm"
	"offpeak/agent/supervisor"
	"offpeak/cmd/offpeak/cli"
)

// version and commit are set by the linker for releases.
var version, commit string

func main() {
	// The processes that agents start come first: they stay small.
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "supervise":
			os.Exit(supervisor.Main(os.Args[2:]))
		case wasm.Command:
			os.Exit(wasm.Main(os.Args[2:]))
		case relay.Command:
			os.Exit(relay.Main(os.Args[2:]))
		}
	}
	os.Exit(cli.Main(context.Background(), os.Args[1:], cli.Env{
		Stdin:   os.Stdin,
		Stdout:  os.Stdout,
		Stderr:  os.Stderr,
		Getenv:  os.Getenv,
		Version: version,
		Commit:  commit,
	}))
}
