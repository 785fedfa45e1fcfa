package hub

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"offpeak"
	"offpeak/ledger"
	"offpeak/store"
)

func queuedJob(i int, asks *offpeak.Requirements) store.Queued {
	return store.Queued{
		Job: offpeak.JobID(fmt.Sprintf("job_%026d", i)), Account: "acct_1", Driver: "process",
		Submitted: time.UnixMicro(int64(i)), Requirements: asks,
	}
}

// The queue yields what a sorted list would, whatever is added, paused,
// parked and removed in between.
func TestQueueIsASortedList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := newQueue(nil)
		model := map[offpeak.JobID]store.Queued{}
		asks := []*offpeak.Requirements{{CPU: 1}, {CPU: 2}, {CPU: 3}}
		now := time.UnixMicro(1_000_000)
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				in := queuedJob(rapid.IntRange(0, 30).Draw(t, "job"), rapid.SampledFrom(asks).Draw(t, "asks"))
				in.Priority = rapid.IntRange(-1, 1).Draw(t, "priority")
				in.Attempt = offpeak.Attempt(rapid.IntRange(0, 3).Draw(t, "attempt"))
				if rapid.Bool().Draw(t, "paused") {
					in.NotBefore = now.Add(time.Duration(rapid.IntRange(1, 50).Draw(t, "pause")) * time.Millisecond)
				}
				q.add(in, asksText(in.Requirements), now)
				if old, there := model[in.Job]; !there || in.Attempt > old.Attempt {
					model[in.Job] = in
				}
			},
			"remove": func(t *rapid.T) {
				id := queuedJob(rapid.IntRange(0, 30).Draw(t, "job"), asks[0]).Job
				q.remove(id)
				delete(model, id)
			},
			"time passes": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 40).Draw(t, "ms")) * time.Millisecond)
				q.wake(now.UnixMicro())
			},
			"park": func(t *rapid.T) {
				if it := q.first(); it != nil {
					q.park(it.class, rapid.SampledFrom([]error{nil, offpeak.ErrQuota, offpeak.ErrFunds, &ledger.FundsError{}}).Draw(t, "why"))
				}
			},
			"unpark": func(t *rapid.T) { q.unpark(func(*class) bool { return true }) },
			"": func(t *rapid.T) {
				if len(q.items) != len(model) {
					t.Fatalf("%d items, want %d", len(q.items), len(model))
				}
				parked := map[int64]bool{}
				for c := range q.parked {
					parked[c.asks.CPU] = true
				}
				var want []store.Queued
				for _, m := range model {
					if !m.NotBefore.Add(time.Microsecond).After(now) && !parked[m.Requirements.CPU] {
						want = append(want, m)
					}
				}
				slices.SortFunc(want, func(a, b store.Queued) int {
					if a.Priority != b.Priority {
						return b.Priority - a.Priority
					}
					return a.Submitted.Compare(b.Submitted)
				})
				first := q.first()
				switch {
				case first == nil && len(want) > 0:
					t.Fatalf("nothing is first, want %s", want[0].Job)
				case first != nil && (len(want) == 0 || first.job != want[0].Job):
					t.Fatalf("%s is first, want %v", first.job, want)
				}
			},
		})
	})
}

func TestQueuedJobIsSmall(t *testing.T) {
	const jobs = 100_000
	asks := &offpeak.Requirements{CPU: 1000, Memory: offpeak.GiB}
	text := asksText(asks)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	q := newQueue(nil)
	for i := range jobs {
		q.add(queuedJob(i, asks), text, time.UnixMicro(0))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / jobs
	t.Logf("%d bytes a queued job", each)
	if each > 700 {
		t.Errorf("a queued job takes %d bytes, want at most 700", each)
	}
	runtime.KeepAlive(q)
}
