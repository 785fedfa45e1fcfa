package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"reflect"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"offpeak"
	"offpeak/store"
	"offpeak/wire"
)

// caller is who makes one request, with what the gate read of it. It is also
// the writer that handlers of people's routes write to, so that the status can
// be counted.
type caller struct {
	http.ResponseWriter
	// status is what was answered, 0 while nothing was.
	status int
	token  offpeak.Token
	// account restricts what the caller sees: "" for admins, who see all.
	account offpeak.AccountID
	address string
	// from is what failed authentications count against.
	from string
	// op is set for routes that change something.
	op store.Op
	// body is the JSON or log bytes of the request.
	body []byte
}

func (c *caller) WriteHeader(status int) {
	if c.status == 0 {
		c.status = status
	}
	c.ResponseWriter.WriteHeader(status)
}

func (c *caller) Write(p []byte) (int, error) {
	if c.status == 0 {
		c.status = http.StatusOK
	}
	return c.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController reach the connection.
func (c *caller) Unwrap() http.ResponseWriter { return c.ResponseWriter }

var errPanicked = errors.New("handler panicked")

type callerKey struct{}

func callerOf(ctx context.Context) *caller { return ctx.Value(callerKey{}).(*caller) }

// handler is what runs behind the gate. An error that it returns before it has
// written anything becomes the answer.
type handler func(w http.ResponseWriter, r *http.Request, c *caller) error

// gate is what every request passes before its handler.
func (a *api) gate(rt *route, next handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := a.opts.Now()
		c := &caller{ResponseWriter: w}
		defer func() { rt.seen.done(c.status, a.opts.Now().Sub(start)) }()
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(v)
			}
			a.log.Error("handler panicked", "route", rt.path, "panic", v, "stack", string(debug.Stack()))
			a.fail(c, rt, errPanicked)
		}()
		h := w.Header()
		for _, s := range a.headers {
			h[s.name] = s.value
		}
		err := a.admit(rt, r, c)
		if err == nil && rt.stream && r.Method == http.MethodHead {
			return
		}
		if err == nil {
			err = next(c, r, c)
		}
		if err != nil {
			a.fail(c, rt, err)
		}
	})
}

// admit checks everything about a request that no handler has to.
func (a *api) admit(rt *route, r *http.Request, c *caller) error {
	if err := checkProtocol(r); err != nil {
		return err
	}
	addr, err := netip.ParseAddrPort(r.RemoteAddr)
	if err == nil {
		c.address, c.from = addr.Addr().Unmap().String(), neighbourhood(addr.Addr())
	}
	if rt.roles != nil {
		if err := a.authorize(rt, r, c); err != nil {
			return err
		}
	} else if rt.signed {
		if wait := a.failures.wait(c.from, a.opts.Now()); wait > 0 {
			return tooMany(c, wait, "too many failed authentications from "+c.address)
		}
	}
	if rt.mutates {
		if c.op.ID = offpeak.OpID(r.Header.Get(wire.HeaderOperation)); !c.op.ID.Valid() {
			return &offpeak.FieldError{Field: "header." + wire.HeaderOperation, Value: string(c.op.ID),
				Rule: "is required here: 1 to 64 of A-Z a-z 0-9 _ -, made by you, fresh for each change and the same when you repeat one"}
		}
		c.op.Actor = offpeak.Actor{Account: c.token.Account, Member: c.token.Member, Token: c.token.ID,
			Node: c.token.Node, Role: c.token.Role, Address: c.address}
	}
	if rt.limit > 0 {
		if c.body, err = a.read(rt, r, c); err != nil {
			return err
		}
	}
	if rt.mutates {
		c.op.Digest = digest(r, c.body)
	}
	return nil
}

// authorize says who the caller is and whether the route admits them.
func (a *api) authorize(rt *route, r *http.Request, c *caller) error {
	now := a.opts.Now()
	scheme, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || secret == "" || len(secret) > 4096 {
		c.Header().Set("WWW-Authenticate", `Bearer realm="offpeak"`)
		return wrap("a bearer token is needed", offpeak.ErrUnauthenticated)
	}
	look := func() (offpeak.Token, error) { return a.authenticate(r.Context(), secret) }
	if rt.stream {
		look = func() (offpeak.Token, error) {
			return aside(func() (offpeak.Token, error) { return a.authenticate(r.Context(), secret) })
		}
	}
	token, err := look()
	if errors.Is(err, offpeak.ErrUnauthenticated) {
		// A good token passes whatever its neighbours do: a whole lab, or every
		// node behind one router, shares an address.
		if wait := a.failures.take(c.from, now); wait > 0 {
			return tooMany(c, wait, "too many failed authentications from "+c.address)
		}
		c.Header().Set("WWW-Authenticate", `Bearer realm="offpeak", error="invalid_token"`)
		return wrap("the token is wrong, expired or revoked", offpeak.ErrUnauthenticated)
	}
	if err != nil {
		return err
	}
	c.token = token
	if !slices.Contains(rt.roles, token.Role) {
		return wrap("this needs "+roleList(rt.roles)+"; the token's role is "+string(token.Role), offpeak.ErrForbidden)
	}
	if token.Role != offpeak.RoleAdmin {
		c.account = token.Account
	}
	lane, key := a.tokens, string(token.ID)
	if token.Role == offpeak.RoleNode {
		lane, key = a.nodes, string(token.Node)
	}
	if wait := lane.take(key, now); wait > 0 {
		return tooMany(c, wait, "too many requests")
	}
	return nil
}

// bound gives a connection until d from now, where it can be bounded. It is the
// machine's own clock that ends it: net knows no other.
func bound(set func(time.Time) error, d time.Duration) error {
	if err := set(time.Now().Add(d)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return wrap("bound the connection's time: "+err.Error(), offpeak.ErrUnavailable)
	}
	return nil
}

// read reads a body that the route bounds.
func (a *api) read(rt *route, r *http.Request, c *caller) ([]byte, error) {
	if r.ContentLength > rt.limit {
		return nil, tooLarge(rt.limit)
	}
	if r.ContentLength == 0 {
		return nil, nil
	}
	if err := bound(http.NewResponseController(c.ResponseWriter).SetReadDeadline, time.Minute); err != nil {
		return nil, err
	}
	if r.ContentLength > 0 {
		body := make([]byte, r.ContentLength)
		if _, err := io.ReadFull(r.Body, body); err != nil {
			return nil, cutShort(err)
		}
		// The end must be read too, so that net/http begins to watch for the
		// client's going away.
		var one [1]byte
		_, _ = r.Body.Read(one[:])
		return body, nil
	}
	var buf bytes.Buffer
	n, err := io.Copy(&buf, io.LimitReader(r.Body, rt.limit+1))
	if err != nil {
		return nil, cutShort(err)
	}
	if n > rt.limit {
		c.Header().Set("Connection", "close")
		return nil, tooLarge(rt.limit)
	}
	return buf.Bytes(), nil
}

// digest is what makes two requests with one operation id the same request.
func digest(r *http.Request, body []byte) [32]byte {
	h := sha256.New()
	_, _ = io.WriteString(h, r.Method+" "+r.URL.RequestURI()+"\n")
	_, _ = h.Write(body)
	return [32]byte(h.Sum(nil))
}

// checkProtocol refuses a protocol that this hub does not speak; people's
// tools that name none are served.
func checkProtocol(r *http.Request) error {
	v := r.Header.Get(wire.HeaderProtocol)
	if v == "" || v == "0" || v == strconv.Itoa(wire.Protocol) || v == strconv.Itoa(wire.Protocol-1) {
		return nil
	}
	p := &wire.Problem{Title: "Protocol", Status: http.StatusBadRequest, Code: "protocol",
		Detail: "the request speaks protocol " + strconv.Quote(clip(v)) + ", this hub speaks " + strconv.Itoa(wire.Protocol) + " and the one before"}
	switch n, err := strconv.Atoi(v); {
	case err != nil:
		p.Next = "Send a whole number in " + wire.HeaderProtocol + ", or leave it out."
	case n > wire.Protocol:
		p.Next = "Upgrade the hub, or use an older client or agent."
	default:
		p.Next = "Upgrade the client or agent."
	}
	return p
}

// neighbourhood is what one party is likely to hold all of: an IPv4 address, or
// the 64-bit prefix of an IPv6 one.
func neighbourhood(a netip.Addr) string {
	a = a.Unmap()
	if a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			return p.String()
		}
	}
	return a.String()
}

func roleList(roles []offpeak.Role) string {
	var s []string
	for _, r := range roles {
		s = append(s, string(r))
	}
	return "the role " + strings.Join(s, " or ")
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}

func typeOf[T any]() reflect.Type { return reflect.TypeFor[T]() }
