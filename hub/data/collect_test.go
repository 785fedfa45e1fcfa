package data_test

import (
	"context"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"offpeak"
	"offpeak/store"
)

// racing is a store that lets a test do something between the janitor's steps.
type racing struct {
	store.Store
	listed, dropping atomic.Pointer[func(store.BlobRef)]
}

func (r *racing) Unused(ctx context.Context, limit int) ([]store.BlobRef, error) {
	refs, err := r.Store.Unused(ctx, limit)
	if f := r.listed.Load(); f != nil {
		for _, ref := range refs {
			(*f)(ref)
		}
	}
	return refs, err
}

func (r *racing) DropBlob(ctx context.Context, ref store.BlobRef) (dropped, last bool, err error) {
	dropped, last, err = r.Store.DropBlob(ctx, ref)
	if f := r.dropping.Load(); f != nil {
		(*f)(ref) // the books are closed, the bytes are still there
	}
	return dropped, last, err
}

// A blob that is sent again, or of which a client was just told that it need not
// send it, is there afterwards, whatever the janitor was about to do.
func TestCollectingRacesWithUploads(t *testing.T) {
	data := []byte("collected and sent again")
	for name, race := range map[string]func(t *testing.T, r *room, f *racing, hash offpeak.Hash, done chan<- error){
		"sent between list and drop": func(_ *testing.T, r *room, f *racing, hash offpeak.Hash, done chan<- error) {
			f.listed.Store(new(func(ref store.BlobRef) {
				if ref.Hash == hash {
					_, err := r.put(data)
					done <- err
				}
			}))
		},
		"sent while its bytes go": func(_ *testing.T, r *room, f *racing, hash offpeak.Hash, done chan<- error) {
			f.dropping.Store(new(func(ref store.BlobRef) {
				if ref.Hash == hash {
					go func() { // waits for the blob's lock
						_, err := r.put(data)
						done <- err
					}()
				}
			}))
		},
		"asked about between list and drop": func(t *testing.T, r *room, f *racing, hash offpeak.Hash, done chan<- error) {
			f.listed.Store(new(func(ref store.BlobRef) {
				if ref.Hash == hash {
					missing, err := r.store.MissingBlobs(t.Context(), account, []offpeak.Hash{hash})
					if len(missing) != 0 {
						t.Errorf("it is missing before it was dropped: %v", missing)
					}
					done <- err
				}
			}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var push atomic.Int64
				f := &racing{}
				r := newRoom(t, func(s store.Store) store.Store { f.Store = s; return f },
					func() time.Time { return time.Now().Add(time.Duration(push.Load())) })
				hash, err := r.put(data)
				must(t, err)
				done := make(chan error, 1)
				race(t, r, f, hash, done)
				push.Add(int64(24*time.Hour - 2*time.Minute))
				time.Sleep(61 * time.Second)
				synctest.Wait()
				if len(done) != 0 {
					t.Fatal("the janitor looked at it within a day")
				}
				time.Sleep(2 * time.Minute)
				must(t, <-done)
				synctest.Wait()
				body, _, err := r.vault.Open(t.Context(), account, hash)
				must(t, err)
				got, err := io.ReadAll(body)
				must(t, err)
				must(t, body.Close())
				if string(got) != string(data) {
					t.Errorf("it holds %q", got)
				}
				violations, err := r.store.Check(t.Context())
				must(t, err)
				if len(violations) != 0 {
					t.Errorf("broken: %v", violations)
				}
				r.stop()
			})
		})
	}
}
