package hardware

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
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
)

// nvidiaQuery names the columns that parseNVIDIA reads.
const nvidiaQuery = "--query-gpu=uuid,name,memory.total,driver_version,compute_cap"

// nvidia asks nvidia-smi. A machine without it has no NVIDIA devices; one whose
// tool fails gets a warning.
func nvidia(ctx context.Context, src Sources) ([]offpeak.Device, []string) {
	tool := src.Tool
	if tool == "" {
		path, err := exec.LookPath("nvidia-smi")
		if err != nil {
			return nil, nil
		}
		tool = path
	}
	out, err := output(ctx, src.Env, tool, nvidiaQuery, "--format=csv,noheader,nounits")
	if err != nil {
		return nil, []string{fmt.Sprintf("NVIDIA GPUs are not offered: %v", err)}
	}
	return parseNVIDIA(out)
}

// output runs a tool for as long as it may take. A tool in an uninterruptible
// wait survives its kill; it is waited for no longer than that.
func output(ctx context.Context, env []string, tool string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, toolTimeout)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, tool, args...)
	cmd.Env = env
	cmd.Stdout = &limited{w: &out, left: maxOutput}
	cmd.Stderr = cmd.Stdout
	// Children of a wrapper may hold the pipe open after the kill.
	cmd.WaitDelay = 100 * time.Millisecond
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("run %s: %w", tool, err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	var err error
	select {
	case err = <-done:
	case <-time.After(toolTimeout + time.Second):
		return nil, fmt.Errorf("run %s: no answer within %s, and it can't be killed", tool, toolTimeout)
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, fmt.Errorf("run %s: no answer within %s", tool, toolTimeout)
	case err != nil:
		return nil, fmt.Errorf("run %s: %w: %s", tool, err, firstLine(out.Bytes()))
	}
	return out.Bytes(), nil
}

// limited drops what exceeds a bound.
type limited struct {
	w    io.Writer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.left -= n
	if _, err := l.w.Write(p[:n]); err != nil {
		return 0, err
	}
	return len(p), nil
}

func firstLine(b []byte) string {
	line, _, _ := bytes.Cut(bytes.TrimSpace(b), []byte("\n"))
	return printable(string(line))
}

// parseNVIDIA reads the answer to nvidiaQuery. A row that can't be used is
// warned of and left out; the others count.
func parseNVIDIA(out []byte) ([]offpeak.Device, []string) {
	var devices []offpeak.Device
	var warnings []string
	warn := func(format string, args ...any) {
		if len(warnings) < maxDevices {
			warnings = append(warnings, fmt.Sprintf(format, args...))
		}
	}
	r := csv.NewReader(bytes.NewReader(out))
	r.FieldsPerRecord = -1
	r.LazyQuotes = true
	r.TrimLeadingSpace = true
	seen := map[offpeak.DeviceID]bool{}
	for {
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			return devices, warnings
		}
		if err != nil {
			warn("nvidia-smi: %v", err)
			return devices, warnings
		}
		for i := range row {
			row[i] = printable(row[i])
		}
		if len(row) != 5 || !strings.HasPrefix(row[0], "GPU-") {
			warn("nvidia-smi says %q; that GPU is not offered", strings.Join(row, ", "))
			continue
		}
		d := offpeak.Device{ID: offpeak.DeviceID(row[0]), Vendor: "nvidia", Model: value(row[1]), Driver: value(row[3]), Compute: value(row[4])}
		mib, err := strconv.ParseUint(row[2], 10, 64)
		switch {
		case seen[d.ID]:
			warn("nvidia-smi lists %s twice", d.ID)
			continue
		case value(row[2]) == "":
			// Chips that share the machine's memory have none of their own to tell.
			warn("%s (%s) does not tell its memory; it is not offered", d.Model, d.ID)
			continue
		case err != nil || mib > uint64(offpeak.MaxBytes/offpeak.MiB):
			warn("%s (%s) tells %q MiB of memory; it is not offered", d.Model, d.ID, row[2])
			continue
		case len(devices) == maxDevices:
			warn("more than %d GPUs; the rest is not offered", maxDevices)
			return devices, warnings
		}
		d.VRAM = offpeak.Bytes(mib) * offpeak.MiB
		seen[d.ID] = true
		devices = append(devices, d)
	}
}

// value is a field, or "" where the tool says that it has none.
func value(s string) string {
	if strings.HasPrefix(s, "[") || s == "N/A" {
		return ""
	}
	return s
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
		s = strings.ToValidUTF8(s[:most], "")
	}
	return s
}
