// Package market is the spot market: asks and requirements in, offers, quotes,
// displacements and price history out.
//
// It owns what a job would pay where: the plan by which an ask changes over the
// week (Plan), the index that finds the cheapest offer that fits (Book), quotes,
// who gives way to whom on a scarce machine and at what price (Auction), the
// rules that propose prices (Rule) and the record of what was paid (Tape).
// Whether an offer fits is decided by offpeak's Requirements.Fits and nothing
// else: the index may skip an offer that Fits would refuse, never admit one.
//
// It must not know of routing, nodes' connections, stores, networks, clocks or
// goroutines: times are arguments, so a recorded decision replays exactly. Money
// is integers throughout; where a sum is not whole, the comment of the function
// that divides says which way it rounds.
//
// Book and Tape are not safe for concurrent changes: their owner holds a
// lock. Their reading methods change nothing, so readers may share it. All else
// is values and functions of their arguments.
//
// It is tested by properties against models that a person can check: the book
// against a linear scan, a plan against a walk minute by minute, auctions by
// playing them until nobody moves.
package market
