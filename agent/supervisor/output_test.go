package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"
)

// sink is a log file that may fill up.
type sink struct {
	bytes.Buffer
	room int
}

func (s *sink) Write(p []byte) (int, error) {
	if s.room >= 0 && s.Len()+len(p) > s.room {
		n, _ := s.Buffer.Write(p[:max(s.room-s.Len(), 0)])
		return n, errors.New("no space left")
	}
	return s.Buffer.Write(p)
}

func (s *sink) Close() error { return nil }

func run(cap int64, room, buf int, r io.Reader) (*stream, string) {
	var file sink
	file.room = room
	s := &stream{
		open: func() (io.WriteCloser, error) { return &file, nil },
		cap:  cap, buf: make([]byte, buf), now: func() int64 { return 1 }, changed: func() {},
	}
	s.run(r)
	return s, file.String()
}

func TestStreamKeepsHeadAndTail(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 74, 75, 76, 99, 100, 101, 125, 126, 200, 1000, 5000} {
		text := make([]byte, n)
		for i := range text {
			text[i] = byte('a' + rng.IntN(26))
		}
		for _, buf := range []int{1, 7, 25, 64, 8192} {
			s, got := run(100, -1, buf, iotest.HalfReader(bytes.NewReader(text)))
			want := string(text)
			if n > 100 {
				want = string(text[:75]) + fmt.Sprintf("\n[offpeak: log capped at 100B, %d bytes left out here]\n", n-100) + string(text[n-25:])
			}
			if got != want {
				t.Fatalf("%d bytes by %d: %q, want %q", n, buf, got, want)
			}
			if s.written.Load() != int64(len(got)) {
				t.Errorf("%d bytes by %d: says %d of %d", n, buf, s.written.Load(), len(got))
			}
		}
	}
}

func TestStreamWithoutCap(t *testing.T) {
	text := strings.Repeat("line\n", 10_000)
	if _, got := run(0, -1, 100, strings.NewReader(text)); got != text {
		t.Errorf("%d bytes of %d", len(got), len(text))
	}
}

func TestStreamGoesOnWhenTheDiskIsFull(t *testing.T) {
	s, got := run(1000, 50, 16, strings.NewReader(strings.Repeat("x", 5000)))
	if got != strings.Repeat("x", 50) {
		t.Errorf("file %q", got)
	}
	if s.lost+s.left != 5000-50 {
		t.Errorf("%d lost, %d left out", s.lost, s.left)
	}
}
