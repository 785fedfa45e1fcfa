package api

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// limiter holds a token bucket a key. Buckets that are full again say nothing
// and are forgotten when there are many.
type limiter struct {
	rate  rate.Limit
	burst int

	mu      sync.Mutex // guards what follows
	buckets map[string]*rate.Limiter
	sweepAt int // the number of buckets that makes a sweep worth its while
}

const sweepLeast = 4096

func newLimiter(perSecond float64, burst int) *limiter {
	return &limiter{rate: rate.Limit(perSecond), burst: burst, buckets: map[string]*rate.Limiter{}, sweepAt: sweepLeast}
}

// take takes one from the key's bucket and returns 0, or how long to wait.
func (l *limiter) take(key string, now time.Time) time.Duration {
	b := l.bucket(key, now)
	if b.AllowN(now, 1) {
		return 0
	}
	return l.until(b, now)
}

// wait is take without taking.
func (l *limiter) wait(key string, now time.Time) time.Duration {
	l.mu.Lock()
	b := l.buckets[key]
	l.mu.Unlock()
	if b == nil || b.TokensAt(now) >= 1 {
		return 0
	}
	return l.until(b, now)
}

func (l *limiter) until(b *rate.Limiter, now time.Time) time.Duration {
	short := 1 - b.TokensAt(now)
	return max(time.Millisecond, time.Duration(short/float64(l.rate)*float64(time.Second)))
}

func (l *limiter) bucket(key string, now time.Time) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b := l.buckets[key]; b != nil {
		return b
	}
	if len(l.buckets) >= l.sweepAt {
		for k, b := range l.buckets {
			if b.TokensAt(now) >= float64(l.burst) {
				delete(l.buckets, k)
			}
		}
		l.sweepAt = max(sweepLeast, 2*len(l.buckets))
	}
	b := rate.NewLimiter(l.rate, l.burst)
	l.buckets[key] = b
	return b
}
