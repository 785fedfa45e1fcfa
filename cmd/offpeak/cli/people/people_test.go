package people

import (
	"strings"
	"testing"
)

func TestPick(t *testing.T) {
	ids, names := []string{"node_01a", "node_01b", "node_02a"}, []string{"tower", "laptop", "tower"}
	for _, tt := range []struct{ ref, want, err string }{
		{"node_01b", "node_01b", ""}, {"laptop", "node_01b", ""}, {"1b", "node_01b", ""},
		{"tower", "", "fits 2 of them"}, {"node_01", "", "fits 2 of them"}, {"", "", "not found"}, {"x", "", "not found"},
	} {
		got, err := pick("NODE", tt.ref, ids, names)
		if got != tt.want || (err == nil) != (tt.err == "") || (err != nil && !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("pick(%q) = %q, %v", tt.ref, got, err)
		}
	}
}
