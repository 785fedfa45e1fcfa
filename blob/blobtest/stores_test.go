package blobtest_test

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"go.uber.org/goleak"

	"offpeak/blob"
	"offpeak/blob/blobtest"
	"offpeak/blob/s3"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLocal(t *testing.T) {
	blobtest.Run(t, func(t *testing.T) (blob.Store, func()) {
		dir := t.TempDir()
		l, err := blob.OpenLocal(dir)
		must(t, err)
		t.Cleanup(func() { must(t, l.Close()); tidy(t, dir) })
		return l, func() {}
	})
}

func TestFolder(t *testing.T) {
	blobtest.Run(t, func(t *testing.T) (blob.Store, func()) {
		dir := t.TempDir()
		f, err := blob.OpenFolder(dir)
		must(t, err)
		t.Cleanup(func() { must(t, f.Close()); tidy(t, dir) })
		return shared(f)
	})
}

func TestS3(t *testing.T) {
	for name, prefix := range map[string]string{"bucket": "", "prefix": "a grid/blobs"} {
		t.Run(name, func(t *testing.T) {
			blobtest.Run(t, func(t *testing.T) (blob.Store, func()) {
				fake := s3mem.New()
				must(t, fake.CreateBucket("grid"))
				server := httptest.NewServer(gofakes3.New(fake).Server())
				t.Cleanup(server.Close)
				b, err := s3.Open(s3.Config{Endpoint: server.Listener.Addr().String(), Plain: true, Region: "here", Bucket: "grid", Prefix: prefix},
					s3.Env{Credentials: credentials.NewStaticV4("key", "secret", ""), Now: time.Now})
				must(t, err)
				t.Cleanup(func() { must(t, b.Close()) })
				return shared(b)
			})
		})
	}
}

func shared(b blob.Bucket) (blob.Store, func()) {
	aging := &blobtest.Aging{Bucket: b}
	return blob.NewShared(aging), func() { aging.Age(24 * time.Hour) }
}

// tidy fails the test if files on their way in were left behind.
func tidy(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(filepath.Join(dir, "tmp"))
	must(t, err)
	if len(left) != 0 {
		t.Errorf("%d temporary files left", len(left))
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
