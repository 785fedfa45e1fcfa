// Package render shows values to people: text of others made harmless, sizes,
// times, tables, and why a job ended in a sentence.
//
// Everything here is a pure function of its arguments but Table and Harmless,
// which write to what they are handed and belong to one goroutine.
package render

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"offpeak"
)

// Safe shows text of others on one line without letting it steer the terminal:
// control characters, invalid bytes and characters that reorder what is around
// them are written as escapes.
func Safe(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if (r == utf8.RuneError && n == 1) || !unicode.IsPrint(r) {
			escape(&b, r, s[:n])
		} else {
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String()
}

func escape(b *strings.Builder, r rune, raw string) {
	switch {
	case r == utf8.RuneError && len(raw) == 1:
		fmt.Fprintf(b, `\x%02x`, raw[0])
	case r < 0x80:
		q := fmt.Sprintf("%q", r)
		b.WriteString(strings.Trim(q, "'"))
	default:
		fmt.Fprintf(b, `\u%04x`, r)
	}
}

// Harmless passes bytes on to a terminal with control characters made visible,
// but for newline and tab. A character that is split over two writes is kept
// until its rest comes; close writes what is left.
type Harmless struct {
	w    io.Writer
	rest []byte
}

// NewHarmless returns a Harmless that writes to w.
func NewHarmless(w io.Writer) *Harmless { return &Harmless{w: w} }

// Write passes p on, control characters made visible.
func (h *Harmless) Write(p []byte) (int, error) {
	data := slices.Concat(h.rest, p)
	var b strings.Builder
	for len(data) > 0 && utf8.FullRune(data) {
		n := h.one(&b, data)
		data = data[n:]
	}
	h.rest = append([]byte(nil), data...)
	_, err := io.WriteString(h.w, b.String())
	return len(p), err
}

func (h *Harmless) one(b *strings.Builder, data []byte) int {
	r, n := utf8.DecodeRune(data)
	switch {
	case r == '\n' || r == '\t' || (r != utf8.RuneError && unicode.IsPrint(r)):
		b.Write(data[:n])
	default:
		escape(b, r, string(data[:n]))
	}
	return n
}

// Close writes what is left.
func (h *Harmless) Close() error {
	var b strings.Builder
	for len(h.rest) > 0 {
		h.rest = h.rest[h.one(&b, h.rest):]
	}
	_, err := io.WriteString(h.w, b.String())
	return err
}

// Table prints aligned columns. Every cell is made safe.
type Table struct{ w *tabwriter.Writer }

// NewTable returns a table on w.
func NewTable(w io.Writer) *Table { return &Table{tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)} }

// Row prints a row.
func (t *Table) Row(cells ...string) {
	for i, c := range cells {
		cells[i] = Safe(c)
	}
	fmt.Fprintln(t.w, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
}

// Line prints text outside the columns.
func (t *Table) Line(text string) {
	_ = t.w.Flush()
	fmt.Fprintln(t.w, Safe(text))
	_ = t.w.Flush()
}

// Flush prints what is held back for alignment.
func (t *Table) Flush() error { return t.w.Flush() }

// Dash stands in an empty cell.
func Dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// Ago prints how long ago a moment was, in one unit.
func Ago(now time.Time, at *time.Time) string {
	if at == nil || at.IsZero() {
		return "-"
	}
	return Span(now.Sub(*at)) + " ago"
}

// Span prints a length of time in its largest units.
func Span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// About prints a size for people: as it is where that is short in some unit,
// else with two decimals.
func About(b offpeak.Bytes) string {
	exact := b.String()
	if len(exact) <= len("1023MiB") {
		return exact
	}
	type unit struct {
		name string
		size offpeak.Bytes
	}
	for _, u := range []unit{{"TB", offpeak.TB}, {"GB", offpeak.GB}, {"MB", offpeak.MB}} {
		if b%u.size == 0 && b/u.size < 10_000 {
			return fmt.Sprintf("%d%s", b/u.size, u.name)
		}
	}
	for _, u := range []unit{{"TiB", offpeak.TiB}, {"GiB", offpeak.GiB}, {"MiB", offpeak.MiB}} {
		if b >= u.size {
			return fmt.Sprintf("%.2f%s", float64(b)/float64(u.size), u.name)
		}
	}
	return exact
}

// Cores prints thousandths of cores as cores.
func Cores(milli int64) string {
	s := fmt.Sprintf("%d.%03d", milli/1000, milli%1000)
	return strings.TrimRight(strings.TrimRight(s, "0"), ".")
}

// Ended says in a sentence why an attempt or a job ended, with what is known of it.
func Ended(reason offpeak.EndReason, detail string, exit *int, signal string) string {
	end, known := offpeak.EndOf(reason)
	if !known {
		end.Sentence = string(reason)
	}
	var facts []string
	if exit != nil && *exit != 0 {
		facts = append(facts, fmt.Sprintf("exit code %d", *exit))
	}
	if signal != "" {
		facts = append(facts, signal)
	}
	if detail != "" {
		facts = append(facts, detail)
	}
	sentence := end.Sentence
	if len(facts) > 0 {
		sentence = strings.TrimSuffix(sentence, ".") + " (" + strings.Join(facts, "; ") + ")."
	}
	return sentence
}

// Next is what can be done about an ended job, ready to be pasted: what the
// table of ends says, else that it can be handed in again.
func Next(j offpeak.Job) string {
	end, _ := offpeak.EndOf(j.Reason)
	next := end.Next
	if next == "" && j.State != offpeak.JobSucceeded {
		next = "`offpeak retry JOB` hands it in again; it goes on from its newest checkpoint."
	}
	return strings.ReplaceAll(next, " JOB`", " "+string(j.ID)+"`")
}

// Argv prints an argument vector so that its arguments can be told apart.
func Argv(args []string) string {
	out := make([]string, len(args))
	for i, a := range args {
		if out[i] = a; a == "" || strings.ContainsAny(a, " \t\n'\"\\$*?[](){}<>|&;#`~!") {
			out[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(out, " ")
}

// Pairs writes a map as NAME=VALUE, sorted.
func Pairs(m map[string]string) []string {
	var out []string
	for k, v := range m {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return out
}

// Stamp prints a moment in local time, "" for none.
func Stamp(at *time.Time) string {
	if at == nil || at.IsZero() {
		return ""
	}
	return at.Local().Format("2006-01-02 15:04:05")
}
