package data_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/prometheus/client_golang/prometheus"

	"offpeak"
	"offpeak/blob"
	"offpeak/blob/blobtest"
	"offpeak/blob/s3"
	"offpeak/hub/bell"
	"offpeak/hub/data"
	"offpeak/store"
	"offpeak/store/sqlite"
)

// pair is what two hubs share: the books and the blobs, whose clocks the test
// puts forward.
type pair struct {
	t      *testing.T
	store  *sqlite.Store
	ahead  atomic.Int64
	bucket *blobtest.Aging
}

// shared runs a test on blobs in a folder and behind an S3 API.
func shared(t *testing.T, test func(t *testing.T, p *pair)) {
	for name, open := range map[string]func(t *testing.T) blob.Bucket{
		"folder": func(t *testing.T) blob.Bucket {
			f, err := blob.OpenFolder(t.TempDir())
			must(t, err)
			t.Cleanup(func() { must(t, f.Close()) })
			return f
		},
		"s3": func(t *testing.T) blob.Bucket {
			fake := s3mem.New()
			must(t, fake.CreateBucket("grid"))
			server := httptest.NewServer(gofakes3.New(fake).Server())
			t.Cleanup(server.Close)
			b, err := s3.Open(s3.Config{Endpoint: server.Listener.Addr().String(), Plain: true, Region: "here", Bucket: "grid"},
				s3.Env{Credentials: credentials.NewStaticV4("key", "secret", ""), Now: time.Now})
			must(t, err)
			t.Cleanup(func() { must(t, b.Close()) })
			return b
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &pair{t: t, bucket: &blobtest.Aging{Bucket: open(t)}}
			var err error
			p.store, err = sqlite.Open(t.Context(), filepath.Join(t.TempDir(), data.DatabaseFile), sqlite.Options{
				Now: func() time.Time { return time.Now().Add(time.Duration(p.ahead.Load())) },
			})
			must(t, err)
			t.Cleanup(func() { must(t, p.store.Close()) })
			op := store.Op{ID: "op-1", Actor: offpeak.Actor{Account: account, Role: offpeak.RoleAdmin}}
			_, err = p.store.CreateAccount(t.Context(), op, offpeak.Account{ID: account, Name: "one"})
			must(t, err)
			test(t, p)
		})
	}
}

// age makes all that is stored old enough to be collected.
func (p *pair) age() {
	p.ahead.Add(int64(25 * time.Hour))
	p.bucket.Age(25 * time.Hour)
}

// hub is the vault of one more hub.
func (p *pair) hub(books store.Store, bucket blob.Bucket) *data.Vault {
	return data.New(data.Config{}, data.Env{
		Store: books, Blobs: blob.NewShared(bucket), Log: slog.New(slog.NewTextHandler(p.t.Output(), nil)),
		Bells: &bell.Bells{}, Stopped: make(chan struct{}), Metrics: prometheus.NewRegistry(),
	})
}

// running runs a vault's janitor until stop is called.
func running(t *testing.T, v *data.Vault) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- v.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		must(t, <-ended)
	}
}

// holds fails the test unless a hub serves the bytes and the books are in order.
func (p *pair) holds(v *data.Vault, want []byte) {
	p.t.Helper()
	r, _, err := v.Open(p.t.Context(), account, blob.Sum(want))
	must(p.t, err)
	defer r.Close()
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, want) {
		p.t.Fatalf("what was stored holds %q, %v", got, err)
	}
	violations, err := p.store.Check(p.t.Context())
	must(p.t, err)
	if len(violations) != 0 {
		p.t.Errorf("broken: %v", violations)
	}
}

// stalling is a bucket that stops before its first removals until it is let go.
type stalling struct {
	blob.Bucket
	at, goOn chan struct{}
}

func (s *stalling) Remove(ctx context.Context, key string) error {
	select {
	case s.at <- struct{}{}:
	default:
	}
	<-s.goOn
	// What was sent before the hub was told to stop arrives all the same.
	return s.Bucket.Remove(context.WithoutCancel(ctx), key)
}

// One hub has closed the books of a blob and is about to remove its bytes when
// another hub stores the blob again.
func TestTwoHubsStoringWhatTheOtherRemoves(t *testing.T) {
	shared(t, func(t *testing.T, p *pair) {
		slow := &stalling{Bucket: p.bucket, at: make(chan struct{}, 1), goOn: make(chan struct{})}
		first, second := p.hub(p.store, p.bucket), p.hub(p.store, slow)
		bytes := []byte("removed by one hub and stored by another")
		must(t, put(first, bytes))
		p.age()
		stop := running(t, second)
		<-slow.at
		if err := p.store.HasBlob(t.Context(), account, blob.Sum(bytes)); !errors.Is(err, offpeak.ErrNotFound) {
			t.Fatalf("its books are open: %v: the test tests nothing", err)
		}
		must(t, put(first, bytes))
		close(slow.goOn)
		stop()
		p.holds(first, bytes)
		p.holds(second, bytes)
	})
}

// slowBooks is a store whose bookings wait until they are let go.
type slowBooks struct {
	store.Store
	at, goOn chan struct{}
}

func (s *slowBooks) AddBlob(ctx context.Context, account offpeak.AccountID, hash offpeak.Hash, size offpeak.Bytes) error {
	s.at <- struct{}{}
	<-s.goOn
	return s.Store.AddBlob(ctx, account, hash, size)
}

// One hub has stored a blob and is about to book it when another collects what
// was there of it, and sweeps what nobody has.
func TestTwoHubsBookingWhatTheOtherCollects(t *testing.T) {
	shared(t, func(t *testing.T, p *pair) {
		slow := &slowBooks{Store: p.store, at: make(chan struct{}), goOn: make(chan struct{})}
		first, second := p.hub(slow, p.bucket), p.hub(p.store, p.bucket)
		bytes := []byte("collected by one hub and booked by another")
		must(t, put(second, bytes))
		p.age()
		stored := make(chan error, 1)
		go func() { stored <- put(first, bytes) }()
		<-slow.at
		stop := running(t, second)
		for p.copies(blob.Sum(bytes)) > 1 { // until the old one is gone
			time.Sleep(time.Millisecond)
		}
		stop()
		close(slow.goOn)
		must(t, <-stored)
		p.holds(first, bytes)
		p.holds(second, bytes)
	})
}

func put(v *data.Vault, b []byte) error {
	return v.Put(context.Background(), account, blob.Sum(b), bytes.NewReader(b))
}

// copies counts the copies of a blob.
func (p *pair) copies(h offpeak.Hash) (n int) {
	p.t.Helper()
	for _, err := range p.bucket.List(p.t.Context(), string(h[:2]+"/"+h[2:]+"/")) {
		must(p.t, err)
		n++
	}
	return n
}

// Round after round, two hubs collect and sweep what is old while both store it
// again; what either has acknowledged both can read.
func TestTwoHubsAtOnce(t *testing.T) {
	shared(t, func(t *testing.T, p *pair) {
		hubs := []*data.Vault{p.hub(p.store, p.bucket), p.hub(p.store, p.bucket)}
		var blobs [][]byte
		for i := range 4 {
			blobs = append(blobs, fmt.Appendf(nil, "blob %d", i))
		}
		for range 10 {
			p.age()
			var wg sync.WaitGroup
			var stops []func()
			for _, v := range hubs {
				stops = append(stops, running(t, v))
				for _, b := range blobs {
					wg.Go(func() {
						if err := put(v, b); err != nil {
							t.Error(err)
						}
					})
				}
			}
			wg.Wait()
			for _, stop := range stops {
				stop()
			}
			for _, v := range hubs {
				for _, b := range blobs {
					p.holds(v, b)
				}
			}
		}
	})
}

// elsewhere is a store that says where it lies.
type elsewhere struct{ *blob.Shared }

func (elsewhere) Where() string { return "s3://bucket/prefix" }

// A backup of a hub whose blobs lie elsewhere has the database, and where they lie.
func TestBackupOfBlobsElsewhere(t *testing.T) {
	shared(t, func(t *testing.T, p *pair) {
		v := data.New(data.Config{}, data.Env{
			Store: p.store, Blobs: elsewhere{blob.NewShared(p.bucket)}, Log: slog.New(slog.DiscardHandler),
			Bells: &bell.Bells{}, Stopped: make(chan struct{}), Metrics: prometheus.NewRegistry(),
		})
		must(t, put(v, []byte("stays where it is")))
		backup := filepath.Join(t.TempDir(), "b")
		must(t, v.Backup(t.Context(), backup))
		where, err := os.ReadFile(filepath.Join(backup, data.BlobPlaceFile))
		must(t, err)
		if strings.TrimSpace(string(where)) != "s3://bucket/prefix" {
			t.Errorf("it says %q", where)
		}
		if _, err := os.Stat(filepath.Join(backup, data.BlobFolder)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("it has a folder for blobs: %v", err)
		}
		s, err := sqlite.Open(t.Context(), filepath.Join(backup, data.DatabaseFile), sqlite.Options{Now: time.Now})
		must(t, err)
		defer s.Close()
		must(t, s.HasBlob(t.Context(), account, blob.Sum([]byte("stays where it is"))))
	})
}
