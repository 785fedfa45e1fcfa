package place_test

import (
	"bytes"
	"errors"
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
	"offpeak/blob/place"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, text, own string) *place.Place {
	t.Helper()
	spec, err := place.Parse(text)
	must(t, err)
	p, err := spec.Open(t.Context(), place.Env{Own: own, Now: time.Now, Credentials: credentials.NewStaticV4("key", "secret", "")})
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	if spec.Shared() != p.Shared() || spec.String() != text {
		t.Errorf("%q is shared: %v, open: %v", spec, spec.Shared(), p.Shared())
	}
	return p
}

// Two hubs see one identity where they reach the same blobs, whatever they call
// the place, and only there.
func TestIdentity(t *testing.T) {
	fake := s3mem.New()
	must(t, fake.CreateBucket("grid"))
	server := httptest.NewServer(gofakes3.New(fake).Server())
	t.Cleanup(server.Close)
	s3 := func(bucket, host string) string {
		return "s3://" + bucket + "?region=here&endpoint=http://" + host
	}
	at := server.Listener.Addr().String()
	_, port, _ := strings.Cut(at, ":")
	folder := filepath.Join(t.TempDir(), "shared")
	for _, c := range []struct{ one, same, other string }{
		{folder, "file://" + folder, folder + "2"},
		{folder + "4", folder + "4/../shared4/", "file://localhost" + folder + "3"},
		{s3("grid", at), s3("grid/", "localhost:"+port), s3("grid/prefix", at)},
		{s3("grid/a/b", at), s3("grid/a/b/", at), s3("grid/a", at)},
	} {
		one, same, other := open(t, c.one, ""), open(t, c.same, ""), open(t, c.other, "")
		if one.ID != same.ID {
			t.Errorf("%s is %s, and %s is %s", c.one, one.ID, c.same, same.ID)
		}
		if one.ID == other.ID {
			t.Errorf("%s and %s are both %s", c.one, c.other, one.ID)
		}
		data := []byte(c.one)
		h := blob.Sum(data)
		for p, want := range map[*place.Place]bool{one: true, other: true} {
			if empty, err := p.Empty(t.Context()); err != nil || empty != want {
				t.Errorf("%s is empty: %v, %v", p.ID, empty, err)
			}
		}
		_, err := one.Store.Put(t.Context(), h, bytes.NewReader(data))
		must(t, err)
		if has, err := same.Store.Has(t.Context(), h); !has || err != nil {
			t.Errorf("what is stored in %s is not in %s (%v)", c.one, c.same, err)
		}
		if empty, err := same.Empty(t.Context()); err != nil || empty {
			t.Errorf("with a blob it is empty: %v, %v", empty, err)
		}
	}
}

func TestOwnFolder(t *testing.T) {
	own := filepath.Join(t.TempDir(), "blobs")
	p := open(t, "", own)
	if p.ID != place.Own {
		t.Errorf("it is %q", p.ID)
	}
	if empty, err := p.Empty(t.Context()); err != nil || !empty {
		t.Errorf("it is empty: %v, %v", empty, err)
	}
	_, err := p.Store.Put(t.Context(), blob.Sum(nil), bytes.NewReader(nil))
	must(t, err)
	if empty, err := p.Empty(t.Context()); err != nil || empty {
		t.Errorf("with a blob it is empty: %v, %v", empty, err)
	}
	spec, err := place.Parse("file://" + own)
	must(t, err)
	if _, err := spec.Open(t.Context(), place.Env{Own: own, Now: time.Now}); !errors.Is(err, offpeak.ErrInvalid) {
		t.Errorf("its own folder as a shared one: %v", err)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{
		"blobs", "./blobs", "gs://bucket", "http://s3.example.org/bucket", "file://host/srv", "file:srv", "file:///srv?x=1",
		"s3://", "s3:///prefix", "s3://b", "s3://bucket:80/prefix", "s3://Bu_cket!", "s3://bucket/../other", "s3://bucket/a//b", "s3://bucket#frag",
		"s3://bucket?endpoint=s3.example.org", "s3://bucket?endpoint=ftp://s3.example.org", "s3://bucket?endpoint=https://s3.example.org/path",
		"s3://bucket?endpoint=https://", "s3://bucket?endpoint=", "s3://bucket?region=a&region=b", "s3://bucket?secret=x", "s3://bucket?;",
	} {
		if spec, err := place.Parse(text); !errors.Is(err, offpeak.ErrInvalid) {
			t.Errorf("%s: %+v, %v", text, spec, err)
		}
	}
	for _, text := range []string{"s3://key:hunter2@bucket", "s3://bucket?endpoint=https://key:hunter2@s3.example.org"} {
		if _, err := place.Parse(text); !errors.Is(err, offpeak.ErrInvalid) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A bucket that can't be used is noticed when it is opened.
func TestOpenRefuses(t *testing.T) {
	server := httptest.NewServer(gofakes3.New(s3mem.New()).Server())
	t.Cleanup(server.Close)
	spec, err := place.Parse("s3://nowhere?region=here&endpoint=" + server.URL)
	must(t, err)
	_, err = spec.Open(t.Context(), place.Env{Now: time.Now, Credentials: credentials.NewStaticV4("key", "secret", "")})
	if !errors.Is(err, offpeak.ErrStorage) || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("a bucket that is not there: %v", err)
	}
	// A service that was named with https is never spoken to in the open.
	spec, err = place.Parse("s3://nowhere?region=here&endpoint=https://" + server.Listener.Addr().String())
	must(t, err)
	_, err = spec.Open(t.Context(), place.Env{Now: time.Now, Credentials: credentials.NewStaticV4("key", "secret", "")})
	if !errors.Is(err, offpeak.ErrUnavailable) {
		t.Errorf("a service without TLS: %v", err)
	}
}

// The blobs of a place are one grid's, until another takes them.
func TestClaim(t *testing.T) {
	fake := s3mem.New()
	must(t, fake.CreateBucket("grid"))
	server := httptest.NewServer(gofakes3.New(fake).Server())
	t.Cleanup(server.Close)
	for _, at := range []string{filepath.Join(t.TempDir(), "shared"), "s3://grid/prefix?region=here&endpoint=" + server.URL} {
		p := open(t, at, "")
		must(t, p.Claim(t.Context(), "grid_1", false))
		must(t, p.Claim(t.Context(), "grid_1", false))
		taken := new(place.TakenError)
		if err := p.Claim(t.Context(), "grid_2", false); !errors.As(err, &taken) || *taken != (place.TakenError{Where: at, Grid: "grid_1"}) {
			t.Errorf("another grid at %s: %v", at, err)
		}
		must(t, p.Claim(t.Context(), "grid_2", true))
		if err := p.Claim(t.Context(), "grid_1", false); !errors.Is(err, offpeak.ErrConflict) {
			t.Errorf("the first grid at %s, after another took it: %v", at, err)
		}
		if empty, err := p.Empty(t.Context()); err != nil || !empty {
			t.Errorf("marked, it is empty: %v, %v", empty, err)
		}
	}
	own := open(t, "", filepath.Join(t.TempDir(), "blobs"))
	must(t, own.Claim(t.Context(), "grid_1", false))
	must(t, own.Claim(t.Context(), "grid_2", false))
}
