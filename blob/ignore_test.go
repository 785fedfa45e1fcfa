package blob

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"offpeak"
)

func TestIgnore(t *testing.T) {
	for _, c := range []struct {
		name, text string
		out, in    []string // a slash at the end says that it is a folder
	}{
		{"standing rule", "", []string{".git/", "sub/.git/"}, []string{".git", ".gitignore", ".github/", "git/"}},
		{"taken back", "!.git/", nil, []string{".git/"}},
		{"comment", "# a\n#b\n", nil, []string{"a", "# a", "#b"}},
		{"escapes", "\\#a\n\\!b\n", []string{"#a", "!b"}, []string{"a", "b"}},
		{"blank", "\n  \n\t\na", []string{"a"}, []string{" ", "b"}},
		{"CRLF", "a\r\nb\r\n", []string{"a", "b"}, nil},
		{"space at the end", "a  \nb\\ ", []string{"a", "b "}, []string{"b"}},
		{"every depth", "a.log", []string{"a.log", "x/a.log", "x/y/a.log"}, []string{"a.log2", "xa.log"}},
		{"anchored", "/a", []string{"a", "a/"}, []string{"x/a"}},
		{"slash in the middle", "x/a", []string{"x/a"}, []string{"y/x/a", "a"}},
		{"folder only", "build/", []string{"build/", "x/build/"}, []string{"build", "x/build"}},
		{"star", "*.pt", []string{"m.pt", ".pt", "x/m.pt"}, []string{"m.pth"}},
		{"star stays in a name", "x/*.pt", []string{"x/m.pt"}, []string{"x/y/m.pt"}},
		{"question mark", "a?c", []string{"abc"}, []string{"ac", "abbc", "a/c"}},
		{"set", "[ab].txt", []string{"a.txt", "b.txt"}, []string{"c.txt"}},
		{"set negated", "[!ab].txt", []string{"c.txt"}, []string{"a.txt"}},
		{"set negated otherwise", "[^ab].txt", []string{"c.txt"}, []string{"a.txt"}},
		{"two stars first", "**/a", []string{"a", "x/a", "x/y/a"}, []string{"xa"}},
		{"two stars last", "x/**", []string{"x/a", "x/y/a"}, []string{"x/", "x", "y/x/a"}},
		{"two stars inside", "x/**/a", []string{"x/a", "x/y/a", "x/y/z/a"}, []string{"x/b", "xa"}},
		{"two stars twice", "**/x/**/a", []string{"x/a", "p/x/q/a"}, []string{"p/a"}},
		{"last wins", "*.txt\n!keep.txt", []string{"a.txt"}, []string{"keep.txt"}},
		{"last wins again", "!keep.txt\n*.txt", []string{"a.txt", "keep.txt"}, nil},
		{"slash alone", "/", nil, []string{"a", "a/"}},
	} {
		ig, err := ParseIgnore(c.text)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		check := func(list []string, want bool) {
			for _, p := range list {
				name, dir := strings.CutSuffix(p, "/")
				if got := ig.Match(name, dir); got != want {
					t.Errorf("%s: Match(%q) = %v", c.name, p, got)
				}
			}
		}
		check(c.out, true)
		check(c.in, false)
	}
}

func TestIgnoreNamesTheLine(t *testing.T) {
	_, err := ParseIgnore("fine\n[broken\n")
	var field *offpeak.FieldError
	if !errors.As(err, &field) || field.Field != "line 2" {
		t.Fatalf("%v, want line 2", err)
	}
}

func TestIgnoreHostilePatternIsCheap(t *testing.T) {
	ig, err := ParseIgnore(strings.Repeat("**/a/", 300) + "b")
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	ig.Match(strings.TrimSuffix(strings.Repeat("a/", 400), "/"), false)
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("took %s", d)
	}
}

func TestReadIgnore(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "train.py", "x")
	write(t, dir, ".git/config", "x")
	write(t, dir, "data/big.bin", "x")
	write(t, dir, "data/keep.csv", "x")
	root := openRoot(t, dir)
	ig, err := ReadIgnore(root)
	if err != nil {
		t.Fatal(err)
	}
	got := paths(pack(t, dir, PackOptions{Ignore: ig}).Manifest)
	if want := []string{"data/", "data/big.bin", "data/keep.csv", "train.py"}; !slices.Equal(got, want) {
		t.Errorf("without a file: %q", got)
	}
	write(t, dir, IgnoreFile, "data/*\n!*.csv\n"+IgnoreFile+"\n")
	if ig, err = ReadIgnore(root); err != nil {
		t.Fatal(err)
	}
	got = paths(pack(t, dir, PackOptions{Ignore: ig}).Manifest)
	if want := []string{"data/", "data/keep.csv", "train.py"}; !slices.Equal(got, want) {
		t.Errorf("with a file: %q", got)
	}
	write(t, dir, IgnoreFile, strings.Repeat("a\n", int(maxIgnore)))
	if _, err = ReadIgnore(root); !errors.Is(err, offpeak.ErrTooLarge) {
		t.Errorf("a huge file: %v", err)
	}
}
