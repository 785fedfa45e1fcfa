package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"offpeak"
	"offpeak/wire"
)

// line is one whole line that a job printed, or the end of its log.
type line struct {
	job     offpeak.JobID
	attempt offpeak.Attempt
	text    string
	end     bool
}

// followEvents sends all events from now on until ctx is done. ready is called
// once the stream is open: nothing that happens after that is missed.
func followEvents(ctx context.Context, api *wire.Direct, ready func(), to chan<- offpeak.Event) error {
	body, err := api.Events(ctx, "", "")
	if err != nil {
		return fmt.Errorf("follow events: %w", err)
	}
	defer body.Close()
	ready()
	err = readEvents(body, func(e offpeak.Event) error { return send(ctx, to, e) })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("follow events: the stream ended: %w", err)
}

// readEvents reads a text/event-stream to its end.
func readEvents(r io.Reader, see func(offpeak.Event) error) error {
	var data strings.Builder
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, int(wire.MaxBody))
	for lines.Scan() {
		if field, ok := strings.CutPrefix(lines.Text(), "data:"); ok {
			data.WriteString(strings.TrimPrefix(field, " "))
			continue
		}
		if lines.Text() != "" || data.Len() == 0 {
			continue
		}
		var e offpeak.Event
		if err := json.Unmarshal([]byte(data.String()), &e); err != nil {
			return fmt.Errorf("read event %q: %w", data.String(), err)
		}
		data.Reset()
		if e.Type == "" {
			continue // a keep-alive or a resync
		}
		if err := see(e); err != nil {
			return err
		}
	}
	return errors.Join(lines.Err(), io.EOF)
}

// followLog sends the lines that a job prints on stdout, of all its attempts,
// until the job has ended.
func followLog(ctx context.Context, api *wire.Direct, job offpeak.JobID, to chan<- line) error {
	body, err := api.FollowLog(ctx, job, "", true)
	if err != nil {
		return fmt.Errorf("follow log: %w", err)
	}
	defer body.Close()
	pieces := map[offpeak.Attempt]string{}
	for records := json.NewDecoder(body); ; {
		var r wire.LogRecord
		if err := records.Decode(&r); errors.Is(err, io.EOF) {
			return send(ctx, to, line{job: job, end: true})
		} else if err != nil {
			return fmt.Errorf("follow log: %w", err)
		}
		if r.Stream != "stdout" {
			continue
		}
		lines := strings.Split(pieces[r.Attempt]+string(r.Data), "\n")
		pieces[r.Attempt] = lines[len(lines)-1]
		for _, text := range lines[:len(lines)-1] {
			if err := send(ctx, to, line{job: job, attempt: r.Attempt, text: text}); err != nil {
				return err
			}
		}
	}
}

func send[T any](ctx context.Context, to chan<- T, v T) error {
	select {
	case to <- v:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// record is what the job says of itself in a line of JSON.
type record struct {
	Event   string `json:"event"`
	Attempt int    `json:"attempt"`
	Step    int    `json:"step"`
	From    string `json:"from"`
}

// said is what a line of the job tells: a record, a step, or the accuracy.
type said struct {
	record   record
	step, of int
	loss     float64
	accuracy float64
}

func parse(text string) (s said) {
	switch {
	case json.Unmarshal([]byte(text), &s.record) == nil:
	case strings.HasPrefix(text, "step "):
		if n, _ := fmt.Sscanf(text, "step %d of %d loss %f", &s.step, &s.of, &s.loss); n != 3 {
			s = said{}
		}
	case strings.HasPrefix(text, "test accuracy "):
		s.accuracy, _ = strconv.ParseFloat(strings.TrimPrefix(text, "test accuracy "), 64)
	}
	return s
}

// stepOf reads the step from a checkpoint's name, "step-00001200".
func stepOf(name string) (int, error) {
	digits, ok := strings.CutPrefix(name, "step-")
	step, err := strconv.Atoi(digits)
	if !ok || err != nil {
		return 0, fmt.Errorf("checkpoint %q names no step", name)
	}
	return step, nil
}
