package supervisor

import (
	"bufio"
	"encoding/json"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxMessage bounds one request: an environment and an argument vector of
// 128 KiB each, escaped.
const maxMessage = 2 << 20

// maxReplies bounds the answers that a client may leave unread.
const maxReplies = 64

// conn is one agent's connection. Its writer keeps every answer and the newest
// of the pushed statuses, so that an agent that does not read (stopped, or
// debugged) never holds up the loop.
type conn struct {
	net net.Conn

	mu      sync.Mutex
	wake    *sync.Cond
	replies []Status // guarded by mu
	push    *Status  // guarded by mu
	rest    []byte   // guarded by mu: of a message that was cut short
	closed  bool     // guarded by mu
	writing bool     // guarded by mu
}

// asked is a request and whom to answer.
type asked struct {
	from *conn
	req  Request
	// gone says that the connection ended; req is empty.
	gone bool
}

func newConn(c net.Conn) *conn {
	k := &conn{net: c}
	k.wake = sync.NewCond(&k.mu)
	return k
}

// read hands requests to the loop until the connection ends.
func (c *conn) read(to chan<- asked) {
	sc := bufio.NewScanner(c.net)
	sc.Buffer(make([]byte, 0, 4<<10), maxMessage)
	for sc.Scan() {
		var req Request
		if err := json.Unmarshal(sc.Bytes(), &req); err != nil {
			c.reply(Status{Error: "read request: " + err.Error()})
			continue
		}
		to <- asked{from: c, req: req}
	}
	to <- asked{from: c, gone: true}
}

// write sends what could not be sent at once, until the connection is closed.
func (c *conn) write() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		for !c.queued() && !c.closed {
			c.writing = false
			c.wake.Broadcast()
			c.wake.Wait()
		}
		if c.closed {
			c.net.Close()
			return
		}
		c.writing = true
		data, err := c.next()
		c.mu.Unlock()
		if err == nil {
			_, err = c.net.Write(data)
		}
		c.mu.Lock()
		if err != nil {
			c.closed = true
		}
	}
}

// send writes what is queued as far as the socket takes it without waiting,
// which costs no switch to another goroutine. The rest is the writer's.
func (c *conn) send() {
	for !c.writing && !c.closed && c.queued() {
		data, err := c.next()
		n := 0
		if err == nil {
			n, err = c.tryWrite(data)
		}
		switch {
		case err != nil:
			c.closed = true
		case n < len(data):
			c.rest, c.writing = data[n:], true
		}
	}
	c.wake.Broadcast()
}

func (c *conn) tryWrite(data []byte) (n int, err error) {
	raw, err := c.net.(syscall.Conn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var werr error
	err = raw.Write(func(fd uintptr) bool {
		if n, werr = unix.Write(int(fd), data); errors.Is(werr, unix.EAGAIN) || errors.Is(werr, unix.EINTR) {
			werr = nil
		}
		n = max(n, 0)
		return true
	})
	return n, errors.Join(err, werr)
}

func (c *conn) queued() bool { return len(c.rest) > 0 || len(c.replies) > 0 || c.push != nil }

// next takes what is to be written next from the queue.
func (c *conn) next() (data []byte, err error) {
	var st Status
	switch {
	case len(c.rest) > 0:
		data, c.rest = c.rest, nil
		return data, nil
	case len(c.replies) > 0:
		st, c.replies = c.replies[0], c.replies[1:]
	default:
		st, c.push = *c.push, nil
	}
	data, err = json.Marshal(st)
	return append(data, '\n'), err
}

func (c *conn) reply(st Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.replies) >= maxReplies {
		c.closed = true
	}
	// The answer is newer than what waits to be pushed and says all of it.
	c.push = nil
	c.replies = append(c.replies, st)
	c.send()
}

func (c *conn) pushed(st Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.push = &st
	c.send()
}

func (c *conn) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.wake.Broadcast()
}

// flush waits, with a bound, until everything queued is written.
func (c *conn) flush(most time.Duration) {
	_ = c.net.SetWriteDeadline(time.Now().Add(most))
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.closed && (c.writing || c.queued()) {
		c.wake.Wait()
	}
}
