package queue

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"offpeak"
	"offpeak/placement"
)

func text(r *offpeak.Requirements) string {
	data, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	return string(data)
}

func waits(i int, asks *offpeak.Requirements) Job {
	return Job{
		ID: offpeak.JobID(fmt.Sprintf("job_%026d", i)), Account: "acct_1", Driver: "process", Lasts: time.Hour,
		Submitted: time.UnixMicro(int64(i)), Requirements: asks, Text: text(asks),
	}
}

func empty(cfg Config) *Queue { return New(cfg, placement.NewFleet(placement.DefaultWeights()), nil) }

// next is the first class to be tried.
func (q *Queue) next() *class {
	c, _ := q.head()
	return c
}

// check fails where the books of a queue do not agree.
func (q *Queue) check(t interface{ Fatalf(string, ...any) }) {
	parked, items := 0, 0
	for key, c := range q.classes {
		k, l := c.kind, c.line
		if key.kind != k || key.line != l || q.kinds[k.key] != k || q.lines[l.lineKey] != l {
			t.Fatalf("a class of a kind or line that is not there")
		}
		items += c.refs
		seated := l.ready.has(c) || l.parked.has(c)
		if l.parked.has(c) {
			parked++
		}
		if want := c.items.len() > 0 && c.lacks == nil; seated != want && len(k.shelf.nodes) == 0 {
			t.Fatalf("a class with %d items that lacks %v is seated: %t", c.items.len(), c.lacks, seated)
		}
		if _, lacks := q.lacking[l.account.id][c]; lacks != (c.lacks != nil) {
			t.Fatalf("a class that lacks %v is listed so: %t", c.lacks, lacks)
		}
		if waits := errors.Is(c.lacks, ErrTurn); waits && c.mayGo() || c.items.len() > 0 && !c.mayGo() && c.lacks == nil {
			t.Fatalf("a class whose array has room: %t lacks %v", c.mayGo(), c.lacks)
		}
		if seated && l.standing > l.account.standing {
			t.Fatalf("a line stands at %g, above its account's %g", l.standing, l.account.standing)
		}
	}
	for _, l := range q.lines {
		if (l.shelved > 0) != (l.parked.len() > 0) || (l.front > 0) != (l.ready.len() > 0) {
			t.Fatalf("a line with %d ready and %d parked is on its shelf: %d, in front: %d", l.ready.len(), l.parked.len(), l.shelved, l.front)
		}
	}
	for id, t2 := range q.limited {
		if len(t2.classes) == 0 && t2.claims == 0 {
			t.Fatalf("the array %s is kept for nobody", id)
		}
	}
	if parked != q.parked || items != len(q.items) {
		t.Fatalf("%d classes parked and %d items, counted as %d and %d", parked, items, q.parked, len(q.items))
	}
}

// Jobs that ask for the same by different orders are no class: what one is told of
// the fleet says nothing of the other's node.
func TestPoliciesAreClasses(t *testing.T) {
	q := empty(DefaultConfig())
	now := time.UnixMicro(1_000_000)
	asks := &offpeak.Requirements{CPU: 1}
	for i, p := range []placement.Policy{"", placement.Cheapest, placement.Balanced, placement.Fastest, placement.Fastest} {
		in := waits(i, asks)
		in.Policy = p
		q.Add(in, now)
	}
	if q.check(t); len(q.classes) != 4 {
		t.Errorf("%d classes, want 4", len(q.classes))
	}
	q.SetPolicy(placement.Balanced)
	for i, want := range []placement.Policy{placement.Balanced, placement.Cheapest, placement.Balanced, placement.Fastest, placement.Fastest} {
		it := q.Item(waits(i, asks).ID)
		if got := q.Placement(it); got.Policy != want || it.Job().Policy == "" != (i == 0) {
			t.Errorf("job %d is placed by %q, want %q", i, got.Policy, want)
		}
	}
}

// The queue yields what a sorted list would, whatever is added, paused, parked,
// found lacking and removed in between, and whoever uses how much.
func TestQueueIsASortedList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := empty(Config{HalfLife: 50 * time.Millisecond, GPU: 4})
		model := map[offpeak.JobID]Job{}
		asks := []*offpeak.Requirements{{CPU: 1}, {CPU: 2}, {CPU: 3}}
		accounts := []offpeak.AccountID{"a", "b", "c"}
		now := time.UnixMicro(1_000_000)
		lease := 0
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				in := waits(rapid.IntRange(0, 30).Draw(t, "job"), rapid.SampledFrom(asks).Draw(t, "asks"))
				in.Account = rapid.SampledFrom(accounts).Draw(t, "account")
				in.Priority = rapid.IntRange(-1, 1).Draw(t, "priority")
				in.Attempt = offpeak.Attempt(rapid.IntRange(0, 3).Draw(t, "attempt"))
				if rapid.Bool().Draw(t, "paused") {
					in.NotBefore = now.Add(time.Duration(rapid.IntRange(1, 50).Draw(t, "pause")) * time.Millisecond)
				}
				q.Add(in, now)
				if old, there := model[in.ID]; !there || in.Attempt > old.Attempt {
					model[in.ID] = in
				}
			},
			"remove": func(t *rapid.T) {
				id := waits(rapid.IntRange(0, 30).Draw(t, "job"), asks[0]).ID
				q.Remove(id)
				delete(model, id)
			},
			"time passes": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 40).Draw(t, "ms")) * time.Millisecond)
				q.Wake(now)
			},
			"hold": func(t *rapid.T) {
				lease++
				q.Hold(Lease{
					ID: offpeak.LeaseID(fmt.Sprint(lease)), Account: rapid.SampledFrom(accounts).Draw(t, "account"), Since: now,
					Resources: offpeak.Resources{CPU: int64(rapid.IntRange(1, 4000).Draw(t, "cpu"))},
				}, now)
			},
			"release": func(t *rapid.T) {
				q.Release(offpeak.LeaseID(fmt.Sprint(rapid.IntRange(1, 20).Draw(t, "lease"))), now)
			},
			"park": func(*rapid.T) {
				if c := q.next(); c != nil {
					q.park(c)
				}
			},
			"ready": func(*rapid.T) {
				for _, s := range q.shelves {
					q.ready(s)
					return
				}
			},
			"lack": func(*rapid.T) {
				if c := q.next(); c != nil {
					q.Lack(c.items.top(), errors.New("money"))
				}
			},
			"fund": func(t *rapid.T) { q.Funded(rapid.SampledFrom(accounts).Draw(t, "account")) },
			"": func(t *rapid.T) {
				q.check(t)
				var want []Job
				for _, m := range model {
					it := q.Item(m.ID)
					if it == nil {
						t.Fatalf("%s is missing", m.ID)
					}
					if !m.NotBefore.Add(time.Microsecond).After(now) && !q.IsParked(it) {
						want = append(want, m)
					}
				}
				first := q.next() // brings the standings of those in front up to date
				for _, a := range q.accounts {
					q.standing(a)
				}
				slices.SortFunc(want, func(a, b Job) int {
					switch x, y := q.accounts[a.Account].standing, q.accounts[b.Account].standing; {
					case a.Priority != b.Priority:
						return b.Priority - a.Priority
					case x < y:
						return -1
					case x > y:
						return 1
					}
					return a.Submitted.Compare(b.Submitted)
				})
				switch {
				case first == nil && len(want) > 0:
					t.Fatalf("nothing is first, want %s", want[0].ID)
				case first != nil && (len(want) == 0 || first.items.top().id != want[0].ID):
					t.Fatalf("%s is first, want %v", first.items.top().id, want)
				}
			},
		})
	})
}

func TestQueuedJobIsSmall(t *testing.T) {
	for _, alike := range []bool{true, false} {
		const jobs = 100_000
		asks := &offpeak.Requirements{CPU: 1000, Memory: offpeak.GiB}
		same := waits(0, asks)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		q := empty(DefaultConfig())
		for i := range jobs {
			in := same
			in.ID, in.Submitted = offpeak.JobID(fmt.Sprintf("job_%026d", i)), time.UnixMicro(int64(i))
			if !alike {
				r := *asks
				r.Memory += offpeak.Bytes(i)
				in.Requirements, in.Text = &r, text(&r)
			}
			q.Add(in, time.UnixMicro(1))
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		each, most := (int64(after.HeapAlloc)-int64(before.HeapAlloc))/jobs, int64(700)
		if !alike {
			most = 1536 // each is a kind of its own
		}
		t.Logf("alike %t: %d bytes a queued job", alike, each)
		if each > most {
			t.Errorf("alike %t: a queued job takes %d bytes, want at most %d", alike, each, most)
		}
		runtime.KeepAlive(q)
	}
}

// What a shelf needs fits wherever anything that stands there does.
func TestShelfAsksForNoMoreThanWhatStandsThere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		price := rapid.Custom(func(t *rapid.T) *offpeak.Price {
			if rapid.Bool().Draw(t, "bids") {
				return new(offpeak.Price(rapid.Int64Range(0, int64(offpeak.MaxPrice)).Draw(t, "price")))
			}
			return nil
		})
		r := offpeak.Requirements{
			CPU: rapid.Int64Range(1, 1<<20).Draw(t, "cpu"), Memory: offpeak.Bytes(rapid.Int64Range(0, 1<<44).Draw(t, "memory")),
			Disk: offpeak.Bytes(rapid.Int64Range(0, 1<<50).Draw(t, "disk")), MaxPrice: price.Draw(t, "max price"),
		}
		for range rapid.IntRange(0, 3).Draw(t, "gpus") {
			r.GPUs = append(r.GPUs, offpeak.GPURequest{VRAM: offpeak.Bytes(rapid.Int64Range(0, 1<<40).Draw(t, "vram"))})
		}
		f := floorOf(&r)
		if f.CPU > r.CPU || f.Memory > r.Memory || f.Disk > r.Disk || 2*f.CPU <= r.CPU || 2*f.Memory < r.Memory {
			t.Fatalf("%+v is rounded to %+v", r, f)
		}
		if (f.MaxPrice == nil) != (r.MaxPrice == nil) || f.MaxPrice != nil && *f.MaxPrice < *r.MaxPrice {
			t.Fatalf("a bid of %v is rounded to %v", r.MaxPrice, f.MaxPrice)
		}
		// The node that has just what the job asks for serves its shelf too.
		o := offpeak.Offer{Drivers: []string{"process"}, Ready: true, Capacity: offpeak.Resources{CPU: r.CPU, Memory: r.Memory, Disk: r.Disk}}
		for i, g := range r.GPUs {
			o.Devices = append(o.Devices, offpeak.Device{ID: offpeak.DeviceID(fmt.Sprint(i)), VRAM: g.VRAM})
		}
		o.Free, o.FreeDevices = o.Capacity, o.Devices
		if r.MaxPrice != nil {
			o.Ask = offpeak.Ask{CPU: *r.MaxPrice, GPU: *r.MaxPrice}
		}
		if serves(&r, "process", &o) && !serves(&f, "process", &o) {
			t.Fatalf("an offer that serves %+v does not serve %+v", r, f)
		}
	})
}
