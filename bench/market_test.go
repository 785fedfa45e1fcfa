package bench

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"offpeak"
	"offpeak/bench/consumer"
	"offpeak/market"
)

// marketSize is how many offers the market's figures are about.
const marketSize = 1_000_000

// filled is a book of marketSize offers, the offers themselves and what the
// book adds to their memory.
func filled(b *testing.B, src *consumer.Source) (*market.Book, []offpeak.Offer, uint64) {
	b.Helper()
	offers := make([]offpeak.Offer, marketSize)
	for i := range offers {
		offers[i] = src.Offer(i)
	}
	before := heap()
	book := market.NewBook()
	for i := range offers {
		if err := book.Put(offers[i]); err != nil {
			b.Fatal(err)
		}
	}
	return book, offers, (heap() - before) / marketSize
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// answer is what a linear scan finds: how many offers fit and the cheapest.
type answer struct {
	fits     int
	cheapest *offpeak.Offer
}

func (a *answer) see(j *consumer.Job, o *offpeak.Offer) {
	if !j.Requirements.Fits(j.Account, j.Driver, o) {
		return
	}
	a.fits++
	if a.cheapest == nil || o.Ask.For(j.Requirements) < a.cheapest.Ask.For(j.Requirements) {
		a.cheapest = o // the first of its price has the lowest node id
	}
}

// scanAll answers all jobs by looking at every offer.
func scanAll(offers []offpeak.Offer, jobs []consumer.Job) []answer {
	out := make([]answer, len(jobs))
	var group sync.WaitGroup
	for part := range slices.Chunk(slices.Collect(indexes(len(jobs))), (len(jobs)+1)/2) {
		group.Go(func() {
			for i := range offers {
				for _, k := range part {
					out[k].see(&jobs[k], &offers[i])
				}
			}
		})
	}
	group.Wait()
	return out
}

func indexes(n int) func(func(int) bool) {
	return func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	}
}

// BenchmarkCheapest measures how long the book looks for the cheapest of a
// million offers that fits, by how many fit. Each question is asked once, after
// others, as jobs ask; each answer is checked against a linear scan.
func BenchmarkCheapest(b *testing.B) {
	src := consumer.New(1)
	book, offers, bytes := filled(b, src)
	var jobs []consumer.Job
	for i := range 1000 {
		jobs = append(jobs, src.Job(i%7))
	}
	truth := scanAll(offers, jobs)
	for _, c := range []struct {
		name        string
		least, most int // of the offers fit
	}{
		{"one_in_1000", marketSize / 1000, marketSize},
		{"barely_one_in_1000", marketSize / 1000, marketSize / 250},
		{"one_in_100000", 1, marketSize / 50_000},
		{"none", 0, 0},
	} {
		b.Run(c.name, func(b *testing.B) {
			var took []time.Duration
			for range b.N {
				for i, a := range truth {
					if a.fits < c.least || a.fits > c.most {
						continue
					}
					began := time.Now()
					got, ok := book.Cheapest(jobs[i].Requirements, jobs[i].Account, jobs[i].Driver)
					took = append(took, time.Since(began))
					if ok != (a.cheapest != nil) || (ok && got.Node != a.cheapest.Node) {
						b.Fatalf("%+v: the book says %s, %v; the scan %+v", jobs[i], got.Node, ok, a)
					}
				}
			}
			slices.Sort(took)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(len(took)), "questions")
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "us-p50")
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "us-p99")
			b.ReportMetric(float64(took[len(took)-1].Nanoseconds())/1e3, "us-most")
			b.ReportMetric(float64(bytes), "B/offer")
		})
	}
}

// BenchmarkAskChange measures a change of one ask among a million offers.
func BenchmarkAskChange(b *testing.B) {
	src := consumer.New(2)
	book, offers, _ := filled(b, src)
	const changes = 100_000
	var took []time.Duration
	for range b.N {
		for i := range changes {
			o := &offers[(i*7919)%len(offers)]
			o.Ask.GPU, o.Ask.CPU = o.Ask.GPU+offpeak.Price(i%9)*1000, o.Ask.CPU+offpeak.Price(i%5)*1000
			began := time.Now()
			_, err := book.SetAsk(o.Node, o.Ask)
			took = append(took, time.Since(began))
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	jobs := make([]consumer.Job, 100)
	for i := range jobs {
		jobs[i] = src.Job(i % 5)
	}
	for i, a := range scanAll(offers, jobs) {
		got, ok := book.Cheapest(jobs[i].Requirements, jobs[i].Account, jobs[i].Driver)
		if ok != (a.cheapest != nil) || (ok && got.Node != a.cheapest.Node) {
			b.Fatal(fmt.Errorf("%+v after the changes: the book says %s, %v; the scan %+v", jobs[i], got.Node, ok, a))
		}
	}
	slices.Sort(took)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "us-p50")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "us-p99")
}
