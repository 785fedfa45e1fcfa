package sqlstore

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"offpeak"
	"offpeak/ledger"
)

// Balances are read without a lock and written by what is added to them, in the order
// of their accounts: the schema's CHECK refuses what another hub spent meanwhile, and
// the verb runs again. So accounts are locked for no longer than it takes to write.

// balance is what an account was read to have, and whether it has a row for it.
type balance struct {
	has   offpeak.MicroCredits
	there bool
}

// loadMoney reads the ledger's side of leases that may end, and the balances which
// their ends and the claims of payers move: one by one would be a round trip each.
// What has no price costs none.
func (t *verb) loadMoney(leases []*lease, payers []offpeak.AccountID) error {
	byID := make(map[offpeak.LeaseID]*lease)
	var ids []offpeak.LeaseID
	for _, l := range leases {
		if l.priced() && l.money == nil && byID[l.ID] == nil {
			byID[l.ID], ids = l, append(ids, l.ID)
		}
	}
	accounts := slices.Clone(payers)
	if len(ids) > 0 {
		where, arg := oneOf("lease", ids)
		if err := t.each(`SELECT lease, ledger, due_at, charged FROM lease_money WHERE `+where, []any{arg}, func(r Rows) error {
			var id offpeak.LeaseID
			m, err := scanMoney(r, &id)
			if l := byID[id]; err == nil && l != nil {
				l.money = m
				accounts = append(accounts, m.Payer, m.Owner)
			}
			return err
		}); err != nil {
			return fmt.Errorf("read the money of leases: %w", err)
		}
	}
	if len(accounts) == 0 {
		return nil
	}
	accounts = append(accounts, "") // the grid's own, for fees and rounding
	slices.Sort(accounts)
	accounts = slices.DeleteFunc(slices.Compact(accounts), func(id offpeak.AccountID) bool {
		_, known := t.rows.balances[ledger.Available(id)]
		return known
	})
	if len(accounts) == 0 {
		return nil
	}
	where, arg := oneOf("account", accounts)
	if err := t.each(`SELECT account, part, balance FROM balances WHERE `+where, []any{arg}, func(r Rows) error {
		var a ledger.Account
		var has offpeak.MicroCredits
		err := r.Scan(&a.Of, &a.Part, &has)
		keep(&t.rows.balances, a, balance{has, true})
		return err
	}); err != nil {
		return fmt.Errorf("read balances: %w", err)
	}
	for _, id := range accounts {
		for _, part := range []ledger.Part{ledger.PartAvailable, ledger.PartHeld, ledger.PartFee, ledger.PartRounding} {
			keep(&t.rows.balances, ledger.Account{Of: id, Part: part}, balance{})
		}
	}
	return nil
}

// balance is what an account has, with what the verb has posted so far.
func (t *verb) balance(a ledger.Account) (offpeak.MicroCredits, error) {
	b, known := t.rows.balances[a]
	if !known {
		err := t.row(`SELECT balance FROM balances WHERE account = $1 AND part = $2`, []any{string(a.Of), string(a.Part)}, &b.has)
		if err != nil && !errors.Is(err, offpeak.ErrNotFound) {
			return 0, err
		}
		b.there = err == nil
		keep(&t.rows.balances, a, b)
	}
	return b.has + t.posted()[a], nil
}

// posted sums what the verb posts to each account.
func (t *verb) posted() map[ledger.Account]offpeak.MicroCredits {
	entries := t.writes.rows[addEntry]
	if t.rows.posted == nil || t.rows.summed > len(entries) {
		t.rows.posted, t.rows.summed = make(map[ledger.Account]offpeak.MicroCredits), 0
	}
	for _, e := range entries[t.rows.summed:] {
		t.rows.posted[ledger.Account{Of: offpeak.AccountID(e[1].(string)), Part: ledger.Part(e[2].(string))}] += offpeak.MicroCredits(e[3].(int64))
	}
	t.rows.summed = len(entries)
	return t.rows.posted
}

// post appends transactions.
func (t *verb) post(list ...ledger.Transaction) error {
	for _, x := range list {
		var failed error
		_, err := ledger.Apply(x, func(a ledger.Account) offpeak.MicroCredits {
			have, err := t.balance(a)
			failed = errors.Join(failed, err)
			return have
		})
		if failed != nil {
			return failed // what was made of a balance that was not read says nothing
		}
		if err != nil {
			return err
		}
		s := x.Subject
		t.later(addTransaction, string(x.ID), string(x.Kind), micros(x.At), string(s.Job), string(s.Lease), int64(s.Attempt), int64(s.Term), s.External, int64(s.Minimum))
		for _, e := range x.Entries {
			t.later(addEntry, string(x.ID), string(e.Account.Of), string(e.Account.Part), int64(e.Amount))
		}
	}
	return nil
}

// moveBalances has the balances written that entries change, each once.
func (t *verb) moveBalances() {
	if len(t.writes.rows[addEntry]) == 0 {
		return
	}
	sums := t.posted()
	for _, a := range slices.SortedFunc(maps.Keys(sums), func(a, b ledger.Account) int { return strings.Compare(a.String(), b.String()) }) {
		if !t.rows.balances[a].there {
			t.later(openBalance, string(a.Of), string(a.Part))
		}
		t.later(moveBalance, int64(sums[a]), string(a.Of), string(a.Part))
	}
}
