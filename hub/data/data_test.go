package data_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"offpeak"
	"offpeak/blob"
	"offpeak/hub/bell"
	"offpeak/hub/data"
	"offpeak/store"
	"offpeak/store/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// account is whose bytes the tests store.
const account offpeak.AccountID = "acct_1"

// room is a vault on a real store and folder.
type room struct {
	t      *testing.T
	folder string
	vault  *data.Vault
	store  *sqlite.Store
	blobs  *blob.Local
	ops    atomic.Int64
	// stop ends Run and closes store and blobs.
	stop func()
	// wrap and now put faults between the vault and its store, and its clock.
	wrap func(store.Store) store.Store
	now  func() time.Time
}

// bubble runs a test on a clock that stands still while anybody works.
func bubble(t *testing.T, test func(t *testing.T, r *room)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(t, func(s store.Store) store.Store { return s }, time.Now)
		test(t, r)
		r.stop()
	})
}

func newRoom(t *testing.T, wrap func(store.Store) store.Store, now func() time.Time) *room {
	t.Helper()
	r := &room{t: t, folder: t.TempDir(), wrap: wrap, now: now}
	r.start()
	_, err := r.store.CreateAccount(t.Context(), r.op(), offpeak.Account{ID: account, Name: "one"})
	must(t, err)
	t.Cleanup(func() { r.stop() })
	return r
}

func (r *room) start() {
	r.t.Helper()
	s, err := sqlite.Open(context.Background(), filepath.Join(r.folder, data.DatabaseFile), sqlite.Options{Now: r.now})
	must(r.t, err)
	blobs, err := blob.OpenLocal(filepath.Join(r.folder, data.BlobFolder))
	must(r.t, err)
	r.store, r.blobs = s, blobs
	stopped := make(chan struct{})
	v := data.New(data.Config{Folder: r.folder}, data.Env{
		Store: r.wrap(s), Blobs: blobs, Log: slog.New(slog.DiscardHandler),
		Bells: &bell.Bells{}, Stopped: stopped, Metrics: prometheus.NewRegistry(),
	})
	r.vault = v
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- v.Run(ctx) }()
	var done bool
	r.stop = func() {
		if done {
			return
		}
		done = true
		cancel()
		must(r.t, <-ended)
		close(stopped)
		must(r.t, s.Close())
		must(r.t, blobs.Close())
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (r *room) op() store.Op {
	return store.Op{ID: offpeak.OpID(fmt.Sprintf("op-%d", r.ops.Add(1))), Actor: offpeak.Actor{Account: account, Role: offpeak.RoleAdmin}}
}

// put stores bytes as a blob of the account.
func (r *room) put(data []byte) (offpeak.Hash, error) {
	hash := blob.Sum(data)
	return hash, r.vault.Put(r.t.Context(), account, hash, bytes.NewReader(data))
}

// has says whether the bytes of a blob are there, whatever the books say.
func (r *room) has(hash offpeak.Hash) bool {
	r.t.Helper()
	has, err := r.blobs.Has(r.t.Context(), hash)
	must(r.t, err)
	return has
}

func TestBlobsAreCollectedOnlyWhenUnused(t *testing.T) {
	bubble(t, func(t *testing.T, r *room) {
		ctx := t.Context()
		put := func(data string) offpeak.Hash {
			h := blob.Sum([]byte(data))
			must(t, r.vault.Put(ctx, account, h, strings.NewReader(data)))
			return h
		}
		chunk := put("hello")
		manifest, err := blob.Manifest{Version: 1, Entries: []blob.Entry{{Path: "a", Kind: blob.KindFile, Size: 5, Chunks: []offpeak.Hash{chunk}}}}.Encode()
		must(t, err)
		tree := put(string(manifest))
		must(t, r.vault.CommitTree(ctx, account, tree))
		if err := r.vault.CommitTree(ctx, account, blob.Sum([]byte("missing"))); !errors.Is(err, offpeak.ErrBlobMissing) {
			t.Fatalf("a tree that is not there: %v", err)
		}
		if err := r.vault.Put(ctx, account, chunk, strings.NewReader("other")); !errors.Is(err, offpeak.ErrHashMismatch) {
			t.Fatalf("other bytes: %v", err)
		}
		if _, _, err := r.vault.Open(ctx, "acct_other", chunk); !errors.Is(err, offpeak.ErrNotFound) {
			t.Fatalf("another account's blob: %v", err)
		}
		loose := put("loose")
		spec := offpeak.Spec{Task: offpeak.Task{Driver: "process", Command: []string{"true"}, Input: tree}}
		_, err = r.store.Submit(ctx, r.op(), store.NewJob{ID: "job_1", Account: account, Spec: spec.WithDefaults()})
		must(t, err)
		backup := r.folder + "-backup"
		must(t, r.vault.Backup(ctx, backup))
		if err := r.vault.Backup(ctx, backup); !errors.Is(err, offpeak.ErrInvalid) {
			t.Fatalf("a backup over another: %v", err)
		}
		time.Sleep(25 * time.Hour)
		synctest.Wait()
		if _, _, err := r.vault.Open(ctx, account, loose); !errors.Is(err, offpeak.ErrNotFound) {
			t.Fatalf("the unused blob: %v", err)
		}
		body, _, err := r.vault.Open(ctx, account, chunk)
		must(t, err)
		defer body.Close()
		if data, err := io.ReadAll(body); err != nil || string(data) != "hello" {
			t.Fatalf("the used blob holds %q (%v)", data, err)
		}
		copied, err := blob.OpenLocal(backup + "/" + data.BlobFolder)
		must(t, err)
		defer copied.Close()
		if has, err := copied.Has(ctx, loose); err != nil || !has {
			t.Fatalf("the backup lacks a blob (%v)", err)
		}
	})
}

// Bytes that could not be booked for the account are not kept: nothing would
// ever collect them.
func TestRefusedUploadKeepsNoBytes(t *testing.T) {
	bubble(t, func(t *testing.T, r *room) {
		_, err := r.store.SetQuota(t.Context(), r.op(), account, offpeak.Quota{Storage: 100})
		must(t, err)
		kept, err := r.put(bytes.Repeat([]byte("k"), 90))
		must(t, err)
		lost, err := r.put(bytes.Repeat([]byte("l"), 90))
		if !errors.Is(err, offpeak.ErrQuota) {
			t.Fatalf("over the quota Put = %v", err)
		}
		if r.has(lost) {
			t.Error("the refused blob is there")
		}
		// What another account has stays when one is refused it.
		other := offpeak.Account{ID: "acct_other", Name: "other", Quota: offpeak.Quota{Storage: 10}}
		_, err = r.store.CreateAccount(t.Context(), r.op(), other)
		must(t, err)
		if err := r.vault.Put(t.Context(), other.ID, kept, bytes.NewReader(bytes.Repeat([]byte("k"), 90))); !errors.Is(err, offpeak.ErrQuota) {
			t.Fatalf("over the other account's quota Put = %v", err)
		}
		if !r.has(kept) {
			t.Error("the blob of the first account is gone")
		}
	})
}
