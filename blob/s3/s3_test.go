package s3_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"go.uber.org/goleak"

	"offpeak"
	"offpeak/blob"
	"offpeak/blob/s3"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "no-one-may-see-this"

// service is a fake S3 with one bucket, "grid", behind a handler.
func service(t *testing.T, before func(w http.ResponseWriter, r *http.Request) (handled bool)) string {
	t.Helper()
	fake := s3mem.New()
	must(t, fake.CreateBucket("grid"))
	inner := gofakes3.New(fake).Server()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if before == nil || !before(w, r) {
			inner.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func open(t *testing.T, cfg s3.Config) *s3.Bucket {
	t.Helper()
	cfg.Plain = true
	if cfg.Bucket == "" {
		cfg.Bucket = "grid"
	}
	b, err := s3.Open(cfg, s3.Env{Credentials: credentials.NewStaticV4("key", secret, ""), Now: time.Now, Timeout: time.Second})
	must(t, err)
	t.Cleanup(func() { must(t, b.Close()) })
	return b
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestObjects(t *testing.T) {
	at := service(t, nil)
	b, whole := open(t, s3.Config{Endpoint: at, Prefix: "a grid"}), open(t, s3.Config{Endpoint: at, Region: "here"})
	ctx := t.Context()
	must(t, b.Write(ctx, "x/one", []byte("1")))
	must(t, b.Create(ctx, "x/two", []byte("2")))
	if err := b.Create(ctx, "x/two", []byte("3")); !errors.Is(err, offpeak.ErrConflict) {
		t.Errorf("created twice: %v", err)
	}
	must(t, whole.Write(ctx, "a gridlock", []byte("none of ours")))
	if got := list(t, b, ""); got != "x/one x/two" {
		t.Errorf("lists %q", got)
	}
	if got := list(t, b, "x/"); got != "x/one x/two" {
		t.Errorf("lists %q below x/", got)
	}
	if got := list(t, b, "y/"); got != "" {
		t.Errorf("lists %q below y/", got)
	}
	r, size, err := whole.Read(ctx, "a grid/x/two")
	must(t, err)
	text, err := io.ReadAll(r)
	must(t, err)
	must(t, r.Close())
	if string(text) != "2" || size != 1 {
		t.Errorf("it holds %q of %d bytes", text, size)
	}
	for range 2 {
		must(t, b.Remove(ctx, "x/two"))
	}
	if _, _, err := b.Read(ctx, "x/two"); !errors.Is(err, offpeak.ErrNotFound) {
		t.Errorf("read after it was removed: %v", err)
	}
}

func list(t *testing.T, b *s3.Bucket, prefix string) string {
	t.Helper()
	var keys []string
	for o, err := range b.List(t.Context(), prefix) {
		must(t, err)
		if d := time.Since(o.Written); d < -time.Minute || d > time.Minute {
			t.Errorf("%s was written %v ago", o.Key, d)
		}
		keys = append(keys, o.Key)
	}
	return strings.Join(keys, " ")
}

func TestListGoesOnOverPages(t *testing.T) {
	calls := 0
	b := open(t, s3.Config{Endpoint: service(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet {
			calls++
		}
		return false
	}), Region: "here", Prefix: "p"})
	const n = 2000 // a page that is full is not the last
	for i := range n {
		must(t, b.Write(t.Context(), fmt.Sprintf("x/%04d", i), nil))
	}
	keys := strings.Fields(list(t, b, ""))
	if len(keys) != n || keys[0] != "x/0000" || keys[n-1] != "x/1999" {
		t.Errorf("lists %d of %d objects", len(keys), n)
	}
	if calls != 3 {
		t.Errorf("in %d calls, want 3", calls)
	}
}

// Each failure is told apart by what a caller should do, names the place, and
// shows no secret.
func TestErrors(t *testing.T) {
	answer := func(status int, code string) func(w http.ResponseWriter, r *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", "application/xml")
			w.WriteHeader(status)
			if code != "" {
				fmt.Fprintf(w, "<Error><Code>%s</Code><Message>as you see</Message></Error>", code)
			}
			return true
		}
	}
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, gone.Close())
	for name, c := range map[string]struct {
		before   func(w http.ResponseWriter, r *http.Request) bool
		endpoint string
		bucket   string
		want     error
	}{
		"no such bucket":    {bucket: "nowhere", want: offpeak.ErrStorage},
		"forbidden":         {before: answer(403, "AccessDenied"), want: offpeak.ErrStorage},
		"wrong key":         {before: answer(403, "InvalidAccessKeyId"), want: offpeak.ErrStorage},
		"wrong clock":       {before: answer(403, "RequestTimeTooSkewed"), want: offpeak.ErrStorage},
		"full":              {before: answer(507, "XMinioStorageFull"), want: offpeak.ErrStorage},
		"throttled":         {before: answer(503, "SlowDown"), want: offpeak.ErrUnavailable},
		"throttled plainly": {before: answer(429, ""), want: offpeak.ErrUnavailable},
		"broken":            {before: answer(500, "InternalError"), want: offpeak.ErrUnavailable},
		"bad gateway":       {before: answer(502, ""), want: offpeak.ErrUnavailable},
		"nobody there":      {endpoint: gone.Addr().String(), want: offpeak.ErrUnavailable},
		"cut off": {before: func(http.ResponseWriter, *http.Request) bool {
			panic(http.ErrAbortHandler)
		}, want: offpeak.ErrUnavailable},
		"silent": {before: func(_ http.ResponseWriter, r *http.Request) bool {
			_, _ = io.Copy(io.Discard, r.Body) // so that the server sees the client go
			<-r.Context().Done()
			return true
		}, want: offpeak.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.endpoint == "" {
				c.endpoint = service(t, c.before)
			}
			b := open(t, s3.Config{Endpoint: c.endpoint, Region: "here", Bucket: c.bucket, Prefix: "p"})
			for verb, call := range calls(b) {
				err := call(t.Context())
				if !errors.Is(err, c.want) || errors.Is(err, context.Canceled) {
					t.Errorf("%s: %v, want %v", verb, err, c.want)
					continue
				}
				if text := err.Error(); !strings.HasPrefix(text, verb+" ") || !strings.Contains(text, c.endpoint) || strings.Contains(text, secret) {
					t.Errorf("%s: it says %q", verb, text)
				}
			}
			done, cancel := context.WithCancel(t.Context())
			cancel()
			for verb, call := range calls(b) {
				if err := call(done); !errors.Is(err, context.Canceled) || errors.Is(err, c.want) {
					t.Errorf("%s for a caller who has gone: %v", verb, err)
				}
			}
		})
	}
}

func calls(b *s3.Bucket) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"write": func(ctx context.Context) error { return b.Write(ctx, "k", []byte("v")) },
		"read": func(ctx context.Context) error {
			_, _, err := b.Read(ctx, "k")
			return err
		},
		"list": func(ctx context.Context) error {
			for _, err := range b.List(ctx, "k/") {
				return err
			}
			return nil
		},
		"remove": func(ctx context.Context) error { return b.Remove(ctx, "k") },
	}
}

// A body that ends early is an error of the service, not the end of the blob.
func TestBodyThatBreaksOff(t *testing.T) {
	b := open(t, s3.Config{Region: "here", Endpoint: service(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || r.URL.RawQuery != "" {
			return false
		}
		w.Header().Set("Content-Length", "1000")
		w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
		w.Header().Set("ETag", `"e"`)
		_, _ = w.Write([]byte("some"))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})})
	must(t, b.Write(t.Context(), "k", []byte("v")))
	r, _, err := b.Read(t.Context(), "k")
	must(t, err)
	defer r.Close()
	if _, err := io.ReadAll(r); !errors.Is(err, offpeak.ErrUnavailable) {
		t.Errorf("read: %v", err)
	}
}

// A service that falls silent in the middle of a body is given up.
func TestBodyThatStops(t *testing.T) {
	b := open(t, s3.Config{Region: "here", Endpoint: service(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || r.URL.RawQuery != "" {
			return false
		}
		w.Header().Set("Content-Length", "1000")
		w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
		_, _ = w.Write([]byte("some"))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return true
	})})
	r, _, err := b.Read(t.Context(), "k")
	must(t, err)
	defer r.Close()
	if _, err := io.ReadAll(r); !errors.Is(err, offpeak.ErrUnavailable) || errors.Is(err, context.Canceled) {
		t.Errorf("read: %v", err)
	}
}

// Bytes that change on their way to the service are refused there.
func TestServiceIsToldTheHash(t *testing.T) {
	said := make(chan string, 1)
	b := open(t, s3.Config{Region: "here", Endpoint: service(t, func(_ http.ResponseWriter, r *http.Request) bool {
		said <- r.Header.Get("X-Amz-Content-Sha256")
		return false
	})})
	must(t, b.Write(t.Context(), "k", []byte("v")))
	if got := offpeak.Hash(<-said); got != blob.Sum([]byte("v")) {
		t.Errorf("it was told %q", got)
	}
}

// Credentials come from where everybody keeps them; without any nothing is sent.
func TestCredentials(t *testing.T) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SECRET_KEY", "AWS_SESSION_TOKEN"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "none"))
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/nobody") // in place of the cloud's own address
	auth := make(chan string, 1)
	cfg := s3.Config{Endpoint: service(t, func(_ http.ResponseWriter, r *http.Request) bool {
		auth <- r.Header.Get("Authorization") + r.Header.Get("X-Amz-Security-Token")
		return false
	}), Plain: true, Region: "here", Bucket: "grid"}
	if _, err := s3.Open(cfg, s3.Env{Credentials: s3.DefaultCredentials(), Now: time.Now}); !errors.Is(err, offpeak.ErrStorage) || !strings.Contains(err.Error(), "AWS_ACCESS_KEY_ID") {
		t.Errorf("without credentials: %v", err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "from-env")
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	t.Setenv("AWS_SESSION_TOKEN", "for-a-while")
	b, err := s3.Open(cfg, s3.Env{Credentials: s3.DefaultCredentials(), Now: time.Now})
	must(t, err)
	defer b.Close()
	must(t, b.Write(t.Context(), "k", nil))
	if got := <-auth; !strings.Contains(got, "Credential=from-env/") || !strings.HasSuffix(got, "for-a-while") {
		t.Errorf("it was signed %q", got)
	}
}
