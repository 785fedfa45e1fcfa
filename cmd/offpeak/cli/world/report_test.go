package world

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"offpeak"
	"offpeak/wire"
)

// The code that the hub gives an error decides the exit code, and its fields
// and next step are shown.
func TestReportOfProblems(t *testing.T) {
	var b bytes.Buffer
	err := fmt.Errorf("submit: %w", &wire.Problem{Code: "invalid", Status: 422, Title: "Invalid", Next: "Change what is named and send it again.",
		Errors: []wire.FieldProblem{{Location: "body.task.driver", Message: "is process or wasm"}, {Location: "name", Message: "bad\x1b[2J"}}})
	if code := Report(&b, err); code != 2 {
		t.Errorf("exit code %d", code)
	}
	want := "error: task.driver: is process or wasm\nerror: name: bad\\x1b[2J\nnext: Change what is named and send it again.\n"
	if b.String() != want {
		t.Errorf("got %q", b.String())
	}
	b.Reset()
	Report(&b, Named(err, func(field string) string { return map[string]string{"task.driver": "--driver"}[field] }))
	if want := "error: --driver: is process or wasm\nerror: name: bad"; !strings.HasPrefix(b.String(), want) {
		t.Errorf("by the names of flags: %q", b.String())
	}
	for _, tt := range []struct {
		err  error
		code int
	}{
		{&wire.Problem{Code: "not_found", Status: 404}, 1},
		{offpeak.ErrTooLarge, 2},
		{&ExitError{Code: 9}, 9},
		{nil, 0},
	} {
		if code := Report(&b, tt.err); code != tt.code {
			t.Errorf("%v: exit code %d, want %d", tt.err, code, tt.code)
		}
	}
}
