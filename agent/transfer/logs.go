package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"offpeak"
	"offpeak/agent/link"
	"offpeak/agent/state"
	"offpeak/wire"
)

// Logs sends a job's output to the hub as it comes. The supervisor writes it
// to files, so the job never waits for the network; what is sent is named by
// its offset, so that a repeated piece is stored once. One goroutine at a time
// uses it: its own while the job runs, the attempt's afterwards.
type Logs struct {
	lease   *Lease
	streams []*spool
	// kick holds a token when output is known to have come.
	kick chan struct{}
}

// spool is one stream of a job's output.
type spool struct {
	name string
	file *os.File
	// sent is where the hub's copy ends, as far as is known.
	sent int64
	// refused is set when no more of it is sent: the hub will not have it, or
	// it is not what the supervisor wrote.
	refused bool
}

// NewLogs returns the logs of an attempt, which may have none yet.
func NewLogs(l *Lease) *Logs {
	return &Logs{lease: l, kick: make(chan struct{}, 1), streams: []*spool{{name: "stdout"}, {name: "stderr"}}}
}

// size returns how long the spooled output is.
func (s *Logs) size(sp *spool) (int64, error) {
	if sp.refused {
		return 0, nil
	}
	if sp.file == nil {
		f, err := s.lease.Folder.Open(sp.name + ".log")
		if errors.Is(err, os.ErrNotExist) {
			return 0, nil
		} else if errors.Is(err, state.ErrNotPlain) {
			s.lease.Log.Warn("the job put something else in its log's place; the log ends there", "error", err)
			sp.refused = true
			return 0, nil
		} else if err != nil {
			return 0, fmt.Errorf("open log: %w", err)
		}
		sp.file = f
	}
	info, err := sp.file.Stat()
	if err != nil {
		return 0, fmt.Errorf("look at log: %w", err)
	}
	return info.Size(), nil
}

func (s *spool) read(n int64) ([]byte, error) {
	data := make([]byte, n)
	got, err := s.file.ReadAt(data, s.sent)
	if err == io.EOF {
		err = nil
	}
	if err != nil {
		return nil, fmt.Errorf("read log: %w", err)
	}
	return data[:got], nil
}

// Close lets go of the files; they are opened again if need be.
func (s *Logs) Close() {
	for _, sp := range s.streams {
		if sp.file != nil {
			sp.file.Close()
			sp.file = nil
		}
	}
}

// Came says that output came: Run looks at once. Any goroutine may call it.
func (s *Logs) Came() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// Run looks for new output so often and ships it until ctx is done.
func (s *Logs) Run(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	failures := 0
	for {
		select {
		case <-tick.C:
		case <-s.kick:
		case <-ctx.Done():
			return
		}
		err := s.Flush(ctx, 0)
		switch {
		case err == nil:
			failures = 0
		case ctx.Err() != nil:
			return
		default:
			failures++
			s.lease.Note("ship log", err)
			if s.lease.Pause(ctx, failures) != nil {
				return
			}
		}
	}
}

// Flush ships until at most rest bytes of all streams are left.
func (s *Logs) Flush(ctx context.Context, rest int64) error {
	for {
		left := int64(0)
		var most *spool
		var longest int64
		for _, sp := range s.streams {
			size, err := s.size(sp)
			if err != nil {
				return err
			}
			if n := size - sp.sent; n > 0 && !sp.refused {
				left += n
				if n > longest {
					most, longest = sp, n
				}
			}
		}
		if left <= rest || most == nil {
			return nil
		}
		if err := s.piece(ctx, most, min(longest, int64(wire.MaxInlineLog))); err != nil {
			return err
		}
	}
}

func (s *Logs) piece(ctx context.Context, sp *spool, n int64) error {
	data, err := sp.read(n)
	if err != nil {
		return err
	}
	var end int64
	err = s.lease.Link.Call(ctx, func(ctx context.Context, d *wire.Direct) (err error) {
		end, err = d.AppendLog(ctx, s.lease.ID, s.lease.Attempt, sp.name, sp.sent, data)
		return err
	})
	var gap *offpeak.LogGapError
	switch {
	case err == nil:
		sp.sent = max(end, sp.sent)
	case errors.As(err, &gap):
		sp.sent = gap.Want
	case errors.Is(err, offpeak.ErrStaleLease):
		s.lease.Stale()
		return err
	case link.Refused(err), errors.Is(err, offpeak.ErrQuota):
		s.lease.Log.Warn("the hub takes no more of a log", "stream", sp.name, "error", err)
		sp.refused = true
	default:
		return err
	}
	return nil
}

// Rewind asks where the hub's copies end, after it said that one has a gap.
func (s *Logs) Rewind(ctx context.Context) error {
	for _, sp := range s.streams {
		if err := s.piece(ctx, sp, 0); err != nil {
			return err
		}
	}
	return nil
}

// Last puts what is left, and where the streams end, into the final report.
func (s *Logs) Last(r *wire.Report) error {
	r.Logs, r.LogEnd = nil, map[string]int64{}
	for _, sp := range s.streams {
		size, err := s.size(sp)
		if err != nil {
			return err
		}
		if sp.refused {
			continue
		}
		if size > sp.sent {
			data, err := sp.read(size - sp.sent)
			if err != nil {
				return err
			}
			r.Logs = append(r.Logs, wire.LogPiece{Stream: sp.name, Offset: sp.sent, Data: data})
		}
		r.LogEnd[sp.name] = size
	}
	return nil
}
