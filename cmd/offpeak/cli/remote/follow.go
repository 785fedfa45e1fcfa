package remote

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"offpeak"
	"offpeak/wire"
)

// maxLine bounds a line of a stream: a log record of the largest piece in base64.
const maxLine = 16 << 20

// stop carries an error of the receiving side out of a stream.
type stop struct{ err error }

func (s stop) Error() string { return s.err.Error() }

// errSilent is a stream that was given up because nothing came.
var errSilent = errors.New("silent")

// stream opens a stream again and again and hands each one to read. It ends
// when read returns nil, stop, or an error that is not about the connection.
// pinged says that the hub never leaves this stream silent for long: silence is
// then a hub that does not answer, else it is nothing to speak of.
func (h *Hub) stream(ctx context.Context, pinged bool, open func(ctx context.Context, d *wire.Direct) (io.ReadCloser, error), read func(r io.Reader) error) error {
	for {
		err := h.streamOnce(ctx, pinged, open, read)
		if own, ok := errors.AsType[stop](err); ok {
			return own.err
		}
		if !errors.Is(err, errSilent) {
			return err
		}
	}
}

func (h *Hub) streamOnce(ctx context.Context, pinged bool, open func(ctx context.Context, d *wire.Direct) (io.ReadCloser, error), read func(r io.Reader) error) error {
	return h.retry(ctx, Following, func(answered func()) error {
		return h.eachHub(ctx, func(ctx context.Context, d *wire.Direct) error {
			once, cancel := context.WithCancel(ctx)
			defer cancel()
			// A connection that died without a word is closed here: every
			// stream has its place to go on from, so opening it again is free.
			idle := time.AfterFunc(h.cfg.Idle, cancel)
			defer idle.Stop()
			body, err := open(once, d)
			if err == nil {
				answered()
				err = read(&watched{body, idle, h.cfg.Idle})
				_ = body.Close()
			}
			_, own := errors.AsType[stop](err)
			switch {
			case err == nil || own || ctx.Err() != nil || once.Err() == nil:
				return err
			case pinged:
				return fmt.Errorf("%s: silent for %s: %w", d.Base, h.cfg.Idle, offpeak.ErrUnavailable)
			}
			return errSilent
		})
	})
}

// watched puts off the idle timer with every byte that comes.
type watched struct {
	r    io.Reader
	idle *time.Timer
	wait time.Duration
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if n > 0 {
		w.idle.Reset(w.wait)
	}
	return n, err
}

// cut says that a stream broke off.
func cut(err error) error {
	return fmt.Errorf("stream broke off: %w", errors.Join(offpeak.ErrUnavailable, err))
}

// FollowLog hands every record of a job's log to f, each once and in the order
// of arrival, over as many connections as it takes. With follow it returns when
// the job has ended and its log is whole; without, at the end of what is there.
func (h *Hub) FollowLog(ctx context.Context, job offpeak.JobID, follow bool, f func(wire.LogRecord) error) error {
	after, whole := "", !follow
	for {
		err := h.stream(ctx, false, func(ctx context.Context, d *wire.Direct) (io.ReadCloser, error) {
			return d.FollowLog(ctx, job, after, follow)
		}, func(r io.Reader) error {
			dec := json.NewDecoder(r)
			for {
				var rec wire.LogRecord
				if err := dec.Decode(&rec); errors.Is(err, io.EOF) {
					return nil
				} else if err != nil {
					return cut(err)
				}
				if rec.Stream == "" {
					continue
				}
				if err := f(rec); err != nil {
					return stop{err}
				}
				after = strconv.Itoa(int(rec.Attempt)) + "." + strconv.FormatInt(rec.N, 10)
			}
		})
		if err != nil || whole {
			return err
		}
		// A hub that shuts down ends its streams in good order too: only an end
		// that was asked for after the job had ended is the end of the log.
		state, err := Ask(ctx, h, Following, func(ctx context.Context, d *wire.Direct) (offpeak.Job, error) {
			return d.Job(ctx, job)
		})
		if err != nil {
			return err
		}
		whole = state.State.Terminal()
	}
}

// CopyLog writes one stream of one attempt (0: the newest) from offset, byte by
// byte as it was written, over as many connections as it takes.
func (h *Hub) CopyLog(ctx context.Context, w io.Writer, job offpeak.JobID, attempt offpeak.Attempt, stream string, offset int64, follow bool) error {
	return h.stream(ctx, false, func(ctx context.Context, d *wire.Direct) (io.ReadCloser, error) {
		if attempt == 0 {
			// The newest attempt is settled once, else a retry of the job
			// between two connections would go on in another attempt's log.
			now, err := d.Job(ctx, job)
			if err != nil {
				return nil, err
			}
			attempt = now.Attempt
		}
		return d.Logs(ctx, job, attempt, stream, offset, follow)
	}, func(r io.Reader) error {
		buf := make([]byte, 64<<10)
		for {
			n, err := r.Read(buf)
			if n > 0 {
				if _, werr := w.Write(buf[:n]); werr != nil {
					return stop{werr}
				}
				offset += int64(n)
			}
			if errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return cut(err)
			}
		}
	})
}

// Events hands every event to f, from after the cursor ("" only new ones), of
// one job or of all ("" job), until f returns an error or ctx is done. opened
// is called whenever the stream was opened, before its first event: what
// happened before that moment must be looked up.
func (h *Hub) Events(ctx context.Context, after string, job offpeak.JobID, opened func(), f func(offpeak.Event) error) error {
	return h.stream(ctx, true, func(ctx context.Context, d *wire.Direct) (io.ReadCloser, error) {
		body, err := d.Events(ctx, after, job)
		if err == nil && opened != nil {
			opened()
		}
		return body, err
	}, func(r io.Reader) error {
		err := readEvents(r, func(name, id string, data []byte) error {
			if data == nil {
				after = id // where the stream begins
				return nil
			}
			if name == "resync" {
				after = id
				h.cfg.Note("some events are older than the hub keeps; going on with new ones")
				if opened != nil {
					opened()
				}
				return nil
			}
			var e offpeak.Event
			if err := json.Unmarshal(data, &e); err != nil {
				return cut(err)
			}
			if err := f(e); err != nil {
				return stop{err}
			}
			if id != "" {
				after = id
			}
			return nil
		})
		if err == nil {
			// The stream of events has no end of its own.
			err = cut(io.EOF)
		}
		return err
	})
}

// readEvents reads a text/event-stream and hands over each event's name, id and
// data; data is nil where only the place to go on from is said.
func readEvents(r io.Reader, f func(name, id string, data []byte) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	var name, id string
	var data []byte
	placed := false
	for lines.Scan() {
		line := lines.Bytes()
		if len(line) == 0 {
			if data != nil || placed {
				if err := f(name, id, data); err != nil {
					return err
				}
			}
			name, data, placed = "", nil, false
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			name = string(value)
		case "id":
			id, placed = string(value), true
		case "data":
			if data != nil {
				data = append(data, '\n')
			}
			data = append(append([]byte{}, data...), value...)
		}
	}
	if err := lines.Err(); err != nil {
		return cut(err)
	}
	return nil
}
