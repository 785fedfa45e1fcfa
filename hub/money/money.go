// Package money is the grid's till: money comes in and goes out here, and
// accounts see what they have and what they paid for.
//
// It owns which deposits and payouts are made of what an admin or a payment
// adapter says, and in what order they are looked up, signed and posted. What a
// transaction may be is decided by package ledger, who may ask by package api,
// and what leases cost by the store's verbs: nothing here knows of jobs that
// run or of prices, and of nodes only what they brought.
//
// All methods may be called from any number of goroutines. It keeps nothing: a
// reference that was posted once is known to the store for ever, so everything
// may be asked again. It is tested on the real embedded store; DESIGN.md beside
// this file holds the invariants.
package money

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"offpeak"
	"offpeak/ledger"
	"offpeak/store"
	"offpeak/wire"
)

// Bounds of what is posted at once.
const (
	// maxPayouts bounds a batch of payouts, which is posted in one transaction.
	maxPayouts = 1000
	// stride is how many deposits of a batch are looked up and posted at once.
	stride = 500
)

// Store is what is kept of money and accounts.
type Store interface {
	store.Money
	Accounts(ctx context.Context, page store.Page) ([]offpeak.Account, string, error)
	Account(ctx context.Context, id offpeak.AccountID) (offpeak.Account, error)
	Now(ctx context.Context) (time.Time, error)
}

// Env is the outside world, handed in.
type Env struct {
	Store Store
	// Payments carries batches; nil: this hub has no adapter.
	Payments ledger.Payments
	// Posted is called after money came in or went out, which has left events.
	Posted func(accounts []offpeak.AccountID)
}

// Till is one hub's way in and out for money.
type Till struct{ env Env }

// New makes a till.
func New(env Env) *Till { return &Till{env} }

// movement reads what a person said of one deposit or payout.
func movement(external string, account offpeak.AccountID, amount string) (ledger.Movement, error) {
	n, err := ledger.ParseAmount(amount)
	if v, ok := errors.AsType[*offpeak.ValueError](err); ok {
		err = &offpeak.FieldError{Field: "amount", Value: v.Value, Rule: v.Rule}
	}
	m := ledger.Movement{External: external, Account: account, Amount: n}
	if err == nil {
		err = m.Validate()
	}
	return m, err
}

// one reads one movement and posts what build makes of it. Transactions are made
// without a time: the store says when they were posted.
func (t *Till) one(ctx context.Context, op store.Op, in wire.NewMovement, build func(ledger.Movement, time.Time) (ledger.Transaction, error)) (wire.Posted, error) {
	m, err := movement(in.External, in.Account, in.Amount)
	if err != nil {
		return wire.Posted{}, err
	}
	x, err := build(m, time.Time{})
	if err != nil {
		return wire.Posted{}, err
	}
	return t.post(ctx, op, []ledger.Transaction{x})
}

// post posts and tells who waits for money.
func (t *Till) post(ctx context.Context, op store.Op, list []ledger.Transaction) (wire.Posted, error) {
	fresh, err := t.env.Store.Post(ctx, op, list)
	if c, other := errors.AsType[*ledger.ConflictError](err); other {
		// Not the operation's id but the world's reference was used before.
		return wire.Posted{}, fmt.Errorf("%w: the reference of %s was used with another %s; repeat it as it was, or give this one a reference of its own", offpeak.ErrConflict, c.Transaction, c.Field)
	}
	if err != nil {
		return wire.Posted{}, err
	}
	if fresh > 0 {
		t.env.Posted(accounts(list))
	}
	return posted(list, fresh), nil
}

func posted(list []ledger.Transaction, fresh int) wire.Posted {
	out := wire.Posted{Transactions: []string{}, Count: len(list), Fresh: fresh}
	for i, x := range list {
		if i < maxPayouts {
			out.Transactions = append(out.Transactions, string(x.ID))
		}
		out.Total += amount(x)
	}
	return out
}

// amount is how much a deposit or payout moves.
func amount(x ledger.Transaction) offpeak.MicroCredits {
	return max(x.Entries[0].Amount, -x.Entries[0].Amount)
}

// accounts are those that transactions change, each once.
func accounts(list []ledger.Transaction) (out []offpeak.AccountID) {
	seen := map[offpeak.AccountID]bool{"": true}
	for _, x := range list {
		for _, e := range x.Entries {
			if !seen[e.Account.Of] {
				seen[e.Account.Of] = true
				out = append(out, e.Account.Of)
			}
		}
	}
	return out
}

// Deposit puts money into an account. The same reference again changes nothing;
// with another account or amount it is ErrConflict.
func (t *Till) Deposit(ctx context.Context, op store.Op, in wire.NewMovement) (wire.Posted, error) {
	return t.one(ctx, op, in, ledger.Deposit)
}

// Payout takes money out of an account. A *ledger.NegativeError (ErrFunds): it has
// not as much available.
func (t *Till) Payout(ctx context.Context, op store.Op, in wire.NewMovement) (wire.Posted, error) {
	if strings.Contains(in.External, "/") {
		return wire.Posted{}, &offpeak.FieldError{Field: "external", Value: in.External, Rule: "has no /, which is for the rows of batches"}
	}
	return t.one(ctx, op, in, ledger.Payout)
}

// GridPayout takes out what the operator earned, or what rounding left.
func (t *Till) GridPayout(ctx context.Context, op store.Op, in wire.NewGridPayout) (wire.Posted, error) {
	part := ledger.Part(in.Part)
	if part != ledger.PartFee && part != ledger.PartRounding {
		return wire.Posted{}, &offpeak.FieldError{Field: "part", Value: in.Part, Rule: "is fee or rounding"}
	}
	if strings.Contains(in.External, "/") {
		return wire.Posted{}, &offpeak.FieldError{Field: "external", Value: in.External, Rule: "has no /, which is for the rows of batches"}
	}
	// The account is the grid's own, which nobody names.
	return t.one(ctx, op, wire.NewMovement{External: in.External, Account: "grid", Amount: in.Amount}, func(m ledger.Movement, at time.Time) (ledger.Transaction, error) {
		return ledger.GridPayout(part, m.External, m.Amount, at)
	})
}

// Return gives back a payout that did not arrive, once, to the account or the part of
// the grid that it was from. ErrNotFound: there is no payout of that reference.
func (t *Till) Return(ctx context.Context, op store.Op, in wire.NewReturn) (wire.Posted, error) {
	if err := (ledger.Movement{External: in.External, Account: "any", Amount: 1}).Validate(); err != nil {
		return wire.Posted{}, err
	}
	list, err := t.env.Store.Transactions(ctx, []ledger.TransactionID{payoutID(in.External)})
	if err != nil {
		return wire.Posted{}, err
	}
	if len(list) == 0 {
		return wire.Posted{}, fmt.Errorf("payout %q: %w", in.External, offpeak.ErrNotFound)
	}
	from, m := paid(list[0])
	back, err := ledger.PayoutReturned(m, time.Time{})
	if from.Of == "" {
		back, err = ledger.GridPayoutReturned(from.Part, m.External, m.Amount, time.Time{})
	}
	if err != nil {
		return wire.Posted{}, err
	}
	return t.post(ctx, op, []ledger.Transaction{back})
}

func payoutID(external string) ledger.TransactionID {
	return ledger.TransactionID(string(ledger.KindPayout) + "/" + external)
}

// paid is the movement of a payout, and what it was from.
func paid(x ledger.Transaction) (from ledger.Account, m ledger.Movement) {
	for _, e := range x.Entries {
		if e.Amount < 0 {
			from, m = e.Account, ledger.Movement{External: x.Subject.External, Account: e.Account.Of, Amount: -e.Amount}
		}
	}
	return from, m
}

// adapter is the payment adapter, or why there is none.
func (t *Till) adapter() (ledger.Payments, error) {
	if t.env.Payments == nil {
		return nil, fmt.Errorf("carry payments: this hub has no payment adapter: %w", offpeak.ErrConflict)
	}
	return t.env.Payments, nil
}

// ImportDeposits posts the deposits that an adapter reads from a batch. All are
// looked at before the first is posted: an unknown account or a reference that was
// used for something else refuses the batch. Asked again, it posts what is missing.
func (t *Till) ImportDeposits(ctx context.Context, op store.Op, data []byte) (wire.Posted, error) {
	adapter, err := t.adapter()
	if err != nil {
		return wire.Posted{}, err
	}
	batch, err := adapter.ReadDeposits(data)
	if err != nil {
		return wire.Posted{}, fmt.Errorf("import deposits: %w", err)
	}
	list, err := batch.Transactions(time.Time{})
	if err != nil {
		return wire.Posted{}, err
	}
	for _, account := range accounts(list) {
		if _, err := t.env.Store.Account(ctx, account); err != nil {
			return wire.Posted{}, fmt.Errorf("account %s: %w", account, err)
		}
	}
	var sum offpeak.MicroCredits
	for part := range slices.Chunk(list, stride) {
		n, err := t.known(ctx, part)
		if err != nil {
			return wire.Posted{}, err
		}
		sum += n
	}
	sums, err := t.env.Store.Totals(ctx)
	if err != nil {
		return wire.Posted{}, err
	}
	if room := ledger.DepositsRoom(sums[ledger.PartDeposits]); sum > room {
		return wire.Posted{}, fmt.Errorf("import deposits: %w", &ledger.LimitError{Amount: sum, Room: room})
	}
	fresh := 0
	for i, part := range slices.Collect(slices.Chunk(list, stride)) {
		n, err := t.env.Store.Post(ctx, partOp(op, i), part)
		if err != nil {
			return wire.Posted{}, fmt.Errorf("import deposits: %d of %d are posted, import the file again: %w", i*stride, len(list), err)
		}
		if fresh += n; n > 0 {
			t.env.Posted(accounts(part))
		}
	}
	return posted(list, fresh), nil
}

// known refuses transactions whose ids were used for others, and sums what those
// that are not there yet bring in.
func (t *Till) known(ctx context.Context, list []ledger.Transaction) (fresh offpeak.MicroCredits, err error) {
	ids := make([]ledger.TransactionID, len(list))
	byID := make(map[ledger.TransactionID]ledger.Transaction, len(list))
	for i, x := range list {
		ids[i], byID[x.ID] = x.ID, x
		fresh += amount(x)
	}
	there, err := t.env.Store.Transactions(ctx, ids)
	if err != nil {
		return 0, err
	}
	for _, x := range there {
		if err := byID[x.ID].Again(x); err != nil {
			return 0, err
		}
		fresh -= amount(x)
	}
	return fresh, nil
}

// partOp is the operation of one part of what a person did at once.
func partOp(op store.Op, part int) store.Op {
	if part > 0 {
		op = derived(op, string(op.ID)+"/"+strconv.Itoa(part))
	}
	return op
}

// derived is an operation whose id follows from a text.
func derived(op store.Op, from string) store.Op {
	sum := sha256.Sum256([]byte(from))
	op.ID = offpeak.OpID("money-" + hex.EncodeToString(sum[:16]))
	return op
}

// ExportPayouts posts payouts and returns them in the form in which the adapter's
// world takes them. The batch's id is what it is known by: asked again as it was the
// first time, it returns the same bytes, posts nothing and says so; with other
// payouts or another minimum it is ErrConflict.
func (t *Till) ExportPayouts(ctx context.Context, op store.Op, in wire.NewPayouts) (wire.SignedPayouts, error) {
	adapter, err := t.adapter()
	if err != nil {
		return wire.SignedPayouts{}, err
	}
	asked, err := readPayouts(in)
	if err != nil {
		return wire.SignedPayouts{}, err
	}
	// What everybody has may change between reading and posting it, and others may
	// make the batch meanwhile.
	const tries = 3
	for try := 1; ; try++ {
		out, err := t.export(ctx, op, adapter, asked)
		_, none := errors.AsType[*nothingError](err) // or the batch has just paid it out
		raced := asked.Minimum > 0 && errors.Is(err, offpeak.ErrFunds) || errors.Is(err, offpeak.ErrOperationConflict) || none
		if !raced || try == tries {
			return out, err
		}
	}
}

// readPayouts is what a person said of a batch: its payouts, or the least that an
// account has to have.
func readPayouts(in wire.NewPayouts) (b ledger.Batch, err error) {
	if !regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`).MatchString(in.Batch) {
		return b, &offpeak.FieldError{Field: "batch", Value: in.Batch, Rule: "has 1 to 64 of A-Z a-z 0-9 . _ -"}
	}
	if len(in.Payouts) > maxPayouts {
		return b, &offpeak.FieldError{Field: "payouts", Value: strconv.Itoa(len(in.Payouts)), Rule: fmt.Sprintf("are at most %d in one batch", maxPayouts)}
	}
	if len(in.Payouts) > 0 && in.Minimum != "" {
		return b, &offpeak.FieldError{Field: "minimum", Value: in.Minimum, Rule: "is for a batch without payouts, of what every account has"}
	}
	b = ledger.Batch{ID: in.Batch, Direction: ledger.DirectionPayouts}
	var errs []error
	for i, p := range in.Payouts {
		m, err := movement(row(in.Batch, i), p.Account, p.Amount)
		if f, ok := errors.AsType[*offpeak.FieldError](err); ok {
			err = &offpeak.FieldError{Field: fmt.Sprintf("payouts[%d].%s", i, f.Field), Value: f.Value, Rule: f.Rule}
		}
		errs = append(errs, err)
		b.Movements = append(b.Movements, m)
	}
	if len(in.Payouts) == 0 {
		b.Minimum = 1
	}
	if in.Minimum != "" {
		m, err := movement("minimum", "any", in.Minimum)
		if f, ok := errors.AsType[*offpeak.FieldError](err); ok {
			err = &offpeak.FieldError{Field: "minimum", Value: f.Value, Rule: f.Rule}
		}
		errs, b.Minimum = append(errs, err), m.Amount
	}
	return b, errors.Join(errs...)
}

// row is the reference of a row of a batch of payouts.
func row(batch string, i int) string { return batch + "/" + strconv.Itoa(i+1) }

func (t *Till) export(ctx context.Context, op store.Op, adapter ledger.Payments, b ledger.Batch) (wire.SignedPayouts, error) {
	there, err := t.batch(ctx, b.ID)
	if err != nil {
		return wire.SignedPayouts{}, err
	}
	if len(there.Movements) > 0 {
		if b.Minimum != there.Minimum || b.Minimum == 0 && !slices.Equal(b.Movements, there.Movements) {
			return wire.SignedPayouts{}, fmt.Errorf("export payouts: batch %q was posted before, %s; ask for it as it was, or give this one another name: %w", b.ID, asWas(there), offpeak.ErrConflict)
		}
		out, err := adapter.WritePayouts(there)
		return wire.SignedPayouts{Data: out, Again: true}, err
	}
	if b.Minimum > 0 {
		if b.Movements, err = t.everything(ctx, b.ID, b.Minimum); err != nil {
			return wire.SignedPayouts{}, err
		}
	}
	if b.At, err = t.env.Store.Now(ctx); err != nil {
		return wire.SignedPayouts{}, err
	}
	b.At = whole(b.At)
	list, err := b.Transactions(time.Time{})
	if err != nil {
		return wire.SignedPayouts{}, err
	}
	// Signed first: what can't be signed is not posted.
	if _, err := adapter.WritePayouts(b); err != nil {
		return wire.SignedPayouts{}, fmt.Errorf("export payouts: %w", err)
	}
	// The batch itself is the operation, so that two who make it at once make one.
	op = derived(op, "payouts/"+b.ID)
	op.Digest = sha256.Sum256(fmt.Append(nil, b.Minimum, b.Movements))
	if _, err := t.post(ctx, op, list); err != nil {
		return wire.SignedPayouts{}, err
	}
	// As it was posted: the store says when that was.
	if b, err = t.batch(ctx, b.ID); err != nil {
		return wire.SignedPayouts{}, err
	}
	out, err := adapter.WritePayouts(b)
	return wire.SignedPayouts{Data: out}, err
}

// asWas says how a batch was asked for.
func asWas(b ledger.Batch) string {
	if b.Minimum > 0 {
		return fmt.Sprintf("of all that accounts with %s credits or more had", b.Minimum)
	}
	return "of payouts that were named"
}

// whole is a time as batches carry it, in whole seconds.
func whole(at time.Time) time.Time { return at.UTC().Truncate(time.Second) }

// batch is a batch of payouts as it was posted, without rows where there is none.
func (t *Till) batch(ctx context.Context, id string) (ledger.Batch, error) {
	b := ledger.Batch{ID: id, Direction: ledger.DirectionPayouts}
	ids := []ledger.TransactionID{payoutID(row(id, 0))}
	list, err := t.env.Store.Transactions(ctx, ids)
	if err != nil || len(list) == 0 {
		return b, err
	}
	b.At, b.Minimum = whole(list[0].At), list[0].Subject.Minimum
	for i := 1; i < maxPayouts; i++ {
		ids = append(ids, payoutID(row(id, i)))
	}
	if list, err = t.env.Store.Transactions(ctx, ids); err != nil {
		return b, err
	}
	for _, x := range list {
		_, m := paid(x)
		b.Movements = append(b.Movements, m)
	}
	return b, nil
}

// everything is a payout of all that each account has, from least on.
func (t *Till) everything(ctx context.Context, batch string, least offpeak.MicroCredits) (out []ledger.Movement, err error) {
	for cursor := ""; ; {
		page, next, err := t.env.Store.Accounts(ctx, store.Page{Cursor: cursor, Limit: 1000})
		if err != nil {
			return nil, err
		}
		for _, a := range page {
			b, err := t.env.Store.Balances(ctx, a.ID)
			if err != nil {
				return nil, err
			}
			if n := min(b.Available, ledger.MaxAmount); n >= least && len(out) < maxPayouts {
				out = append(out, ledger.Movement{External: row(batch, len(out)), Account: a.ID, Amount: n})
			}
		}
		if cursor = next; cursor == "" {
			break
		}
	}
	if len(out) == 0 {
		return nil, &nothingError{least}
	}
	return out, nil
}

// nothingError says that nobody has as much as a payout is to be.
type nothingError struct{ least offpeak.MicroCredits }

func (e *nothingError) Error() string {
	return fmt.Sprintf("export payouts: no account has %s credits or more available", e.least)
}

func (*nothingError) Unwrap() error { return offpeak.ErrConflict }
