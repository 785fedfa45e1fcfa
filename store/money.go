package store

import (
	"context"
	"iter"
	"time"

	"offpeak"
	"offpeak/ledger"
)

// Money is the ledger as it is stored. What a lease costs is held and settled by
// Claim and by whatever ends the lease, in the same transaction; a lease without a
// price has nothing to do with any of it.
type Money interface {
	// Post appends transactions that come from outside (deposits, payouts), all of
	// them or none, at the store's time, and says how many were new. One that is there already changes
	// nothing; a *ledger.ConflictError (ErrOperationConflict): another one has its id. A
	// *ledger.NegativeError (ErrFunds): an account has not as much. ErrNotFound: there
	// is no such account. It is made for at most a thousand at once.
	Post(ctx context.Context, op Op, list []ledger.Transaction) (fresh int, err error)
	// Transactions returns those of the ids that there are, in the order in which
	// they were appended.
	Transactions(ctx context.Context, ids []ledger.TransactionID) ([]ledger.Transaction, error)
	// Bill takes the next step of at most limit leases for which it is due: holds for
	// the next paid interval, or renews the price at its node's ask where that is
	// within the job's limit, once the node was heard after the term's end: while it is
	// silent, the old price holds. A lease that is not covered, or whose ask rose above
	// the limit, is asked to go, as Stop does. It returns the leases whose price was
	// renewed and those that were asked to go, and whether more may be due.
	Bill(ctx context.Context, limit int) (billed Billed, more bool, err error)
	// Balances returns what an account has available, and what is held for its leases.
	Balances(ctx context.Context, account offpeak.AccountID) (Balances, error)
	// Totals sums the balances of each part of the ledger over all accounts and the
	// grid itself.
	Totals(ctx context.Context) (map[ledger.Part]offpeak.MicroCredits, error)
	// Receipts returns the lines of what a job's settled attempts cost, in their
	// order: for an account those that it paid or was paid by. ErrNotFound: the job is
	// not the account's, and it ran on no node of the account's either.
	Receipts(ctx context.Context, account offpeak.AccountID, job offpeak.JobID) ([]ledger.Receipt, error)
	// Earned sums what a node earned by the jobs of others than its owner that were
	// settled since each of the moments; zero is since ever.
	Earned(ctx context.Context, node offpeak.NodeID, since ...time.Time) ([]offpeak.MicroCredits, error)
	// Statement walks over the transactions that changed an account's balances, the
	// oldest first.
	Statement(ctx context.Context, account offpeak.AccountID) iter.Seq2[ledger.Transaction, error]
	// CheckLedger is the part of Check that recomputes the ledger: I6 to I8.
	CheckLedger(ctx context.Context) ([]Violation, error)
}

// Billed is what Bill did.
type Billed struct {
	// Gone are leases that were asked to go.
	Gone []Change
	// Renewed are terms that ended, each with the price of the one that began.
	Renewed []Renewal
}

// Paid is a price term of a lease that has ended.
type Paid struct {
	Lease   offpeak.LeaseID
	Node    offpeak.NodeID
	Devices []offpeak.DeviceID
	// Price was locked for the term, Metered is what was had for it.
	Price   offpeak.Price
	Metered offpeak.Millis
}

// Renewal is a term that ended and the price of the next.
type Renewal struct {
	Paid
	Price offpeak.Price
}

// Balances is what an account has.
type Balances struct {
	Available offpeak.MicroCredits `json:"available"`
	Held      offpeak.MicroCredits `json:"held"`
}
