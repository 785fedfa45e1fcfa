// Package require is how a test says what it needs of the machine: a tool, a
// right, a feature of the kernel. Where that is missing the test is skipped by
// name; where the environment says OFFPEAK_TEST_REQUIRE=all, as continuous
// integration does, it fails. It is the only place that knows of the variable,
// but for tools/test, which counts every other skip as a failure too.
package require

import (
	"os"
	"os/exec"
	"testing"
)

// Tool returns the path of a command, or ends the test if there is none.
// Package is the Debian package that has it.
func Tool(t testing.TB, name, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	Met(t, err, name+" (apt-get install "+pkg+")")
	return path
}

// Met ends the test if err says that what it needs is not there: skipped, or
// failed where everything has to be there.
func Met(t testing.TB, err error, what string) {
	t.Helper()
	switch {
	case err == nil:
	case os.Getenv("OFFPEAK_TEST_REQUIRE") == "all":
		t.Fatalf("needs %s, as OFFPEAK_TEST_REQUIRE=all asks: %v", what, err)
	default:
		t.Skipf("needs %s: %v", what, err)
	}
}
