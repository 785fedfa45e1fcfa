//go:build race

package sqlite_test

// raced says that the race detector slows everything down: what is repeated for
// good measure is repeated less often.
const raced = true
