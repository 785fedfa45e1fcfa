// Package page serves the page on which an owner sees what their machine does, and
// pauses it. It listens on loopback alone, for as long as the command runs that opened
// it; the agent itself listens on no network.
//
// It owns who may look: other users of the machine can reach a port on loopback, and
// so can any web site that the owner's browser has open. So nothing but the page's own
// files is served without the session's key, which a browser gets once, for the word
// in the link that the command prints. The word travels in the link's fragment, which no
// browser sends; the key is kept by the page and sent in a header, which no other site
// and no other port can have it send, as they could a cookie. Requests must name this
// host, so that a name that was pointed here (DNS rebinding) is refused.
//
// What is shown, and what a pause does, is handed in. The handlers may be called from
// any number of goroutines. They are tested as a stranger would use them, and in a
// real browser.
package page

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

//go:embed static
var static embed.FS

// The words of View.State: they choose a colour.
const (
	Working = "working"
	Waiting = "waiting"
	Resting = "resting"
	Stopped = "stopped"
)

// View is what is shown, in words.
type View struct {
	Name     string `json:"name"`
	Node     string `json:"node"`
	Version  string `json:"version"`
	Hub      string `json:"hub"`
	Running  bool   `json:"running"`
	Paused   bool   `json:"paused"`
	Draining bool   `json:"draining"`
	State    string `json:"state"`
	// Headline is the state in a line, Detail why.
	Headline string   `json:"headline"`
	Detail   string   `json:"detail"`
	Jobs     []Job    `json:"jobs"`
	Rules    []Rule   `json:"rules"`
	Earnings Earnings `json:"earnings"`
	Devices  []Device `json:"devices"`
	Yield    string   `json:"yield"`
	Ended    []Ended  `json:"ended"`
	Blocked  []string `json:"blocked"`
	Problems []string `json:"problems"`
}

// Job is one that runs.
type Job struct {
	ID    string `json:"id"`
	Title string `json:"title"`
	For   string `json:"for"`
	Text  string `json:"text"`
	Since string `json:"since"`
}

// Rule is one of the owner's rules and what was seen.
type Rule struct {
	Name    string `json:"name"`
	Seen    string `json:"seen"`
	Effect  string `json:"effect"`
	Unknown string `json:"unknown"`
	Forbids bool   `json:"forbids"`
}

// Earnings is what the machine brought.
type Earnings struct {
	Known bool   `json:"known"`
	Today string `json:"today"`
	Week  string `json:"week"`
	Total string `json:"total"`
	Note  string `json:"note"`
}

// Device is a GPU.
type Device struct {
	Name        string `json:"name"`
	ID          string `json:"id"`
	Temperature string `json:"temperature"`
	Use         string `json:"use"`
	Power       string `json:"power"`
	Memory      string `json:"memory"`
	Offered     string `json:"offered"`
	Foreign     string `json:"foreign"`
	Throttled   string `json:"throttled"`
}

// Ended is a job that is over.
type Ended struct {
	When  string `json:"when"`
	Title string `json:"title"`
	ID    string `json:"id"`
	For   string `json:"for"`
	Ran   string `json:"ran"`
	End   string `json:"end"`
}

// World is what the page shows and does.
type World struct {
	// View says how the machine fares now.
	View func(ctx context.Context) (View, error)
	// Pause takes jobs off the machine, for so long or, if that is 0, until Resume.
	Pause  func(ctx context.Context, lasting time.Duration) error
	Resume func(ctx context.Context) error
	Now    func() time.Time
}

// Page is one page on one port.
type Page struct {
	world World
	hosts []string

	mu sync.Mutex // guards what follows
	// word opens the page once, "" when it is spent; key is what it was spent for.
	word, key string
}

const (
	maxBody = 1 << 10
	// bound is how long the agent may take to answer.
	bound = 15 * time.Second
	// longest bounds a pause that the page asks for.
	longest = 7 * 24 * time.Hour
	// morning is the hour at which a pause "until tomorrow" ends.
	morning = 6
)

// New makes a page that is reached by a listener's address, which must be of loopback.
func New(w World, at net.Addr) (*Page, error) {
	tcp, ok := at.(*net.TCPAddr)
	if !ok || !tcp.IP.IsLoopback() {
		return nil, fmt.Errorf("serve the page: %s is no address of loopback", at)
	}
	port := strconv.Itoa(tcp.Port)
	return &Page{
		world: w, word: rand.Text(), key: rand.Text() + rand.Text(),
		hosts: []string{net.JoinHostPort(tcp.IP.String(), port), "localhost:" + port},
	}, nil
}

// Link opens the page, once.
func (p *Page) Link() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return "http://" + p.hosts[0] + "/#" + p.word
}

// Serve answers until ctx is done.
func (p *Page) Serve(ctx context.Context, l net.Listener) error {
	s := &http.Server{
		Handler: p, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: bound + 10*time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10, BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { s.Close() })
	defer stop()
	if err := s.Serve(l); ctx.Err() == nil {
		return fmt.Errorf("serve the page: %w", err)
	}
	return nil
}

// refusal is an answer other than the one that was asked for.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; require-trusted-types-for 'script'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	out, err := p.answer(w, r)
	if err != nil {
		status := http.StatusBadGateway
		if no, ok := errors.AsType[*refusal](err); ok {
			status = no.status
		}
		h.Set("Content-Type", "application/json")
		w.WriteHeader(status)
		out = map[string]string{"error": err.Error()}
	} else if out == nil {
		return
	}
	h.Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out)
}

// answer returns what to send as JSON; nil: it was sent already.
func (p *Page) answer(w http.ResponseWriter, r *http.Request) (any, error) {
	if !p.named(r.Host) {
		return nil, &refusal{http.StatusMisdirectedRequest, "this page is reached as " + p.hosts[0] + " alone"}
	}
	path, asks := strings.CutPrefix(r.URL.Path, "/api/")
	if !asks {
		return nil, p.file(w, r)
	}
	if err := p.ours(r); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return nil, &refusal{http.StatusRequestEntityTooLarge, "the request is too large"}
	}
	if path == "open" && r.Method == http.MethodPost {
		return p.open(body)
	}
	if !p.known(r) {
		return nil, &refusal{http.StatusUnauthorized, "this page was not opened with the link that `offpeak agent status --web` prints: run it again"}
	}
	ctx, cancel := context.WithTimeout(r.Context(), bound)
	defer cancel()
	switch r.Method + " " + path {
	case "GET status":
	case "POST pause":
		lasting, err := p.lasting(body)
		if err != nil {
			return nil, err
		}
		if err := p.world.Pause(ctx, lasting); err != nil {
			return nil, err
		}
	case "POST resume":
		if err := p.world.Resume(ctx); err != nil {
			return nil, err
		}
	default:
		return nil, &refusal{http.StatusNotFound, "there is nothing here"}
	}
	return p.world.View(ctx)
}

func (p *Page) named(host string) bool {
	for _, h := range p.hosts {
		if host == h {
			return true
		}
	}
	return false
}

// ours says that a request doesn't come from another site's page.
func (p *Page) ours(r *http.Request) error {
	if from := r.Header.Get("Origin"); from != "" && !p.named(strings.TrimPrefix(from, "http://")) {
		return &refusal{http.StatusForbidden, "another site's page asks"}
	}
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" {
		return &refusal{http.StatusForbidden, "another site's page asks"}
	}
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); r.Method == http.MethodPost && kind != "application/json" {
		return &refusal{http.StatusUnsupportedMediaType, "the body is to be application/json"}
	}
	return nil
}

// open takes the word of the link and gives the key of the session, once.
func (p *Page) open(body []byte) (any, error) {
	var in struct {
		Word string `json:"word"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, &refusal{http.StatusBadRequest, "the body is not understood"}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.word == "" || subtle.ConstantTimeCompare([]byte(in.Word), []byte(p.word)) != 1 {
		return nil, &refusal{http.StatusUnauthorized, "this link was used already, or is another page's: run `offpeak agent status --web` again"}
	}
	p.word = ""
	return map[string]string{"key": p.key}, nil
}

func (p *Page) known(r *http.Request) bool {
	key, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return ok && subtle.ConstantTimeCompare([]byte(key), []byte(p.key)) == 1
}

// lasting reads how long a pause is to be.
func (p *Page) lasting(body []byte) (time.Duration, error) {
	var in struct {
		For   string `json:"for"`
		Until string `json:"until"`
	}
	if len(body) > 0 && json.Unmarshal(body, &in) != nil || in.Until != "" && in.Until != "tomorrow" {
		return 0, &refusal{http.StatusBadRequest, "the body is not understood"}
	}
	switch {
	case in.Until != "":
		return Tomorrow(p.world.Now()), nil
	case in.For == "":
		return 0, nil
	}
	d, err := time.ParseDuration(in.For)
	if err != nil || d <= 0 || d > longest {
		return 0, &refusal{http.StatusBadRequest, "a pause is longer than nothing and no longer than a week"}
	}
	return d, nil
}

// Tomorrow is how long it is until tomorrow's morning, where now is.
func Tomorrow(now time.Time) time.Duration {
	return time.Date(now.Year(), now.Month(), now.Day()+1, morning, 0, 0, 0, now.Location()).Sub(now)
}

// file sends one of the page's own files, which hold nothing of the machine.
func (p *Page) file(w http.ResponseWriter, r *http.Request) error {
	kinds := map[string]string{"index.html": "text/html; charset=utf-8", "page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"}
	name := strings.TrimPrefix(r.URL.Path, "/")
	if name == "" {
		name = "index.html"
	}
	kind := kinds[name]
	if kind == "" {
		return &refusal{http.StatusNotFound, "there is nothing here"}
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return &refusal{http.StatusMethodNotAllowed, "a file is read"}
	}
	data, err := static.ReadFile("static/" + name)
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	w.Header().Set("Content-Type", kind)
	_, _ = w.Write(data)
	return nil
}
