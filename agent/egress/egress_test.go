package egress

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"offpeak"
)

// world is a proxy with a resolver of the test's own, on a machine whose network is
// what the test says.
type world struct {
	p *Proxy
	// names are answered in turn; the last stays.
	mu    sync.Mutex
	names map[string][][]string
	asked []string
}

func newWorld(t testing.TB, change func(*Config)) *world {
	t.Helper()
	w := &world{names: map[string][][]string{}}
	cfg := Config{
		Folder: t.TempDir(), Hosts: []string{offpeak.EgressAny},
		Times: Times{Head: 2 * time.Second, Dial: 2 * time.Second, Hop: 100 * time.Millisecond},
		Resolve: func(_ context.Context, name string) (out []netip.Addr, err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.asked = append(w.asked, name)
			turns := w.names[name]
			if len(turns) == 0 {
				return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
			}
			if len(turns) > 1 {
				w.names[name] = turns[1:]
			}
			for _, a := range turns[0] {
				out = append(out, netip.MustParseAddr(a))
			}
			return out, nil
		},
		Nearby: func() ([]netip.Prefix, error) {
			return []netip.Prefix{netip.MustParsePrefix("9.9.9.0/24"), netip.MustParsePrefix("2620:fe::/48")}, nil
		},
		Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	if w.p, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) gate(t testing.TB, allow ...string) *Gate {
	t.Helper()
	g, err := w.p.Open("lease_1", "job_1", allow)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return g
}

// raw sends bytes to a gate and returns all that comes back.
func raw(t testing.TB, g *Gate, text string) string {
	t.Helper()
	c, err := net.Dial("unix", g.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = io.WriteString(c, text)
	out, _ := io.ReadAll(c)
	return string(out)
}

// TestTricks: forms of an address of the home, and names that lead there. None is
// connected to; nothing is sent to it, not even a question of how far it is.
func TestTricks(t *testing.T) {
	w := newWorld(t, nil)
	trap := trap(t)
	for name, turns := range map[string][][]string{
		"private.trick.example": {{"192.168.1.1"}},
		"loop.trick.example":    {{"127.0.0.1"}},
		"loop6.trick.example":   {{"::1"}},
		"mixed.trick.example":   {{"1.1.1.1", "192.168.1.1"}},
		"mixed6.trick.example":  {{"2606:4700::1", "fd00::1"}},
		"mapped.trick.example":  {{"::ffff:127.0.0.1"}},
		"nat64.trick.example":   {{"64:ff9b::c0a8:101"}},
		"6to4.trick.example":    {{"2002:c0a8:101::1"}},
		"teredo.trick.example":  {{"2001:0:c0a8:101::1"}},
		"meta.trick.example":    {{"169.254.169.254"}},
		"zero.trick.example":    {{"0.0.0.0"}},
		"cgnat.trick.example":   {{"100.64.0.1"}},
		"near.trick.example":    {{"9.9.9.7"}},
		"near6.trick.example":   {{"2620:fe:0:77::1"}},
		"none.trick.example":    {{}},
	} {
		w.names[name] = turns
	}
	var allow []string
	for name := range w.names {
		allow = append(allow, name+":"+trap.port)
	}
	allow = append(allow, "*.wild.example:"+trap.port, "*.wild.example:80")
	g := w.gate(t, allow...)
	tries := []string{
		// Addresses as they are, which none of the job's destinations are.
		"127.0.0.1", "[::1]", "192.168.1.1", "10.0.0.1", "172.16.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "255.255.255.255", "224.0.0.1",
		"[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[2001:0:7f00:1::]", "[fe80::1%25lo]", "[fe80::1]", "[fd00::1]", "[ff02::1]",
		// Addresses in disguise.
		"2130706433", "0x7f000001", "0177.0.0.1", "0x7f.0.0.1", "127.1", "127.0.1", "017700000001", "127.0.0.1.", "127.0.0.1%00.wild.example", "127。0。0。1", "①②⑦.⓪.⓪.①",
		// Names of the home, and names in disguise.
		"localhost", "localhost.", "router", "nas.local", "a.wild.example.", "A.WILD.EXAMPLE", "*.wild.example", "user@a.wild.example", "a.wild.example#@127.0.0.1", "a.wild.example:80@127.0.0.1", "a.wild.example\\.127.0.0.1", "xn--a.wild.example..", "bücher.wild.example",
	}
	for name := range w.names {
		tries = append(tries, name)
	}
	for _, host := range tries {
		for _, text := range []string{
			"CONNECT " + host + ":" + trap.port + " HTTP/1.1\r\nHost: a.wild.example\r\n\r\n",
			"GET http://" + host + ":" + trap.port + "/ HTTP/1.1\r\nHost: a.wild.example\r\n\r\n",
			"GET http://" + host + "/ HTTP/1.0\r\n\r\n",
		} {
			got := raw(t, g, text)
			if !strings.HasPrefix(got, "HTTP/1.1 4") && !strings.HasPrefix(got, "HTTP/1.1 502 ") {
				t.Errorf("%q: %q", text, got)
			}
			if strings.Contains(got, "192.168.1.1") && !strings.Contains(text, "192.168.1.1") {
				t.Errorf("%q tells the job an address of the home: %q", text, got)
			}
		}
	}
	if n := trap.reached.Load(); n > 0 {
		t.Errorf("%d connections came through", n)
	}
	i := slices.IndexFunc(g.Reached(), func(r Reached) bool { return r.Host == "private.trick.example:"+trap.port })
	if i < 0 || !strings.Contains(g.Reached()[i].Why, "192.168.1.1 is private") {
		t.Errorf("the owner is told %+v", g.Reached())
	}
}

type trapped struct {
	port    string
	reached atomic.Int64
}

// trap listens on loopback in both families and counts who comes.
func trap(t testing.TB) *trapped {
	t.Helper()
	out := &trapped{}
	for _, at := range []string{"127.0.0.1:", "[::1]:"} {
		l, err := net.Listen("tcp", at+out.port)
		if err != nil {
			if out.port == "" {
				t.Fatal(err)
			}
			continue
		}
		_, out.port, _ = net.SplitHostPort(l.Addr().String())
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				out.reached.Add(1)
				c.Close()
			}
		}()
	}
	return out
}

// TestRebinding: a name that is public when it is looked at and not when it is
// connected to. It is resolved once, and what the kernel is about to connect to is
// looked at again.
func TestRebinding(t *testing.T) {
	w := newWorld(t, nil)
	trap := trap(t)
	w.names["re.trick.example"] = [][]string{{"1.1.1.1"}, {"127.0.0.1"}}
	g := w.gate(t, "re.trick.example:"+trap.port)
	var seen []string
	for range 2 {
		seen = append(seen, raw(t, g, "CONNECT re.trick.example:"+trap.port+" HTTP/1.1\r\n\r\n"))
	}
	if !strings.Contains(seen[1], "403") || trap.reached.Load() > 0 {
		t.Errorf("%q, %d connections", seen, trap.reached.Load())
	}
	// The last look, without those before it.
	port := netip.MustParseAddrPort("127.0.0.1:" + trap.port)
	if _, err := w.p.connect(t.Context(), port, 0); err == nil || trap.reached.Load() > 0 {
		t.Errorf("connected to %s", port)
	} else if _, ok := errors.AsType[*closedError](err); !ok {
		t.Error(err)
	}
}

func TestOpen(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Hosts = []string{"*.lab.example:443"} })
	if _, err := w.p.Open("lease_1", "job_1", []string{"www.lab.example:443", "pypi.org:443"}); !errors.Is(err, ErrNotAllowed) {
		t.Error(err)
	}
	g := w.gate(t, "www.lab.example:443")
	if got := raw(t, g, "CONNECT ftp.lab.example:443 HTTP/1.1\r\n\r\n"); !strings.Contains(got, "not among what the job may reach") {
		t.Error(got)
	}
	if len(w.asked) > 0 {
		t.Errorf("asked the resolver for %v, which is a way out of its own", w.asked)
	}
}

// local lets a test reach its own servers on loopback: nothing is closed.
func local(t testing.TB, change func(*Config)) (*world, *Gate, *http.Client) {
	t.Helper()
	w := newWorld(t, change)
	w.names["files.example"] = [][]string{{"127.0.0.1"}}
	g := w.gate(t, "files.example:80", "files.example:443")
	return w, g, &http.Client{Transport: &http.Transport{
		Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: "proxy"}),
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", g.Path())
		},
	}}
}

// pair are the two ends of a gate's connection to a destination that a test plays.
func metered(g *Gate) (job, up *end, client, server net.Conn) {
	a1, a2 := tcp()
	b1, b2 := tcp()
	job, up = g.metered("files.example:443", a2, b1)
	return job, up, a1, b2
}

func tcp() (net.Conn, net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		panic(err)
	}
	b, err := l.Accept()
	if err != nil {
		panic(err)
	}
	return a, b
}

func TestTunnel(t *testing.T) {
	_, g, _ := local(t, nil)
	job, up, client, server := metered(g)
	done := make(chan struct{})
	go func() { tunnel(job, up); close(done) }()
	go func() {
		data, _ := io.ReadAll(server) // until the client has said all
		_, _ = server.Write(bytes.ToUpper(data))
		server.Close()
	}()
	_, _ = io.WriteString(client, "hello")
	_ = client.(*net.TCPConn).CloseWrite()
	if got, err := io.ReadAll(client); err != nil || string(got) != "HELLO" {
		t.Errorf("%q, %v", got, err)
	}
	client.Close()
	<-done
	if r := g.Reached(); len(r) != 1 || r[0].Sent != 5 || r[0].Received != 5 {
		t.Errorf("%+v", r)
	}
}

func TestIdle(t *testing.T) {
	_, g, _ := local(t, func(c *Config) { c.Times.Idle = 200 * time.Millisecond })
	job, up, client, server := metered(g)
	defer client.Close()
	defer server.Close()
	done := make(chan struct{})
	start := time.Now()
	go func() { tunnel(job, up); close(done) }()
	// One end that is busy keeps the other.
	for range 4 {
		time.Sleep(100 * time.Millisecond)
		_, _ = server.Write([]byte("x"))
	}
	<-done
	if took := time.Since(start); took < 500*time.Millisecond || took > 5*time.Second {
		t.Errorf("ended after %v", took)
	}
}

func TestTotal(t *testing.T) {
	_, g, _ := local(t, func(c *Config) { c.Total = 100 << 10 })
	job, up, client, server := metered(g)
	defer server.Close()
	go tunnel(job, up)
	go func() {
		for {
			if _, err := server.Write(make([]byte, 8<<10)); err != nil {
				return
			}
		}
	}()
	n, _ := io.Copy(io.Discard, client)
	if n > 100<<10+chunk {
		t.Errorf("moved %d", n)
	}
	if got := raw(t, g, "CONNECT files.example:443 HTTP/1.1\r\n\r\n"); !strings.Contains(got, "all that the owner of this machine allows") {
		t.Error(got)
	}
}

func TestRate(t *testing.T) {
	const perSecond = 1 << 20
	lim := rate.NewLimiter(perSecond, Burst)
	_, g, _ := local(t, func(c *Config) { c.Rate = lim })
	job, up, client, server := metered(g)
	go tunnel(job, up)
	go func() { _, _ = server.Write(make([]byte, perSecond/2)); server.Close() }()
	start := time.Now()
	n, _ := io.Copy(io.Discard, client)
	if took := time.Since(start); n != perSecond/2 || took < 350*time.Millisecond || took > 3*time.Second {
		t.Errorf("%d bytes in %v, at %d a second", n, took, perSecond)
	}
	if _, err := New(Config{Folder: t.TempDir(), Rate: rate.NewLimiter(1, 1)}); err == nil {
		t.Error("a burst that no chunk fits into is taken")
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	_, g, _ := local(t, nil)
	var all []net.Conn
	for range maxConns {
		c, err := net.Dial("unix", g.Path())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		all = append(all, c)
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		if got := raw(t, g, ""); strings.Contains(got, "503") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("never refused")
		}
	}
	all[0].Close()
	for !strings.Contains(raw(t, g, "x y z\r\n\r\n"), "400") {
		if time.Now().After(deadline) {
			t.Fatal("never let in again")
		}
	}
}

func TestReportIsBounded(t *testing.T) {
	w := newWorld(t, nil)
	g := w.gate(t, "pypi.org:443")
	for i := range maxHosts + 10 {
		g.note(fmt.Sprint("h", i), func(r *Reached) { r.Refused++ })
	}
	r := g.Reached()
	if len(r) != maxHosts+1 || r[maxHosts].Host != Others || r[maxHosts].Refused != 10 {
		t.Errorf("%d hosts, the last %+v", len(r), r[len(r)-1])
	}
	for range maxEnded + 5 {
		again, err := w.p.Open("lease_2", "job_2", []string{"pypi.org:443"})
		if err != nil {
			t.Fatal(err)
		}
		again.note("pypi.org:443", func(r *Reached) { r.Connections++ })
		again.Close()
	}
	if n := len(w.p.Ended()); n != maxEnded {
		t.Errorf("%d jobs that have ended are kept", n)
	}
}

// A plain request goes on as one request to the host in its URL, whatever its
// headers say, and the connection ends with its answer.
func TestPlain(t *testing.T) {
	_, g, _ := local(t, nil)
	for _, c := range []struct{ in, out string }{
		{"GET http://files.example/a?b=c HTTP/1.1\r\nHost: router\r\nProxy-Authorization: x\r\nConnection: x-mine\r\nX-Mine: 1\r\nX-Kept: 2\r\n\r\n", "GET /a?b=c HTTP/1.1\r\nHost: files.example\r\nConnection: close\r\nX-Kept: 2\r\n\r\n"},
		{"POST http://files.example/ HTTP/1.1\r\nHost: files.example\r\nContent-Length: 3\r\n\r\nabcGET http://router/ HTTP/1.1\r\n\r\n", "POST / HTTP/1.1\r\nHost: files.example\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc"},
	} {
		ask, err := readRequest(bufio.NewReader(strings.NewReader(c.in)))
		if err != nil {
			t.Fatal(err)
		}
		job, up, client, server := metered(g)
		got := make(chan string)
		go func() {
			req, err := http.ReadRequest(bufio.NewReader(server))
			if err != nil {
				got <- err.Error()
				return
			}
			body, _ := io.ReadAll(req.Body)
			_, _ = io.WriteString(server, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nKeep-Alive: x\r\n\r\nhi")
			got <- fmt.Sprint(req.Method, " ", req.RequestURI, " ", req.Host, " ", req.Header, " ", string(body))
		}()
		go g.pass(ask.plain, job, up)
		answer, _ := io.ReadAll(client)
		want, err := http.ReadRequest(bufio.NewReader(strings.NewReader(c.out)))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(want.Body)
		if g, w := <-got, fmt.Sprint(want.Method, " ", want.RequestURI, " ", want.Host, " ", want.Header, " ", string(body)); g != w {
			t.Errorf("passed on %s, want %s", g, w)
		}
		if string(answer) != "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi" {
			t.Errorf("answered %q", answer)
		}
	}
}

func FuzzRequest(f *testing.F) {
	for _, s := range []string{
		"CONNECT pypi.org:443 HTTP/1.1\r\nHost: pypi.org:443\r\n\r\n", "GET http://pypi.org/ HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\n\r\n",
		"CONNECT 127.1:443 HTTP/1.1\r\n\r\n", "GET http://a@b:1/ HTTP/1.0\r\n\r\n", "POST http://a.b/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
		"CONNECT [2606:4700::1]:443 HTTP/1.1\r\n\r\n", "GET http://[::1%25lo]/ HTTP/1.1\r\n\r\n", "\x16\x03\x01\x02", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ask, err := readRequest(bufio.NewReader(strings.NewReader(text)))
		if err != nil {
			return
		}
		// What was read can be read again from what it says, and is no closed address.
		again, err := offpeak.ParseDestination(ask.to.String())
		if err != nil || again != ask.to || ask.to.Port == 25 {
			t.Errorf("%q leads to %v: %v", text, ask.to, err)
		}
		if ask.plain == nil {
			return
		}
		var out bytes.Buffer
		if ask.plain.Write(&out) != nil {
			return
		}
		// A host that gets it reads one request for that host.
		r := bufio.NewReader(&out)
		got, err := http.ReadRequest(r)
		if err != nil {
			t.Errorf("%q is passed on as what can't be read: %v", text, err)
			return
		}
		if _, err := io.Copy(io.Discard, got.Body); err == nil && r.Buffered() > 0 {
			t.Errorf("%q is passed on as more than one request", text)
		}
	})
}

func FuzzRoutes(f *testing.F) {
	f.Add("Iface\tDestination\tGateway\neth0\t00000000\t0101A8C0\t0003\n")
	f.Add("00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003 eth0\n")
	f.Fuzz(func(_ *testing.T, text string) {
		routes4(strings.NewReader(text))
		routes6(strings.NewReader(text))
	})
}

func TestRoutes(t *testing.T) {
	four := routes4(strings.NewReader("Iface\tDestination\tGateway \tFlags\neth0\t00000000\t0101A8C0\t0003\neth0\t0001A8C0\t00000000\t0001\n"))
	six := routes6(strings.NewReader("00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth0\n"))
	if fmt.Sprint(four, six) != "[192.168.1.1] [fe80::1]" {
		t.Error(four, six)
	}
}

func TestNetworks(t *testing.T) {
	var list []net.Addr
	for _, s := range []string{"192.168.1.2/24", "203.0.112.9/32", "2a01:4f8:1:2::3/64", "fe80::1/64"} {
		ip, n, err := net.ParseCIDR(s)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, &net.IPNet{IP: ip, Mask: n.Mask})
	}
	if got := fmt.Sprint(networks(list)); got != "[192.168.1.0/24 203.0.112.9/32 2a01:4f8:1::/48 fe80::/48]" {
		t.Error(got)
	}
}
