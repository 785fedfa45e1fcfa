package sqlstore

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"time"

	"offpeak"
	"offpeak/ledger"
	"offpeak/store"
)

// money is the ledger's side of a lease.
type money struct {
	ledger.Lease
	// due is when the next step is to be taken.
	due time.Time
	// charged and end are set once it is settled.
	charged offpeak.MicroCredits
	end     ledger.Ending
}

// funds is what may be held for a job.
func (t *verb) funds(j *job) (f ledger.Funds, err error) {
	if f.Available, err = t.balance(ledger.Available(j.Account)); err != nil {
		return f, err
	}
	if f.Budget = j.Spec.Limits.Budget; f.Budget != nil {
		f.Committed, err = t.committed(j.ID, "")
	}
	return f, err
}

// committed is what a job's settled attempts were charged and its open ones hold,
// but for one of them.
func (t *verb) committed(job offpeak.JobID, but offpeak.LeaseID) (sum offpeak.MicroCredits, err error) {
	err = t.row(`SELECT CAST(COALESCE(sum(CASE settled WHEN 1 THEN charged ELSE held END), 0) AS BIGINT) FROM lease_money WHERE job = $1 AND lease <> $2`, []any{string(job), string(but)}, &sum)
	return sum, err
}

// spent says that what a job with a budget has left does not cover another attempt
// at the price of its last term.
func (s *Store) spent(t *verb, l *lease, j *job) (bool, error) {
	if j.Spec.Limits.Budget == nil || l.money == nil {
		return false, nil
	}
	before, err := t.committed(j.ID, l.ID)
	if err != nil {
		return false, err
	}
	left := *j.Spec.Limits.Budget - before - l.money.charged
	return left < ledger.Least(s.rules(j), millis(l.limit), l.Price), nil
}

// rules are the operator's, with a lead for the job's grace.
func (s *Store) rules(j *job) ledger.Rules { return s.cfg.Rules.Noticed(j.Spec.Task.Grace.Std()) }

func millis(d time.Duration) offpeak.Millis { return offpeak.Millis(d.Milliseconds()) }

// openMoney decides what a claim with a price holds, and changes nothing: posting what
// it returns does.
func (s *Store) openMoney(t *verb, l *lease, j *job, owner offpeak.AccountID) (*money, []ledger.Transaction, error) {
	if l.Price == 0 {
		return nil, nil, nil
	}
	f, err := t.funds(j)
	if err != nil {
		return nil, nil, err
	}
	m := ledger.Lease{ID: l.ID, Job: l.Job, Attempt: l.Attempt, Payer: l.Account, Owner: owner, Limit: millis(l.limit)}
	m, list, v, err := ledger.Open(m, s.rules(j), f, t.now, l.Price)
	if err != nil {
		return nil, nil, err
	}
	return &money{Lease: m, due: v.Next}, list, nil
}

// money returns the ledger's side of a lease, nil for one that was claimed without a
// price. One that had a price may be renewed for nothing.
func (t *verb) money(l *lease) (*money, error) {
	if l.money != nil || !l.priced() {
		return l.money, nil
	}
	if err := t.loadMoney([]*lease{l}, nil); err != nil {
		return nil, err
	}
	if l.money == nil {
		return nil, fmt.Errorf("read the money of lease %s: %w", l.ID, offpeak.ErrNotFound)
	}
	return l.money, nil
}

// priced says that a lease has a ledger's side.
func (l *lease) priced() bool { return l.Price > 0 || l.term > 1 }

func scanMoney(r Rows, lease *offpeak.LeaseID) (*money, error) {
	var text string
	var due int64
	m := &money{}
	if err := r.Scan(lease, &text, &due, &m.charged); err != nil {
		return nil, err
	}
	m.due = moment(due)
	if err := json.Unmarshal([]byte(text), &m.Lease); err != nil {
		return nil, fmt.Errorf("lease %s: %w", *lease, err)
	}
	return m, nil
}

func (t *verb) changeMoney(l *lease, m *money) {
	l.money = m
	t.later(writeMoney, int64(m.Held), int64(m.charged), number(m.Settled), micros(m.due), string(data(m.Lease)), string(m.end.Reason), int64(m.end.Metered), int64(m.end.Kept), string(l.ID))
}

// settleMoney charges what a lease that ends has cost, and releases the rest. It
// returns what the last term came to, nil where there is nothing to settle.
func (t *verb) settleMoney(l *lease, reason offpeak.EndReason) (*store.Paid, error) {
	m, err := t.money(l)
	if err != nil || m == nil || m.Settled {
		return nil, err
	}
	how := ledger.Ending{Reason: reason, Metered: l.Metered, Kept: l.kept, At: t.now}
	end, list, lines, err := m.Settle(how)
	if err != nil {
		return nil, err
	}
	if err := t.post(list...); err != nil {
		return nil, err
	}
	t.changeMoney(l, &money{Lease: end, due: t.now, charged: ledger.Charged(lines), end: how})
	for _, r := range lines {
		// Who pays themselves earns nothing.
		node, earned := string(l.Node), int64(r.Split.Earned)
		if r.Payer == r.Owner {
			node, earned = "", 0
		}
		t.later(addReceipt, string(r.Lease), int64(r.Term.N), string(r.Job), string(r.Payer), string(r.Owner), int64(r.Charged), string(data(r)), node, micros(t.now), earned)
	}
	return paid(l, &end), nil
}

// paid is what the last term of a lease came to.
func paid(l *lease, m *ledger.Lease) *store.Paid {
	last := &m.Terms[len(m.Terms)-1]
	return &store.Paid{Lease: l.ID, Node: l.Node, Devices: l.Resources.Devices, Price: last.Price, Metered: last.Metered}
}

// Post appends transactions that come from outside.
func (s *Store) Post(ctx context.Context, op store.Op, list []ledger.Transaction) (int, error) {
	return write(ctx, s, "post to the ledger", func(t *verb) (int, error) {
		object := ""
		if len(list) > 0 {
			object = string(list[0].ID)
		}
		fresh, _, err := once(t, op, "ledger.post", object, func() (fresh int, err error) {
			for _, x := range list {
				posted, err := t.postOnce(op.Actor, x)
				if err != nil {
					return 0, fmt.Errorf("transaction %s: %w", x.ID, err)
				}
				fresh += posted
			}
			return fresh, nil
		})
		return fresh, err
	})
}

// postOnce appends a transaction that is not there yet, and says how many that is.
func (t *verb) postOnce(actor offpeak.Actor, x ledger.Transaction) (int, error) {
	if slices.ContainsFunc(t.writes.rows[addTransaction], func(row []any) bool { return row[0] == string(x.ID) }) {
		return 0, &ledger.ConflictError{Transaction: x.ID, Field: "place: it is in the list twice"}
	}
	stored, err := t.transactions(`t.id = $1`, string(x.ID))
	if err != nil {
		return 0, err
	}
	if len(stored) > 0 {
		return 0, x.Again(stored[0])
	}
	x.At = t.now
	e := offpeak.Event{Type: "ledger." + string(x.Kind), Data: data(told{x.ID, max(x.Entries[0].Amount, -x.Entries[0].Amount)})}
	for _, entry := range x.Entries {
		if entry.Account.Of == "" {
			continue
		}
		if _, err := t.account(entry.Account.Of); err != nil {
			return 0, fmt.Errorf("account %s: %w", entry.Account.Of, err)
		}
		e.Account = entry.Account.Of
	}
	if err := t.post(x); err != nil {
		return 0, err
	}
	t.event(e)
	t.audit(actor, e.Type, string(x.ID), "done")
	return 1, nil
}

// told is what the event of a deposit or payout says.
type told struct {
	Transaction ledger.TransactionID `json:"transaction"`
	Amount      offpeak.MicroCredits `json:"amount"`
}

// Transactions returns those of the ids that there are.
func (s *Store) Transactions(ctx context.Context, ids []ledger.TransactionID) ([]ledger.Transaction, error) {
	return read(ctx, s, "read transactions", func(t *verb) ([]ledger.Transaction, error) {
		where, arg := oneOf("t.id", ids)
		return t.transactions(where, arg)
	})
}

// transactions reads transactions with their entries, in the order in which they were
// appended.
func (t *verb) transactions(where string, args ...any) ([]ledger.Transaction, error) {
	var out []ledger.Transaction
	err := t.each(`SELECT t.id, t.kind, t.at, t.job, t.lease, t.attempt, t.term, t.external, t.minimum, e.account, e.part, e.amount
		FROM transactions t JOIN entries e ON e.transaction_id = t.id WHERE `+where+` ORDER BY t.n, e.account, e.part`, args, func(r Rows) error {
		var x ledger.Transaction
		var e ledger.Entry
		var at int64
		err := r.Scan(&x.ID, &x.Kind, &at, &x.Subject.Job, &x.Subject.Lease, &x.Subject.Attempt, &x.Subject.Term, &x.Subject.External, &x.Subject.Minimum, &e.Account.Of, &e.Account.Part, &e.Amount)
		if n := len(out); n > 0 && out[n-1].ID == x.ID {
			out[n-1].Entries = append(out[n-1].Entries, e)
			return err
		}
		x.At, x.Entries = moment(at), []ledger.Entry{e}
		out = append(out, x)
		return err
	})
	return out, err
}

// Balances returns what an account has.
func (s *Store) Balances(ctx context.Context, account offpeak.AccountID) (store.Balances, error) {
	return read(ctx, s, "read balances of "+string(account), func(t *verb) (b store.Balances, err error) {
		if _, err = t.account(account); err != nil {
			return b, err
		}
		if b.Available, err = t.balance(ledger.Available(account)); err != nil {
			return b, err
		}
		b.Held, err = t.balance(ledger.Held(account))
		return b, err
	})
}

// Totals sums the balances of each part.
func (s *Store) Totals(ctx context.Context) (map[ledger.Part]offpeak.MicroCredits, error) {
	return read(ctx, s, "sum the ledger", func(t *verb) (map[ledger.Part]offpeak.MicroCredits, error) {
		out := make(map[ledger.Part]offpeak.MicroCredits)
		// PostgreSQL sums integers to a type of its own.
		err := t.each(`SELECT part, CAST(SUM(balance) AS BIGINT) FROM balances GROUP BY part`, nil, func(r Rows) error {
			var part ledger.Part
			var sum offpeak.MicroCredits
			err := r.Scan(&part, &sum)
			out[part] = sum
			return err
		})
		return out, err
	})
}

// Receipts returns the lines of what a job's settled attempts cost.
func (s *Store) Receipts(ctx context.Context, account offpeak.AccountID, job offpeak.JobID) ([]ledger.Receipt, error) {
	out, err := read(ctx, s, "read receipts of job "+string(job), func(t *verb) ([]ledger.Receipt, error) {
		var out []ledger.Receipt
		err := t.each(`SELECT line FROM receipts WHERE job = $1 AND ($2 = '' OR payer = $2 OR owner = $2)`, []any{string(job), string(account)}, func(r Rows) error {
			var text string
			if err := r.Scan(&text); err != nil {
				return err
			}
			out = append(out, ledger.Receipt{})
			return json.Unmarshal([]byte(text), &out[len(out)-1])
		})
		if err != nil || len(out) > 0 {
			return out, err
		}
		// Nothing was charged yet, or there is no such job for this account.
		_, err = s.job(t, account, job)
		return nil, err
	})
	slices.SortFunc(out, func(a, b ledger.Receipt) int {
		if a.Attempt != b.Attempt {
			return int(a.Attempt) - int(b.Attempt)
		}
		return a.Term.N - b.Term.N
	})
	return out, err
}

// Earned sums what a node earned since each of the moments.
func (s *Store) Earned(ctx context.Context, node offpeak.NodeID, since ...time.Time) ([]offpeak.MicroCredits, error) {
	return read(ctx, s, "sum earnings of node "+string(node), func(t *verb) ([]offpeak.MicroCredits, error) {
		out := make([]offpeak.MicroCredits, len(since))
		for i, from := range since {
			err := t.each(`SELECT CAST(COALESCE(sum(earned), 0) AS BIGINT) FROM receipts WHERE node = $1 AND node <> '' AND at >= $2`, []any{string(node), micros(from)}, func(r Rows) error {
				return r.Scan((*int64)(&out[i]))
			})
			if err != nil {
				return nil, err
			}
		}
		return out, nil
	})
}

// Statement walks over the transactions of an account.
func (s *Store) Statement(ctx context.Context, account offpeak.AccountID) iter.Seq2[ledger.Transaction, error] {
	const page = 500
	return func(yield func(ledger.Transaction, error) bool) {
		for after, more := int64(0), true; more; {
			list, err := read(ctx, s, "read statement of "+string(account), func(t *verb) ([]ledger.Transaction, error) {
				var ns []int64
				err := t.each(`SELECT DISTINCT t.n FROM entries e JOIN transactions t ON t.id = e.transaction_id WHERE e.account = $1 AND t.n > $2 ORDER BY t.n LIMIT $3`,
					[]any{string(account), after, int64(page)}, func(r Rows) error {
						ns = append(ns, 0)
						return r.Scan(&ns[len(ns)-1])
					})
				if err != nil || len(ns) == 0 {
					more = false
					return nil, err
				}
				first, last := ns[0], ns[len(ns)-1]
				after, more = last, len(ns) == page
				return t.transactions(`t.n >= $1 AND t.n <= $2 AND EXISTS (SELECT 1 FROM entries o WHERE o.transaction_id = t.id AND o.account = $3)`, first, last, string(account))
			})
			if err != nil {
				yield(ledger.Transaction{}, err)
				return
			}
			for _, x := range list {
				if !yield(x, nil) {
					return
				}
			}
		}
	}
}

// Bill takes the next step of leases for which it is due.
func (s *Store) Bill(ctx context.Context, limit int) (out store.Billed, more bool, err error) {
	due, err := read(ctx, s, "look for leases to bill", func(t *verb) (due []dueLease, err error) {
		err = t.each(`SELECT l.id, l.node FROM lease_money m JOIN leases l ON l.id = m.lease WHERE m.settled = 0 AND m.due_at <= $1 ORDER BY m.due_at, m.lease LIMIT $2`,
			[]any{micros(t.now), int64(limit)}, func(r Rows) error {
				var l dueLease
				err := r.Scan(&l.id, &l.node)
				due = append(due, l)
				return err
			})
		return due, err
	})
	if err != nil || len(due) == 0 {
		return out, false, err
	}
	billed, err := writeEach(ctx, s, "bill leases", due, s.bills, refuse)
	for i, b := range billed {
		if b.v.gone != nil {
			out.Gone = append(out.Gone, *b.v.gone)
		}
		if b.v.renewed != nil {
			out.Renewed = append(out.Renewed, *b.v.renewed)
		}
		if b.err != nil && err == nil {
			err = fmt.Errorf("bill lease %s: %w", due[i].id, b.err)
		}
	}
	return out, len(due) == limit, err
}

// billed is what became of one lease; the zero value says that it stays as it is.
type billed struct {
	gone    *store.Change
	renewed *store.Renewal
}

// bills takes the next step of leases, in one transaction.
func (s *Store) bills(t *verb, due []dueLease) ([]answer[billed], error) {
	nodes, ids := make([]offpeak.NodeID, len(due)), make([]offpeak.LeaseID, len(due))
	at := make(map[offpeak.LeaseID]int, len(due))
	for i, l := range due {
		nodes[i], ids[i], at[l.id] = l.node, l.id, i
	}
	if err := t.loadNodes(forUpdate, nodes...); err != nil {
		return nil, err
	}
	where, arg := oneOf("id", ids)
	leases, err := t.leases(where+` ORDER BY id`, arg)
	if err != nil {
		return nil, err
	}
	if err := s.loadJobs(t, forUpdate, jobsOf(leases)); err != nil {
		return nil, err
	}
	if err := t.loadMoney(leases, nil); err != nil {
		return nil, err
	}
	out := make([]answer[billed], len(due))
	for _, l := range leases {
		c, err := s.bill(t, l)
		if err != nil {
			return nil, err
		}
		out[at[l.ID]].v = c
	}
	return out, nil
}

// bill holds for a lease's next interval or renews its price, and asks it to go where
// neither can be.
func (s *Store) bill(t *verb, l *lease) (out billed, err error) {
	m, err := t.money(l)
	if err != nil || m == nil || m.Settled || l.State.Terminal() {
		return out, err
	}
	j, err := s.job(t, "", l.Job)
	if err != nil {
		return out, err
	}
	f, err := t.funds(j)
	if err != nil {
		return out, err
	}
	rules := s.rules(j)
	next, list, v, err := m.Extend(rules, f, t.now, l.Metered)
	if err != nil {
		return out, err
	}
	stop, look := v.Stop, rules.Lead/4
	// Who goes already does so at the old price: the lead covers the notice.
	if v.Renew && stop == "" && l.Stop == "" && l.State == offpeak.LeaseRunning {
		n, err := t.renewer(l)
		switch {
		case err != nil:
			return out, err
		case n.heard.Before(m.Terms[len(m.Terms)-1].To):
			look = rules.Lead / 30
		default:
			price, fits := s.renewal(n.ask, j)
			if !fits {
				stop = offpeak.EndTermEnded
			} else if next, list, v, err = m.Renew(rules, f, t.now, l.Metered, price); err != nil {
				return out, err
			} else if stop = v.Stop; stop == "" {
				out.renewed = t.renew(l, &next, price)
			}
		}
	}
	if err := t.post(list...); err != nil {
		return billed{}, err
	}
	// Who is asked to go is looked at again, but not at once: money may come.
	t.changeMoney(l, &money{Lease: next, due: later(v.Next, t.now.Add(look))})
	if stop == "" || l.Stop != "" {
		return out, nil
	}
	change, err := s.stop(t, l, j, stop)
	out.gone = &change
	return out, err
}

// books are all that is stored of the ledger.
func (t *verb) books() (b ledger.Books, err error) {
	list, err := t.transactions(`1 = 1`)
	if err != nil {
		return b, err
	}
	b.Transactions = walk(list)
	var leases []ledger.LeaseFacts
	if err := t.each(`SELECT m.ledger, m.settled = 1 OR l.id IS NULL OR l.ended_at <> 0, m.reason, m.metered, m.kept, COALESCE(l.ended_at, 0)
		FROM lease_money m LEFT JOIN leases l ON l.id = m.lease ORDER BY m.lease`, nil, func(r Rows) error {
		var f ledger.LeaseFacts
		var text string
		var at int64
		if err := r.Scan(&text, &f.Ended, &f.Ending.Reason, &f.Ending.Metered, &f.Ending.Kept, &at); err != nil {
			return err
		}
		f.Ending.At = moment(at)
		leases = append(leases, f)
		return json.Unmarshal([]byte(text), &leases[len(leases)-1].Lease)
	}); err != nil {
		return b, err
	}
	b.Leases = walk(leases)
	var lines []ledger.Receipt
	if err := t.each(`SELECT line FROM receipts ORDER BY lease, term`, nil, func(r Rows) error {
		var text string
		if err := r.Scan(&text); err != nil {
			return err
		}
		lines = append(lines, ledger.Receipt{})
		return json.Unmarshal([]byte(text), &lines[len(lines)-1])
	}); err != nil {
		return b, err
	}
	b.Receipts = walk(lines)
	var balances []ledger.Balance
	err = t.each(`SELECT account, part, balance FROM balances ORDER BY account, part`, nil, func(r Rows) error {
		var x ledger.Balance
		err := r.Scan(&x.Account.Of, &x.Account.Part, &x.Amount)
		balances = append(balances, x)
		return err
	})
	b.Balances = walk(balances)
	return b, err
}

func walk[T any](list []T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, v := range list {
			if !yield(v, nil) {
				return
			}
		}
	}
}

// CheckLedger recomputes the ledger.
func (s *Store) CheckLedger(ctx context.Context) ([]store.Violation, error) {
	return read(ctx, s, "check the ledger", func(t *verb) ([]store.Violation, error) { return t.checkMoney() })
}

// checkMoney has the ledger recompute everything from what is stored.
func (t *verb) checkMoney() ([]store.Violation, error) {
	b, err := t.books()
	if err != nil {
		return nil, err
	}
	var out []store.Violation
	for f, err := range ledger.Check(b) {
		if err != nil {
			return nil, err
		}
		out = append(out, store.Violation{Invariant: f.Invariant, Object: f.Object, Detail: string(f.Kind) + ": " + f.Text})
	}
	return out, nil
}
