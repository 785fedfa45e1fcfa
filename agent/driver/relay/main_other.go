//go:build !linux

package relay

import (
	"fmt"
	"os"
)

// Main says that there are no network namespaces here.
func Main([]string) int {
	fmt.Fprintln(os.Stderr, "offpeak relay: only Linux has network namespaces")
	return exitReported
}
