//go:build !linux

package steady

import "time"

// Counter returns a clock that counts from now on and can't be set. On these
// systems it may stand still while the machine sleeps.
func Counter() func() time.Duration {
	began := time.Now()
	return func() time.Duration { return time.Since(began) }
}
