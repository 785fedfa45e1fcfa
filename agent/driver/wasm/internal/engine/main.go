// Command engine is wasm.Main alone, for tests: a test binary built with the
// race detector would run modules many times slower and find nothing, since
// nothing in that process is concurrent.
package main

import (
	"os"

	"offpeak/agent/driver/wasm"
)

func main() { os.Exit(wasm.Main(os.Args[2:])) }
