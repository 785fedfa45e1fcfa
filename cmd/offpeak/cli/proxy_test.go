package cli

import (
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"offpeak/internal/local"
)

// throughProxy puts a network between a script and the hub of the local file that
// lets nobody out but through a proxy, which wants a password: the hub has a name
// there that only the proxy knows. The script's commands are the hub's admin.
func throughProxy(ts *testscript.TestScript, name string) {
	here, err := local.Read(local.Path(ts.Getenv))
	ts.Check(err)
	hub, err := url.Parse(here.Hubs[0])
	ts.Check(err)
	p := &proxy{name: name, to: hub.Host, user: url.UserPassword("reader", "p:w d")}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	server := &http.Server{Handler: p}
	go func() { _ = server.Serve(ln) }()
	ts.Defer(func() { _ = server.Close() })
	at := url.URL{Scheme: "http", User: p.user, Host: ln.Addr().String()}
	ts.Setenv("PROXY", ln.Addr().String())
	ts.Setenv("HTTPS_PROXY", at.String())
	ts.Setenv("OFFPEAK_HUB", "https://"+name)
	ts.Setenv("OFFPEAK_TOKEN", here.Token)
	ts.Setenv("OFFPEAK_FINGERPRINT", here.Fingerprint)
}

// proxy is a forward proxy that tunnels to one hub, for who has the password.
type proxy struct {
	name, to string
	user     *url.Userinfo
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	password, _ := p.user.Password()
	want := &http.Request{Header: http.Header{}}
	want.SetBasicAuth(p.user.Username(), password)
	switch {
	case r.Header.Get("Proxy-Authorization") != want.Header.Get("Authorization"):
		w.Header().Set("Proxy-Authenticate", `Basic realm="the way out"`)
		http.Error(w, "who are you?", http.StatusProxyAuthRequired)
		return
	case r.Method != http.MethodConnect || !strings.EqualFold(r.Host, p.name):
		http.Error(w, "no way to "+r.Host, http.StatusForbidden)
		return
	}
	hub, err := net.Dial("tcp", p.to)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer hub.Close()
	w.WriteHeader(http.StatusOK)
	client, rest, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer client.Close()
	go func() {
		_, _ = io.Copy(hub, rest)
		hub.Close()
	}()
	_, _ = io.Copy(client, hub)
}
