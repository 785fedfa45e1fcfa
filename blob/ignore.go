package blob

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"offpeak"
)

// IgnoreFile is the name of the ignore file in a folder that is packed.
const IgnoreFile = ".offpeakignore"

const maxIgnore = 256 * offpeak.KiB

// Ignore says what to leave out when a folder is packed. The rules are a
// subset of git's, one pattern a line:
//
//   - blank lines and lines that begin with # say nothing; \# and \! begin a
//     pattern with that character; spaces at the end do not count;
//   - * stands for any text within a name, ? for one character, [a-z] for one
//     of a set and [!a-z] for one outside it, ** between slashes for any number
//     of folders, none included;
//   - a slash at the end matches folders only;
//   - a pattern with a slash at its beginning or middle is matched from the
//     folder that is packed, any other one at every depth;
//   - ! at the beginning takes matches back in. The last pattern that matches
//     decides. What is in a folder that is left out can't be taken back in,
//     since the folder is not looked into.
//
// One rule stands before all others: ".git/" is left out. "!.git/" takes it in.
type Ignore struct{ rules []ignoreRule }

type ignoreRule struct {
	names   []string
	dirOnly bool
	keep    bool
}

// ReadIgnore reads the ignore file in root; without one it returns the
// standing rule alone.
func ReadIgnore(root *os.Root) (*Ignore, error) {
	f, _, err := openPath(root, IgnoreFile)
	switch {
	case errors.Is(err, errSwapped):
		if _, err := root.Lstat(IgnoreFile); errors.Is(err, fs.ErrNotExist) {
			return ParseIgnore("")
		}
		return nil, fmt.Errorf("read %s: %w: it is not a regular file", IgnoreFile, offpeak.ErrInvalid)
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", IgnoreFile, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, int64(maxIgnore)+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", IgnoreFile, err)
	}
	if len(text) > int(maxIgnore) {
		return nil, fmt.Errorf("read %s: more than %s: %w", IgnoreFile, maxIgnore, offpeak.ErrTooLarge)
	}
	return ParseIgnore(string(text))
}

// ParseIgnore reads the text of an ignore file. It returns a *FieldError that
// names the line for a pattern that is not one.
func ParseIgnore(text string) (*Ignore, error) {
	ig := &Ignore{rules: []ignoreRule{{names: []string{"**", ".git"}, dirOnly: true}}}
	n := 0
	for line := range strings.Lines(text) {
		n++
		rule, ok := parseRule(strings.TrimRight(line, "\r\n"))
		if !ok {
			continue
		}
		for _, name := range rule.names {
			if _, err := path.Match(name, ""); err != nil {
				return nil, fmt.Errorf("read %s: %w", IgnoreFile, &offpeak.FieldError{Field: fmt.Sprintf("line %d", n), Value: strings.TrimSpace(line), Rule: "is a pattern: brackets are closed and not empty"})
			}
		}
		ig.rules = append(ig.rules, rule)
	}
	return ig, nil
}

func parseRule(line string) (rule ignoreRule, ok bool) {
	for strings.HasSuffix(line, " ") && !strings.HasSuffix(line, `\ `) {
		line = line[:len(line)-1]
	}
	if line == "" || line[0] == '#' {
		return rule, false
	}
	line, rule.keep = strings.CutPrefix(line, "!")
	line, rule.dirOnly = strings.CutSuffix(line, "/")
	anchored := strings.Contains(line, "/")
	line = strings.TrimPrefix(line, "/")
	if line == "" {
		return rule, false
	}
	if !anchored {
		rule.names = []string{"**"}
	}
	for name := range strings.SplitSeq(line, "/") {
		// path.Match writes [^a] where an ignore file writes [!a].
		rule.names = append(rule.names, strings.ReplaceAll(name, "[!", "[^"))
	}
	return rule, true
}

// Match says that the entry at a slash-separated path is left out. It looks at
// this entry alone: whoever walks does not enter folders that are left out. A
// nil Ignore leaves out nothing.
func (ig *Ignore) Match(p string, dir bool) bool {
	if ig == nil {
		return false
	}
	names := strings.Split(p, "/")
	for i := len(ig.rules) - 1; i >= 0; i-- {
		r := &ig.rules[i]
		if r.dirOnly && !dir {
			continue
		}
		if matchNames(r.names, names) {
			return !r.keep
		}
	}
	return false
}

// matchNames matches name by name. On a mismatch only the last ** takes one
// more folder, so a hostile pattern costs no more than the product of lengths.
func matchNames(pattern, names []string) bool {
	p, n := 0, 0
	star, from := -1, 0
	for n < len(names) {
		if p < len(pattern) && pattern[p] == "**" {
			star, from = p, n
			p++
			// At the end it stands for what is in the folder, not the folder.
			if p == len(pattern) {
				return true
			}
			continue
		}
		if p < len(pattern) {
			if ok, _ := path.Match(pattern[p], names[n]); ok {
				p++
				n++
				continue
			}
		}
		if star < 0 {
			return false
		}
		from++
		p, n = star+1, from
	}
	return p == len(pattern)
}
