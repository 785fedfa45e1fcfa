package hardware

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"offpeak"
)

const (
	// toolTimeout is how long a vendor's tool may take: with a GPU that fell
	// off the bus it may never answer.
	toolTimeout = 2 * time.Second
	// maxOutput bounds what is read of it.
	maxOutput = 1 << 20
	// maxDevices bounds the devices of one machine.
	maxDevices = 64
	// maxProcesses bounds the processes of one device.
	maxProcesses = 256
)

// tool is a vendor's program. One that can't be killed, since it waits in the
// kernel, is not started again before it has ended.
type tool struct {
	name string
	src  *Sources
	busy atomic.Bool
}

// there says that the machine has it.
func (t *tool) there() (path string, ok bool) {
	if t.src.Tools != "" {
		path = filepath.Join(t.src.Tools, t.name)
		_, err := exec.LookPath(path)
		return path, err == nil
	}
	path, err := exec.LookPath(t.name)
	return path, err == nil
}

// output runs the tool for as long as it may take.
func (t *tool) output(ctx context.Context, args ...string) ([]byte, error) {
	path, ok := t.there()
	if !ok {
		return nil, fmt.Errorf("run %s: %w", t.name, exec.ErrNotFound)
	}
	if !t.busy.CompareAndSwap(false, true) {
		return nil, fmt.Errorf("run %s: one that gave no answer within %s still runs and can't be killed; restart the machine", t.name, toolTimeout)
	}
	ctx, cancel := context.WithTimeout(ctx, toolTimeout)
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = t.src.Env
	cmd.Stdout = &limited{w: &out, left: maxOutput, full: cancel}
	cmd.Stderr = cmd.Stdout
	// Children of a wrapper may hold the pipe open after the kill.
	cmd.WaitDelay = 100 * time.Millisecond
	ownGroup(cmd)
	if err := cmd.Start(); err != nil {
		cancel()
		t.busy.Store(false)
		return nil, fmt.Errorf("run %s: %w", t.name, err)
	}
	done := make(chan error, 1)
	go func() {
		defer cancel()
		err := cmd.Wait()
		t.busy.Store(false)
		done <- err
	}()
	late := time.NewTimer(toolTimeout + time.Second)
	defer late.Stop()
	var err error
	select {
	case err = <-done:
	case <-late.C:
		return nil, fmt.Errorf("run %s: no answer within %s, and it can't be killed", t.name, toolTimeout)
	}
	switch {
	case out.Len() >= maxOutput:
		return nil, fmt.Errorf("run %s: it says more than %d bytes", t.name, maxOutput)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, fmt.Errorf("run %s: no answer within %s", t.name, toolTimeout)
	case err != nil:
		return out.Bytes(), fmt.Errorf("run %s: %w: %s", t.name, err, firstLine(out.Bytes()))
	}
	return out.Bytes(), nil
}

// limited drops what exceeds a bound, and says so once.
type limited struct {
	w    io.Writer
	left int
	full func()
}

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.left -= n
	if _, err := l.w.Write(p[:n]); err != nil {
		return 0, err
	}
	if l.left == 0 {
		l.full()
	}
	return len(p), nil
}

func firstLine(b []byte) string {
	line, _, _ := bytes.Cut(bytes.TrimSpace(b), []byte("\n"))
	return printable(string(line))
}

// value is a field, or "" where the tool says that it has none.
func value(s string) string {
	if strings.HasPrefix(s, "[") || strings.EqualFold(s, "N/A") || strings.EqualFold(s, "unknown") {
		return ""
	}
	return s
}

// number reads a measured number, with a unit behind it or none, and with the
// comma that some locales have for a point. Nil is none.
func number(s string) *float64 {
	s, _, _ = strings.Cut(strings.TrimSpace(value(s)), " ")
	s = strings.TrimRight(s, "%WCc°")
	n, err := strconv.ParseFloat(strings.Replace(s, ",", ".", 1), 64)
	if err != nil || math.IsNaN(n) || math.Abs(n) > 1e6 {
		return nil
	}
	return &n
}

// amount reads a whole number of units; nil is none, or more than can be counted.
func amount(s string, unit offpeak.Bytes) *offpeak.Bytes {
	s, _, _ = strings.Cut(strings.TrimSpace(value(s)), " ")
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n > uint64(offpeak.MaxBytes/unit) {
		return nil
	}
	b := offpeak.Bytes(n) * unit
	return &b
}

// printable keeps a tool's garbage out of terminals and databases.
func printable(s string) string {
	s = strings.ToValidUTF8(s, "�")
	s = strings.TrimSpace(strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return -1
		}
		return r
	}, s))
	const most = 200
	if len(s) > most {
		s = strings.TrimSpace(strings.ToValidUTF8(s[:most], ""))
	}
	return s
}
