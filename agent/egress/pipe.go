package egress

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"
)

// chunk is how much is moved at once; a limiter's burst must not be below it.
const chunk = 32 << 10

// Burst is the least burst of a limiter that is handed to a proxy.
const Burst = 2 * chunk

// serve answers one connection of the job.
func (g *Gate) serve(c net.Conn) {
	_ = c.SetReadDeadline(time.Now().Add(g.p.cfg.Times.Head))
	head := &io.LimitedReader{R: c, N: maxHead}
	r := bufio.NewReaderSize(head, 4<<10)
	ask, err := readRequest(r)
	if err != nil {
		if head.N <= 0 {
			err = &refusal{code: 431, why: "the request's head is too long"}
		}
		if no, ok := errors.AsType[*refusal](err); ok {
			g.refused(c, "unreadable", no)
		}
		return
	}
	head.N = 1 << 62
	_ = c.SetReadDeadline(time.Time{})
	host := ask.to.String()
	if !g.allows(ask.to) {
		g.refused(c, host, &refusal{code: 403, why: host + " is not among what the job may reach (--egress)"})
		return
	}
	if g.spent() {
		g.refused(c, host, g.worn())
		return
	}
	up, err := g.p.dial(g.ctx, ask.to)
	if err != nil {
		no, ok := errors.AsType[*refusal](err)
		if !ok {
			no = &refusal{code: 502, why: host + " can't be reached", more: err.Error()}
		}
		g.refused(c, host, no)
		return
	}
	defer up.Close()
	defer context.AfterFunc(g.ctx, func() { up.Close() })()
	g.note(host, func(s *Reached) { s.Connections++ })
	a, b := g.metered(host, c, up)
	if ask.plain != nil {
		head.R = a // the rest of the request is metered too
		g.pass(ask.plain, a, b)
		return
	}
	if _, err := io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	// What the job has sent with its request was read along.
	if n := r.Buffered(); n > 0 {
		first, _ := r.Peek(n)
		if _, err := b.Write(first); err != nil {
			return
		}
	}
	tunnel(a, b)
}

func (g *Gate) worn() *refusal {
	return &refusal{code: 403, why: "the job has moved " + g.p.cfg.Total.String() + ", all that the owner of this machine allows"}
}

// refused answers no and notes it.
func (g *Gate) refused(c net.Conn, host string, no *refusal) {
	why := no.why
	if no.more != "" {
		why = no.more
	}
	g.note(host, func(r *Reached) { r.Refused, r.Why = r.Refused+1, clip(why) })
	g.p.cfg.Log.Debug("egress refused", "job", g.job, "lease", g.lease, "host", host, "why", why)
	refuse(c, no.code, no.why)
}

func clip(s string) string {
	const most = 300
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// pass passes one plain request on, and its answer back.
func (g *Gate) pass(req *http.Request, job, up *end) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := req.Write(up); err != nil && !errors.Is(err, io.ErrClosedPipe) {
			up.hangUp()
		}
	}()
	answer := bufio.NewReaderSize(up, 4<<10)
	for {
		resp, err := http.ReadResponse(answer, req)
		if err != nil {
			refuse(job.Conn, 502, req.URL.Host+" gave no answer that can be read")
			break
		}
		resp.Close = resp.StatusCode >= 200
		strip(resp.Header)
		if resp.StatusCode == http.StatusSwitchingProtocols {
			resp.Body.Close()
			refuse(job.Conn, 502, "only CONNECT carries other protocols")
			break
		}
		err = resp.Write(job)
		resp.Body.Close()
		if err != nil || resp.StatusCode >= 200 {
			break
		}
	}
	// Whoever answers before the whole request is read has said all.
	up.hangUp()
	job.hangUp()
	<-done
}

// tunnel moves bytes both ways until both have ended, or one has failed.
func tunnel(job, up *end) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		move(up, job)
	}()
	move(job, up)
	<-done
}

// move moves bytes one way. An end of the stream is passed on; a failure ends both.
func move(to, from *end) {
	buf := make([]byte, chunk)
	_, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, buf)
	if err == nil {
		if w, ok := to.Conn.(interface{ CloseWrite() error }); ok {
			_ = w.CloseWrite()
			return
		}
	}
	to.hangUp()
	from.hangUp()
}

// end is one end of a connection that is metered: what is read from it waits for its
// share of the rate and counts, and it fails when nothing has happened at either end
// for too long.
type end struct {
	net.Conn
	g    *Gate
	host string
	// out says that what is read here goes out to the network.
	out bool
	// last is when something was last moved between the two ends.
	last *atomic.Int64
}

func (g *Gate) metered(host string, job, up net.Conn) (*end, *end) {
	last := new(atomic.Int64)
	last.Store(time.Now().UnixNano())
	return &end{job, g, host, true, last}, &end{up, g, host, false, last}
}

var errSpent = errors.New("the job has moved all that it may")

func (e *end) Read(b []byte) (int, error) {
	b = b[:min(len(b), chunk)]
	idle := e.g.p.cfg.Times.Idle
	for {
		_ = e.SetReadDeadline(time.Unix(0, e.last.Load()).Add(idle))
		n, err := e.Conn.Read(b)
		if errors.Is(err, os.ErrDeadlineExceeded) && n == 0 && time.Now().UnixNano()-e.last.Load() < int64(idle) {
			continue // the other end was busy meanwhile
		}
		if n > 0 {
			e.last.Store(time.Now().UnixNano())
			if lim := e.g.p.cfg.Rate; lim != nil {
				if werr := lim.WaitN(e.g.ctx, n); werr != nil {
					return n, werr
				}
			}
			sent, received := n, 0
			if !e.out {
				sent, received = 0, n
			}
			if !e.g.moves(e.host, sent, received) {
				return n, errSpent
			}
		}
		return n, err
	}
}

func (e *end) Write(b []byte) (int, error) {
	_ = e.SetWriteDeadline(time.Now().Add(e.g.p.cfg.Times.Idle))
	return e.Conn.Write(b)
}

// hangUp ends it for reading and writing.
func (e *end) hangUp() { _ = e.Close() }
