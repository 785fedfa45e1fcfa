// Package inflight notes, in a file that survives kill -9, which of a store's
// verbs have begun and which have ended, so that a test that kills a hub can say
// what it was inside of. It is off unless a hub is started with --trace-verbs.
//
// The file holds two big-endian uint64 for each verb in the order of Verbs: how
// often it began and how often it ended. They are written with plain writes: what
// a process wrote stays in the file when it is killed.
package inflight

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"sync"

	"offpeak"
	"offpeak/store"
)

// Verb is a kind of change that a hub can be killed inside of.
type Verb int

// The verbs.
const (
	Submit Verb = iota
	Claim
	Beat
	// Report is a report that a lease came further; Settle is one that ends it.
	Report
	Settle
	Cancel
	verbs
)

// Verbs names the verbs, in the order of the file.
func Verbs() []string {
	return []string{"submit", "claim", "heartbeat", "report", "settlement", "cancel"}
}

// Kept is a store that counts its commits: watched, it still shows them.
type Kept interface {
	store.Store
	store.Counted
}

// Store is a store whose verbs are noted.
type Store struct {
	Kept

	mu     sync.Mutex // guards counts and the file
	file   *os.File
	counts [verbs][2]uint64
}

// Watch notes the verbs of s in a new file at path.
func Watch(s Kept, path string) (*Store, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("trace verbs: %w", err)
	}
	if err := f.Truncate(int64(verbs) * 16); err != nil {
		f.Close()
		return nil, fmt.Errorf("trace verbs: %w", err)
	}
	return &Store{Kept: s, file: f}, nil
}

// Read returns, for each verb by name, how many were begun and not ended.
func Read(path string) (map[string]int, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read traced verbs: %w", err)
	}
	out := map[string]int{}
	for i, name := range Verbs() {
		if len(data) >= 16*(i+1) {
			out[name] = int(binary.BigEndian.Uint64(data[16*i:]) - binary.BigEndian.Uint64(data[16*i+8:]))
		}
	}
	return out, nil
}

func (s *Store) note(v Verb, which int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[v][which]++
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], s.counts[v][which])
	// A trace that can't be written is missed by the test that reads it.
	_, _ = s.file.WriteAt(b[:], int64(v)*16+int64(which)*8)
}

func (s *Store) in(v Verb) (done func()) {
	s.note(v, 0)
	return func() { s.note(v, 1) }
}

// Submit implements store.Jobs.
func (s *Store) Submit(ctx context.Context, op store.Op, job store.NewJob) (offpeak.Job, error) {
	defer s.in(Submit)()
	return s.Kept.Submit(ctx, op, job)
}

// Cancel implements store.Jobs.
func (s *Store) Cancel(ctx context.Context, op store.Op, account offpeak.AccountID, job offpeak.JobID, detail string) (store.Change, error) {
	defer s.in(Cancel)()
	return s.Kept.Cancel(ctx, op, account, job, detail)
}

// Claim implements store.Leases.
func (s *Store) Claim(ctx context.Context, claims []store.Claim) ([]store.Claimed, error) {
	defer s.in(Claim)()
	return s.Kept.Claim(ctx, claims)
}

// Beat implements store.Leases.
func (s *Store) Beat(ctx context.Context, beats []store.Beat) ([]store.BeatResult, error) {
	defer s.in(Beat)()
	return s.Kept.Beat(ctx, beats)
}

// Report implements store.Leases.
func (s *Store) Report(ctx context.Context, r store.Report) (store.Change, error) {
	v := Report
	if r.Kind == store.ReportEnded {
		v = Settle
	}
	defer s.in(v)()
	if r.Then != nil {
		defer s.in(Claim)()
	}
	return s.Kept.Report(ctx, r)
}

// Unwatch closes the file; the store stays open.
func (s *Store) Unwatch() { _ = s.file.Close() }
