package cutproxy

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"sync"

	"github.com/jackc/pgx/v5/pgproto3"
)

// The codes of what may come first on a connection in place of a protocol version.
const (
	codeCancel = 80877102
	codeSSL    = 80877103
	codeGSS    = 80877104
)

// link is one connection of a client, and the one to the server behind it.
type link struct {
	proxy  *Proxy
	client *net.TCPConn
	ended  <-chan struct{}
	end    func() // ends ended

	mu     sync.Mutex // guards server and silent, and writes to client
	server *net.TCPConn
	// silent says that the client is told nothing any more.
	silent bool
	done   bool

	// What the client has said so far, known to the goroutine that carries it.
	statements, portals map[string]effects
	transaction         transaction
}

// cut ends both connections, the client's by a reset.
func (l *link) cut() {
	l.end()
	reset(l.client)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done = true
	if l.server != nil {
		_ = l.server.Close()
	}
}

// join gives the link its server. It is false when the link was cut meanwhile.
func (l *link) join(server *net.TCPConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.server = server
	if l.done {
		_ = server.Close()
	}
	return !l.done
}

// carry carries what both say until either is gone.
func (l *link) carry() {
	answered := make(chan struct{})
	l.proxy.wait.Go(func() {
		defer close(answered)
		l.answers()
	})
	switch l.requests() {
	case After:
		// The server reads all it was sent, and goes when it has done it.
		_ = l.server.CloseWrite()
		<-answered
	case During:
		reset(l.client)
		_ = l.server.CloseWrite()
		<-answered
	}
	l.cut()
	<-answered
}

// answers carries what the server says, until it has no more to say.
func (l *link) answers() {
	b := make([]byte, 32<<10)
	for {
		n, err := l.server.Read(b)
		if n > 0 && l.proxy.passing(l.ended) {
			l.tell(b[:n])
		}
		if err != nil {
			// A server that is gone is gone for the client too, but for one
			// that went because its commit was cut.
			l.mu.Lock()
			defer l.mu.Unlock()
			if !l.silent {
				_ = l.client.Close()
			}
			return
		}
	}
}

// tell writes to the client, unless it is told nothing any more.
func (l *link) tell(b []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.silent {
		_, _ = l.client.Write(b) // a client that is gone shows when it is read
	}
}

func (l *link) silence() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.silent = true
}

// requests carries what the client says, until it is gone (None) or a commit is
// to be cut.
func (l *link) requests() Cut {
	r, w := bufio.NewReader(l.client), bufio.NewWriter(l.server)
	if !l.begin(r, w) {
		return None
	}
	for {
		message, err := read(r, 1)
		if err != nil || !l.proxy.passing(l.ended) {
			return None
		}
		cut := None
		if l.hear(message) {
			cut = l.proxy.commit()
		}
		if cut != None {
			l.silence()
		}
		if cut == Before {
			_ = w.Flush()
			return Before
		}
		// What the server does not take shows when it is read.
		_, err = w.Write(message)
		if err == nil && (r.Buffered() == 0 || cut != None) {
			err = w.Flush()
		}
		if err != nil || cut != None {
			return cut
		}
	}
}

// begin carries what comes first on a connection, which has no type.
func (l *link) begin(r *bufio.Reader, w *bufio.Writer) bool {
	for {
		first, err := read(r, 0)
		if err != nil || len(first) < 8 || !l.proxy.passing(l.ended) {
			return false
		}
		code := binary.BigEndian.Uint32(first[4:])
		if code == codeSSL || code == codeGSS {
			l.tell([]byte{'N'}) // what is encrypted could not be understood
			continue
		}
		if _, err := w.Write(first); err != nil || w.Flush() != nil {
			return false
		}
		return code != codeCancel
	}
}

// read reads a message whole: prefix bytes, and the length of the rest.
func read(r io.Reader, prefix int) ([]byte, error) {
	head := make([]byte, prefix+4)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	length := int(binary.BigEndian.Uint32(head[prefix:]))
	if length < 4 || length > 1<<30 {
		return nil, io.ErrUnexpectedEOF
	}
	message := make([]byte, prefix+length)
	copy(message, head)
	_, err := io.ReadFull(r, message[prefix+4:])
	return message, err
}

// hear notes what a message does and says whether it ends a transaction that may
// have written. A message that can't be decoded is for the server to refuse.
func (l *link) hear(message []byte) bool {
	body := message[5:]
	switch message[0] {
	case 'Q':
		var m pgproto3.Query
		if m.Decode(body) != nil {
			return false
		}
		committed := l.transaction.run(effectsOf(m.String))
		return l.transaction.sync() || committed
	case 'P':
		var m pgproto3.Parse
		if m.Decode(body) == nil {
			l.statements[m.Name] = effectsOf(m.Query)
		}
	case 'B':
		var m pgproto3.Bind
		if m.Decode(body) == nil {
			l.portals[m.DestinationPortal] = l.statements[m.PreparedStatement]
		}
	case 'E':
		var m pgproto3.Execute
		if m.Decode(body) == nil {
			return l.transaction.run(l.portals[m.Portal])
		}
	case 'c':
		return l.transaction.copied()
	case 'S':
		return l.transaction.sync()
	}
	return false
}
