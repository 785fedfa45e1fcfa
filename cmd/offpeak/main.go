// Command offpeak is a hub, an agent and their command line in one binary.
package main

import (
	"context"
	"os"

	"offpeak/cmd/offpeak/cli"
)

// version is set by the linker for releases.
var version string

func main() {
	os.Exit(cli.Main(context.Background(), os.Args[1:], cli.Env{
		Stdin:   os.Stdin,
		Stdout:  os.Stdout,
		Stderr:  os.Stderr,
		Getenv:  os.Getenv,
		Version: version,
	}))
}
