// Package offpeak is the vocabulary of the grid: the words of jobs, leases,
// nodes, devices, money and ends, the tables that say which state may follow
// which, and the errors that everyone branches on.
//
// It owns no behaviour beyond pure functions over its own types. It imports
// the standard library only and does no I/O, reads no clock and draws no
// random number: times, seeds and ids are arguments. Every other package may
// import it, it imports none. All its values are plain data and safe to copy;
// maps and slices inside them are treated as read-only by everyone who did not
// build them.
//
// It is tested exhaustively: every pair of states against the transition
// tables, every end reason against the table of ends, every unit against its
// printed form.
package offpeak
