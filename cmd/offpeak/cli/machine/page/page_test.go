package page

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// machine is a made-up one that can be paused.
type machine struct {
	mu      sync.Mutex
	view    View
	pauses  []time.Duration
	resumes int
	err     error
}

func (m *machine) world(now time.Time) World {
	return World{
		View: func(context.Context) (View, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.view, m.err
		},
		Pause: func(_ context.Context, d time.Duration) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.pauses = append(m.pauses, d)
			m.view.Paused, m.view.State, m.view.Headline = true, Resting, "Paused until you resume"
			return m.err
		},
		Resume: func(context.Context) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.resumes++
			m.view.Paused, m.view.State, m.view.Headline = false, Waiting, "Ready: waits for a job"
			return m.err
		},
		Now: func() time.Time { return now },
	}
}

func (m *machine) paused() (n, resumes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.pauses), m.resumes
}

// busy is a machine with something to say everywhere.
func busy() *machine {
	return &machine{view: View{
		Name: "attic", Hub: "https://grid.example, connected", Running: true, State: Working, Headline: "Works on a job",
		Jobs:     []Job{{ID: "job_1", Title: `<img src=x onerror="document.title='owned'">`, For: "account acct_them", Text: "job_1 attempt 1, running", Since: "12:00, 5m00s ago"}},
		Rules:    []Rule{{Name: "input", Seen: "untouched for 12m", Effect: "nothing in the way"}, {Name: "heat", Seen: "92 °C", Effect: "no job runs on a GPU", Forbids: true, Unknown: "the processor does not tell"}},
		Earnings: Earnings{Known: true, Today: "1.25", Week: "8.50", Total: "1234.00", Note: "as the hub said 20s ago"},
		Devices:  []Device{{Name: "NVIDIA GeForce RTX 4090", Temperature: "61 °C", Use: "97 %", Power: "310 W", Memory: "24GiB", Offered: "22GiB", Foreign: "1.2GiB", Throttled: "slowed down by power cap"}},
		Yield:    "half within 200ms, 99 of 100 within 3.1s (12 times)",
		Ended:    []Ended{{When: "Thu 11:58", Title: strings.Repeat("a-very-long-name-without-a-gap", 4), For: "your own account", Ran: "2m10s", End: "The owner came back to the machine."}},
		Blocked:  []string{"acct_rude"}, Problems: []string{"send heartbeat: no answer"},
	}}
}

// serve opens a page on a port of its own.
func serve(t *testing.T, m *machine, now time.Time) *Page {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(m.world(now), l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return p
}

type ask struct {
	method, path, body string
	header             map[string]string
}

func (p *Page) ask(t *testing.T, a ask) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), a.method, "http://"+p.hosts[0]+a.path, strings.NewReader(a.body))
	if err != nil {
		t.Fatal(err)
	}
	if a.method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	for k, v := range a.header {
		if k == "Host" {
			req.Host = v
		}
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text), resp.Header
}

// spend opens the page as the owner does.
func (p *Page) spend(t *testing.T) map[string]string {
	t.Helper()
	_, word, _ := strings.Cut(p.Link(), "#")
	status, text, _ := p.ask(t, ask{method: "POST", path: "/api/open", body: `{"word":"` + word + `"}`})
	var out struct{ Key string }
	if err := json.Unmarshal([]byte(text), &out); err != nil || status != 200 || out.Key == "" {
		t.Fatalf("open: %d %s", status, text)
	}
	return map[string]string{"Authorization": "Bearer " + out.Key}
}

func with(h map[string]string, k, v string) map[string]string {
	out := map[string]string{k: v}
	for k, v := range h {
		if out[k] == "" {
			out[k] = v
		}
	}
	return out
}

// Other users of the machine and other sites in the browser read nothing and pause
// nothing.
func TestStrangersAreRefused(t *testing.T) {
	m := busy()
	p := serve(t, m, time.Now())
	word := p.word
	key := p.spend(t)
	for name, c := range map[string]struct {
		ask
		status int
	}{
		"without a key":            {ask{"GET", "/api/status", "", nil}, 401},
		"with a wrong key":         {ask{"GET", "/api/status", "", map[string]string{"Authorization": "Bearer x"}}, 401},
		"with the word as key":     {ask{"GET", "/api/status", "", map[string]string{"Authorization": "Bearer " + word}}, 401},
		"with the key as a cookie": {ask{"POST", "/api/pause", "{}", map[string]string{"Cookie": "key=" + p.key}}, 401},
		"with the word, again":     {ask{"POST", "/api/open", `{"word":"` + word + `"}`, nil}, 401},
		"with no word":             {ask{"POST", "/api/open", `{"word":""}`, nil}, 401},
		"pause without a key":      {ask{"POST", "/api/pause", "{}", nil}, 401},
		"resume without a key":     {ask{"POST", "/api/resume", "{}", nil}, 401},
		"a name pointed here":      {ask{"GET", "/api/status", "", with(key, "Host", "evil.example")}, 421},
		"the same for the files":   {ask{"GET", "/", "", with(nil, "Host", "evil.example:80")}, 421},
		"another site":             {ask{"POST", "/api/pause", "{}", with(key, "Origin", "https://evil.example")}, 403},
		"another port":             {ask{"POST", "/api/pause", "{}", with(key, "Origin", "http://127.0.0.1:1")}, 403},
		"a sandboxed frame":        {ask{"POST", "/api/pause", "{}", with(key, "Origin", "null")}, 403},
		"as a browser says":        {ask{"POST", "/api/pause", "{}", with(key, "Sec-Fetch-Site", "same-site")}, 403},
		"a form":                   {ask{"POST", "/api/pause", "{}", with(key, "Content-Type", "text/plain")}, 415},
		"a pause by GET":           {ask{"GET", "/api/pause", "", key}, 404},
		"preflight":                {ask{"OPTIONS", "/api/pause", "", with(nil, "Origin", "https://evil.example")}, 403},
		"a body too large":         {ask{"POST", "/api/pause", strings.Repeat(" ", maxBody+1), key}, 413},
		"a file above":             {ask{"GET", "/../page.go", "", nil}, 404},
		"the files' folder":        {ask{"GET", "/static/", "", nil}, 404},
		"to write a file":          {ask{"PUT", "/", "x", nil}, 405},
		"a pause of nothing":       {ask{"POST", "/api/pause", `{"for":"-1h"}`, key}, 400},
		"a pause of a year":        {ask{"POST", "/api/pause", `{"for":"9000h"}`, key}, 400},
		"a pause until when":       {ask{"POST", "/api/pause", `{"until":"x"}`, key}, 400},
		"no JSON":                  {ask{"POST", "/api/pause", `{`, key}, 400},
	} {
		status, text, h := p.ask(t, c.ask)
		if status != c.status {
			t.Errorf("%s: %d %s, want %d", name, status, text, c.status)
		}
		if strings.Contains(text, "RTX") || h.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: tells %s with %v", name, text, h)
		}
	}
	if n, r := m.paused(); n != 0 || r != 0 {
		t.Errorf("paused %d times, resumed %d times", n, r)
	}
	for path, kind := range map[string]string{"/": "text/html", "/page.css": "text/css", "/page.js": "text/javascript", "/icon.svg": "image/svg+xml"} {
		status, _, h := p.ask(t, ask{"GET", path, "", nil})
		if status != 200 || !strings.HasPrefix(h.Get("Content-Type"), kind) || !strings.HasPrefix(h.Get("Content-Security-Policy"), "default-src 'self'") ||
			h.Get("X-Frame-Options") != "DENY" || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d %v", path, status, h)
		}
	}
	if status, text, _ := p.ask(t, ask{"GET", "/api/status", "", with(key, "Host", p.hosts[1])}); status != 200 || !strings.Contains(text, "RTX") {
		t.Errorf("as localhost: %d %s", status, text)
	}
}

func TestPauses(t *testing.T) {
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	m := busy()
	// The night in which clocks go forward.
	p := serve(t, m, time.Date(2026, 3, 28, 23, 0, 0, 0, zone))
	key := p.spend(t)
	for body, want := range map[string]time.Duration{"": 0, "{}": 0, `{"for":"1h"}`: time.Hour, `{"until":"tomorrow"}`: 6 * time.Hour} {
		status, text, _ := p.ask(t, ask{"POST", "/api/pause", body, key})
		if last := m.pauses[len(m.pauses)-1]; status != 200 || !strings.Contains(text, `"paused":true`) || last != want {
			t.Errorf("%s: %d, for %v, want %v: %s", body, status, last, want, text)
		}
	}
	if status, text, _ := p.ask(t, ask{"POST", "/api/resume", "{}", key}); status != 200 || m.resumes != 1 || !strings.Contains(text, `"paused":false`) {
		t.Errorf("resume: %d %s", status, text)
	}
	m.err = errors.New("the disk is full")
	if status, text, _ := p.ask(t, ask{"POST", "/api/pause", "{}", key}); status != 502 || !strings.Contains(text, "the disk is full") {
		t.Errorf("a pause that does not work: %d %s", status, text)
	}
}

// The page is for this machine alone.
func TestOnlyLoopback(t *testing.T) {
	for _, at := range []net.Addr{&net.TCPAddr{IP: net.IPv4zero, Port: 1}, &net.TCPAddr{IP: net.ParseIP("192.0.2.1"), Port: 1}, &net.UnixAddr{Name: "x"}, &net.TCPAddr{Port: 1}} {
		if _, err := New(World{}, at); err == nil {
			t.Errorf("served at %s", at)
		}
	}
	p, err := New(World{}, &net.TCPAddr{IP: net.IPv6loopback, Port: 7})
	if err != nil || !p.named("[::1]:7") || p.named("::1:7") {
		t.Errorf("on IPv6: %v, %v", p, err)
	}
}
