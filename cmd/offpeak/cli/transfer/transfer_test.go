package transfer

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestDeclared(t *testing.T) {
	for _, tt := range []struct {
		path     string
		patterns []string
		want     bool
	}{
		{"model.json", []string{"model.json"}, true},
		{"out", []string{"out/*.csv"}, true},
		{"out/a.csv", []string{"out/*.csv"}, true},
		{"out/a.txt", []string{"out/*.csv"}, false},
		{"out/deep/a", []string{"out"}, true},
		{".bashrc", []string{"out", "*.json"}, false},
		{".git/hooks/pre-commit", []string{"model.json"}, false},
		{"anything/at/all", []string{"."}, true},
	} {
		if got := declared(tt.path, tt.patterns); got != tt.want {
			t.Errorf("declared(%q, %q) = %v", tt.path, tt.patterns, got)
		}
	}
}

func TestInputs(t *testing.T) {
	dir := t.TempDir()
	for _, f := range []string{"here/train.py", "here/data/a[1].csv", "there/b"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, f)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, f), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(filepath.Join(dir, "here"))
	for _, tt := range []struct {
		given []string
		root  string
		paths []string
		bad   bool
	}{
		{given: []string{"."}, root: "."},
		{given: []string{"data/"}, root: "data/"},
		{given: []string{"data", "./train.py"}, root: ".", paths: []string{"data", "train.py"}},
		{given: []string{"data/a[1].csv"}, root: ".", paths: []string{`data/a\[1].csv`}},
		{given: []string{"../there"}, root: dir, paths: []string{"there"}},
		{given: []string{"../there/"}, root: "../there/"},
		{given: []string{"data/", "train.py"}, bad: true},
		{given: []string{"data", "../there"}, bad: true},
		{given: []string{"train.py/"}, bad: true},
		{given: []string{"nothing"}, bad: true},
	} {
		root, paths, err := Inputs(tt.given)
		if (err != nil) != tt.bad || (err == nil && (root != tt.root || !slices.Equal(paths, tt.paths))) {
			t.Errorf("inputs(%q) = %q, %q, %v", tt.given, root, paths, err)
		}
	}
}
