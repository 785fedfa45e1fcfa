package egress

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strings"
	"time"

	"offpeak"
)

// asked is what a job asks of the proxy.
type asked struct {
	to offpeak.Destination
	// plain is the request to pass on, nil for a tunnel.
	plain *http.Request
}

// refusal is an answer that is no, as the job gets it. more is for the owner.
type refusal struct {
	code int
	why  string
	more string
}

func (r *refusal) Error() string { return r.why }

// readRequest reads one request. What it returns is well-formed; whether it is
// allowed is not asked here.
func readRequest(r *bufio.Reader) (asked, error) {
	req, err := http.ReadRequest(r)
	if err != nil {
		if _, gone := errors.AsType[*net.OpError](err); gone || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return asked{}, err
		}
		return asked{}, &refusal{code: 400, why: "this is an HTTP proxy, and that was no HTTP request"}
	}
	if req.Method == http.MethodConnect {
		// Exactly what stands in the request, and not what a parser of URLs makes of it.
		to, err := offpeak.ParseDestination(req.RequestURI)
		if err != nil {
			return asked{}, unreadable(err)
		}
		return asked{to: to}, nil
	}
	u := req.URL
	switch {
	case u.Scheme == "" || u.Host == "":
		return asked{}, &refusal{code: 400, why: "this is a proxy: ask it for a whole URL, http://host/path, or CONNECT host:port"}
	case u.Scheme != "http":
		return asked{}, &refusal{code: 400, why: "only http:// is passed on; for anything else use CONNECT host:port"}
	case u.User != nil || u.Opaque != "":
		return asked{}, &refusal{code: 400, why: "the URL has a user in it; send an Authorization header"}
	}
	host := u.Host
	if !strings.Contains(host[strings.LastIndexByte(host, ']')+1:], ":") {
		host += ":80"
	}
	to, err := offpeak.ParseDestination(host)
	if err != nil {
		return asked{}, unreadable(err)
	}
	strip(req.Header)
	req.Close = true // one request a connection, so that the next is checked too
	if req.Header.Get("User-Agent") == "" {
		req.Header["User-Agent"] = nil
	}
	return asked{to: to, plain: req}, nil
}

// unreadable says what is wrong with a destination; what it is stays the job's.
func unreadable(err error) error {
	why := err.Error()
	if bad, ok := errors.AsType[*offpeak.ValueError](err); ok {
		why = "a destination " + bad.Rule
	}
	return &refusal{code: 403, why: why, more: err.Error()}
}

// strip takes away what is between a client and its proxy.
func strip(h http.Header) {
	for _, list := range h["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			h.Del(textproto.TrimString(name))
		}
	}
	for _, name := range []string{"Connection", "Proxy-Connection", "Proxy-Authorization", "Keep-Alive", "Te", "Trailer", "Upgrade"} {
		h.Del(name)
	}
}

// refuse answers no, in words, and waits a little for the job to read it: to close on
// what was not read would take the answer away again.
func refuse(c net.Conn, code int, why string) {
	text := "offpeak: " + why + "\n"
	_ = c.SetWriteDeadline(time.Now().Add(5 * time.Second))
	fmt.Fprintf(c, "HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		code, http.StatusText(code), len(text), text)
	if w, ok := c.(interface{ CloseWrite() error }); ok {
		_ = w.CloseWrite()
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	_, _ = io.Copy(io.Discard, io.LimitReader(c, 64<<10))
}
