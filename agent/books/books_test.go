package books

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"offpeak"
	"offpeak/agent/state"
	"offpeak/wire"
)

func open(t *testing.T, data string, boot func() time.Duration, ask func(context.Context, time.Time) (wire.Earnings, error)) *Books {
	f, err := state.Open(data, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	return Open(Config{
		Folder: f, Account: "acct_me", Boot: boot, Ask: ask, Log: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return time.Date(2026, 7, 1, 0, 30, 0, 0, berlin) },
	})
}

// The last jobs are kept over restarts, the newest first, and a damaged list is a new
// one.
func TestEndedIsKept(t *testing.T) {
	data := t.TempDir()
	b := open(t, data, nil, nil)
	for i := range Kept + 5 {
		b.Add(Ended{Job: offpeak.JobID(fmt.Sprint("job_", i)), Account: "acct_me", Reason: offpeak.EndCompleted})
	}
	b.Add(Ended{Job: "job_last", Account: "acct_them", Reason: offpeak.EndOwnerReturned})
	list := open(t, data, nil, nil).ended
	if len(list) != Kept || list[0].Job != "job_last" || list[0].Class != ClassOther || list[1].Class != ClassSelf || list[0].At.IsZero() {
		t.Errorf("kept %d: %+v", len(list), list[:2])
	}
	f := state.At(data)
	if err := os.WriteFile(f.At("ended.json"), []byte("[{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b := open(t, data, nil, nil); len(b.ended) != 0 {
		t.Errorf("of a torn file: %+v", b.ended)
	}
}

// The hub is asked while somebody looks and no oftener than a minute; when it is away,
// what it said last stands with its age.
func TestEarnings(t *testing.T) {
	var boot atomic.Int64
	answers := make(chan error)
	b := open(t, t.TempDir(), func() time.Duration { return time.Duration(boot.Load()) }, func(_ context.Context, today time.Time) (wire.Earnings, error) {
		if got := today.Format(time.RFC3339); got != "2026-07-01T00:00:00+02:00" {
			t.Errorf("the owner's day began at %s", got)
		}
		return wire.Earnings{Today: 5, Total: 9}, <-answers
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- b.Run(ctx) }()
	defer func() { cancel(); <-done }()
	asked := func(want bool) {
		t.Helper()
		b.Show()
		select {
		case answers <- nil:
			if !want {
				t.Error("the hub was asked")
			}
		case <-time.After(50 * time.Millisecond):
			if want {
				t.Error("the hub was not asked")
			}
		}
	}
	known := func(ok func(Earnings) bool) {
		t.Helper()
		for range 200 {
			if ok(b.Show().Earnings) {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
		t.Errorf("known is %+v", b.Show().Earnings)
	}
	if e := b.Show().Earnings; e.Earnings != nil {
		t.Errorf("before the hub said anything: %+v", e)
	}
	asked(true)
	known(func(e Earnings) bool { return e.Earnings != nil && e.Total == 9 && e.Problem == "" })
	boot.Store(int64(fresh - time.Second))
	asked(false)
	b.Add(Ended{Job: "job_mine", Account: "acct_me"})
	asked(false)
	b.Add(Ended{Job: "job_theirs", Account: "acct_them"})
	asked(true)
	boot.Store(int64(2*fresh + time.Second))
	b.Show()
	answers <- errors.New("no answer")
	known(func(e Earnings) bool { return e.Earnings != nil && e.Total == 9 && e.Problem == "no answer" })
}
