package supervisor

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"offpeak"
)

const (
	// pumpBuffer is a pipe's usual capacity.
	pumpBuffer = 64 << 10
	// longestTail bounds the memory that the end of a capped log takes.
	longestTail = 1 << 20
)

// stream takes one of the job's output pipes into a file. Its first bytes go
// there as they come; what exceeds the cap less the tail is left out, the last
// bytes of it are kept in a ring and follow at the end behind a visible mark.
// It never stops reading, whatever becomes of the file, so it never blocks the
// job. One goroutine runs it; written, first and the changed hook are how
// others follow it.
type stream struct {
	// open makes the file, at the first byte: most jobs leave one of the two
	// logs empty, and making a file costs as much as starting a process.
	open func() (io.WriteCloser, error)
	file io.WriteCloser
	cap  int64
	buf  []byte
	now  func() int64
	// changed is called after bytes came.
	changed func()

	// written is the length of the file, first when the first byte came.
	written atomic.Int64
	first   atomic.Int64

	left    int64  // bytes left out so far, those in the ring included
	ring    []byte // allocated at the cap
	ringPos int
	lost    int64 // bytes the disk did not take
	lostErr error
}

// tail is how many bytes of the cap are kept for the end.
func (s *stream) tail() int64 { return min(longestTail, s.cap/4) }

// run reads r until its end, then writes the mark and the tail and closes the file.
func (s *stream) run(r io.Reader) {
	for {
		n, err := r.Read(s.buf)
		if n > 0 {
			if s.first.Load() == 0 {
				s.first.Store(s.now())
			}
			s.take(s.buf[:n])
			s.changed()
		}
		if err != nil {
			break
		}
	}
	s.finish()
}

func (s *stream) take(p []byte) {
	if s.left == 0 {
		room := max(s.cap-s.tail()-s.written.Load()-s.lost, 0)
		if s.cap <= 0 || int64(len(p)) <= room {
			s.write(p)
			return
		}
		s.write(p[:room])
		p = p[room:]
	}
	s.left += int64(len(p))
	if s.ring == nil {
		s.ring = make([]byte, 0, s.tail())
	}
	if size := cap(s.ring); len(p) >= size {
		s.ring, s.ringPos = append(s.ring[:0], p[len(p)-size:]...), 0
		return
	}
	if room := cap(s.ring) - len(s.ring); room > 0 {
		n := min(room, len(p))
		s.ring = append(s.ring, p[:n]...)
		p = p[n:]
	}
	for len(p) > 0 {
		n := copy(s.ring[s.ringPos:], p)
		s.ringPos = (s.ringPos + n) % len(s.ring)
		p = p[n:]
	}
}

// write appends to the file; once the disk refused, the rest is only counted,
// since a log with a silent hole is worse than one that ends.
func (s *stream) write(p []byte) {
	if len(p) == 0 {
		return
	}
	if s.lostErr != nil {
		s.lost += int64(len(p))
		return
	}
	n, err := s.put(p)
	if err != nil {
		s.lost, s.lostErr = int64(len(p)-n), err
	}
}

func (s *stream) put(p []byte) (n int, err error) {
	if s.file == nil {
		if s.file, err = s.open(); err != nil {
			s.file = nil
			return 0, err
		}
	}
	n, err = s.file.Write(p)
	s.written.Add(int64(n))
	return n, err
}

func (s *stream) finish() {
	if s.lostErr != nil {
		// The disk may have room again by now.
		mark := fmt.Sprintf("\n[offpeak: the log ends here, %d bytes lost: %v]\n", s.lost+s.left, s.lostErr)
		_, _ = s.put([]byte(mark))
	} else if s.left > 0 {
		out := s.left - int64(len(s.ring))
		if out > 0 {
			s.write(fmt.Appendf(nil, "\n[offpeak: log capped at %s, %d bytes left out here]\n", offpeak.Bytes(s.cap), out))
		}
		s.write(s.ring[s.ringPos:])
		s.write(s.ring[:s.ringPos])
	}
	s.ring = nil
	if s.file != nil {
		s.file.Close()
	}
}

// createLog makes a log file anew. The folder is not the job's, but the job may
// run as the same user: a link that it left there is not followed.
func createLog(path string) (io.WriteCloser, error) {
	const flags = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	f, err := os.OpenFile(path, flags, 0o600)
	if os.IsExist(err) {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
		f, err = os.OpenFile(path, flags, 0o600)
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}
