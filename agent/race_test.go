//go:build race

package agent

// raced says that memory and time are not those of the real program.
const raced = true
