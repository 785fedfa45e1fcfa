package data_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"offpeak"
	"offpeak/store"
)

// dying is a store that can be gone at the moments at which books are written,
// and lets a test see when they are asked.
type dying struct {
	store.Store
	gone atomic.Bool
	// booking is called before a blob is booked, asked when somebody has looked
	// whether any account has it.
	booking, asked atomic.Pointer[func()]
}

func (d *dying) AddBlob(ctx context.Context, account offpeak.AccountID, hash offpeak.Hash, size offpeak.Bytes) error {
	if d.gone.Load() {
		return offpeak.ErrUnavailable
	}
	if f := d.booking.Load(); f != nil {
		(*f)()
	}
	return d.Store.AddBlob(ctx, account, hash, size)
}

func (d *dying) DropBlob(ctx context.Context, ref store.BlobRef) (dropped, last bool, err error) {
	dropped, last, err = d.Store.DropBlob(ctx, ref)
	if d.gone.Load() {
		return false, false, offpeak.ErrUnavailable // committed, and the bytes never go
	}
	return dropped, last, err
}

func (d *dying) HasBlob(ctx context.Context, account offpeak.AccountID, hash offpeak.Hash) error {
	err := d.Store.HasBlob(ctx, account, hash)
	if f := d.asked.Load(); f != nil && account == "" {
		(*f)()
	}
	return err
}

// A hub that dies between bytes and books, in either order, leaves bytes that
// nobody has: the next start removes them, and nothing else.
func TestBytesWithoutBooksAreSweptAtTheStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &dying{}
		r := newRoom(t, func(s store.Store) store.Store { d.Store = s; return d }, time.Now)
		time.Sleep(12 * time.Hour) // half way between two sweeps
		kept, err := r.put([]byte("stored and booked"))
		must(t, err)
		unused, err := r.put([]byte("stored, booked, and used by nobody"))
		must(t, err)
		// Killed while an unused blob is collected: its books are closed, its bytes there.
		time.Sleep(24*time.Hour - time.Minute)
		must(t, r.store.HasBlob(t.Context(), account, unused))
		_, err = r.store.MissingBlobs(t.Context(), account, []offpeak.Hash{kept}) // protects it
		must(t, err)
		d.gone.Store(true)
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if err := r.store.HasBlob(t.Context(), account, unused); !errors.Is(err, offpeak.ErrNotFound) {
			t.Fatalf("the unused blob was not collected: %v", err)
		}
		// Killed between the bytes of an upload and its books.
		lost, err := r.put([]byte("stored and never booked"))
		if !errors.Is(err, offpeak.ErrUnavailable) {
			t.Fatalf("put without books = %v", err)
		}
		if !r.has(unused) || !r.has(lost) {
			t.Fatal("the bytes are gone before the hub is: the test tests nothing")
		}
		r.stop()
		d.gone.Store(false)
		r.start()
		synctest.Wait()
		for what, hash := range map[string]offpeak.Hash{"whose collection broke off": unused, "whose upload broke off": lost} {
			if r.has(hash) {
				t.Errorf("the bytes of the blob %s are still there", what)
			}
		}
		if !r.has(kept) {
			t.Error("the bytes of a booked blob are gone")
		}
		again, err := r.put([]byte("stored and never booked"))
		must(t, err)
		if !r.has(again) {
			t.Error("sent again it is not there")
		}
		r.stop()
	})
}

// A sweep that comes upon an upload between its bytes and its books waits for
// it, and leaves it alone.
func TestSweepSparesAnUploadInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &dying{}
		r := newRoom(t, func(s store.Store) store.Store { d.Store = s; return d }, time.Now)
		synctest.Wait() // the sweep of the start is over
		seen := make(chan struct{})
		d.booking.Store(new(func() {
			select {
			case <-seen:
			case <-time.After(48 * time.Hour):
				t.Error("no sweep came upon it: the test tests nothing")
			}
		}))
		d.asked.Store(new(sync.OnceFunc(func() { close(seen) })))
		hash, err := r.put([]byte("on its way for a day")) // until the next sweep asks for it
		must(t, err)
		synctest.Wait()
		if !r.has(hash) {
			t.Error("the sweep took the bytes of an upload that was booked a moment later")
		}
		r.stop()
	})
}
