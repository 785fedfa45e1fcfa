// Package ledger says what metered work costs and keeps the books of it:
// holds, charges, receipts, deposits, payouts, and the check of all of them.
//
// It is pure. Every verb takes a state and a fact and returns the new state,
// the transactions to append, and a verdict. The time, the ids and the
// balances are arguments; nothing here is stored, and nothing here is shared
// between goroutines but values that do not change (a Book belongs to one).
// Whoever stores the ledger applies what a verb returns in the transaction in
// which the fact itself is recorded, so that a lease and its money never
// disagree.
//
// # Money
//
// Money is whole micro-credits, time is whole milliseconds, and products are
// taken in 128 bits. There is no float and no overflow: prices are bounded by
// offpeak.MaxPrice, time by offpeak.MaxDuration, amounts by MaxAmount, and
// every sum is checked.
//
// # The rounding rule
//
// A line of a receipt (one attempt, one price term) costs
//
//	charge = ⌊ price × billed milliseconds ÷ 3,600,000 ⌋
//	earned = ⌊ charge × (10,000 − fee) ÷ 10,000 ⌋
//	fee    = ⌊ charge × fee ÷ 10,000 ⌋
//
// and what is left of the charge, 0 or 1 micro-credit a line, goes to the
// grid's rounding account. Everything is rounded down, so that nobody pays or
// gets more than the exact figure, what was held for a longer time always
// covers a shorter one, and each line can be recomputed from itself alone.
//
// # How it is tested
//
// By tables for the rules, by case 58 of the field's faults ("escrow ran dry
// but workloads kept running") and by a model in exact rational arithmetic
// that a hundred thousand random histories are compared with, step by step.
package ledger
