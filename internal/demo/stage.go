package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// stage prints one aligned line for each thing that happens: when, who, what.
// It is used by one goroutine.
type stage struct {
	w     io.Writer
	color bool
	begun time.Time
}

func newStage(f *os.File) *stage {
	return &stage{
		w:     f,
		color: term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb",
		begun: time.Now(),
	}
}

// paint is how a line looks on a terminal.
type paint string

const (
	plain  paint = ""
	faint  paint = "2"
	green  paint = "32"
	yellow paint = "33"
	red    paint = "1;31"
	bold   paint = "1"
)

func (s *stage) paint(p paint, text string) string {
	if !s.color || p == plain {
		return text
	}
	return "\x1b[" + string(p) + "m" + text + "\x1b[0m"
}

// line says that who did what.
func (s *stage) line(p paint, who, format string, args ...any) {
	at := fmt.Sprintf("%6.1fs", time.Since(s.begun).Seconds())
	fmt.Fprintf(s.w, "%s  %-12s %s\n", s.paint(faint, at), who, s.paint(p, fmt.Sprintf(format, args...)))
}

// title begins a part.
func (s *stage) title(format string, args ...any) {
	fmt.Fprintf(s.w, "\n%s\n", s.paint(bold, fmt.Sprintf(format, args...)))
}

// text prints as is.
func (s *stage) text(format string, args ...any) { fmt.Fprintf(s.w, format+"\n", args...) }
