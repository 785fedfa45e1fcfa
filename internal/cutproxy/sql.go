package cutproxy

import (
	"regexp"
	"strings"
)

// Comments are not read, and what changes something is taken by its words.
var (
	comment = regexp.MustCompile(`(?s)--[^\n]*|/\*.*?\*/`)
	change  = regexp.MustCompile(`(?i)\b(insert|update|delete|merge|truncate|create|alter|drop|call|do|nextval|notify|pg_notify)\b`)
)

// effect is what a statement does to its session's transaction.
type effect int

const (
	nothing effect = iota
	writes
	// copies: what is written follows.
	copies
	begins
	commits
	rollsBack
)

// effects are those of the statements of one string, in their order.
type effects []effect

// effectsOf reads as much of SQL as a test's client writes: it takes a semicolon
// for the end of a statement wherever it stands, and what mentions a change for
// one, so that it sees a commit too many rather than one too few.
func effectsOf(sql string) effects {
	var out effects
	for statement := range strings.SplitSeq(comment.ReplaceAllString(sql, " "), ";") {
		words := strings.Fields(strings.ToLower(statement))
		if len(words) == 0 {
			continue
		}
		e := nothing
		switch words[0] {
		case "begin", "start":
			e = begins
		case "commit", "end":
			e = commits
		case "rollback", "abort":
			// Back to a savepoint is not out of the transaction.
			if !strings.Contains(" "+strings.Join(words, " "), " to ") {
				e = rollsBack
			}
		case "copy":
			if strings.Contains(strings.Join(words, " "), " from stdin") {
				e = copies
			}
		default:
			if change.MatchString(statement) {
				e = writes
			}
		}
		out = append(out, e)
	}
	return out
}

// transaction is where a session's transaction stands by what its client has
// said; what of it failed is for the server to know, and a commit of nothing is
// cut as any other.
type transaction struct {
	// open says that it was begun, dirty that there may be something to commit:
	// without begin, the next synchronization commits. Copying puts it off.
	open, dirty, copying bool
}

// run notes statements and says whether one committed.
func (t *transaction) run(all effects) (committed bool) {
	for _, e := range all {
		switch e {
		case writes:
			t.dirty = true
		case copies:
			t.dirty, t.copying = true, true
		case begins:
			t.open = true
		case commits:
			committed = committed || t.open || t.dirty
			*t = transaction{}
		case rollsBack:
			*t = transaction{}
		}
	}
	return committed
}

// sync notes the end of a message or of a pipeline of them, and says whether it
// commits what was done outside a transaction.
func (t *transaction) sync() (committed bool) {
	if t.open || t.copying {
		return false
	}
	committed = t.dirty
	t.dirty = false
	return committed
}

// copied notes the end of what was copied.
func (t *transaction) copied() (committed bool) {
	t.copying = false
	return t.sync()
}
