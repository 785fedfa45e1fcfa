package sqlstore

import (
	"database/sql"
	"fmt"
	"time"

	"offpeak"
	"offpeak/ledger"
	"offpeak/store"
)

// renewer is what the renewal of a lease must know of its node.
type renewer struct {
	ask *offpeak.Ask
	// heard is when the node was last heard, zero where it is late or offline. A
	// term is renewed only once its node was heard after the term's end: nobody
	// knows yet whether the job still runs on one that is silent, and a term that
	// nothing runs in is neither owed nor a price that was paid. Until then the old
	// price holds, for what the node says later that it ran; if it never does, the
	// lease expires in the old term.
	heard time.Time
}

func (t *verb) renewer(l *lease) (n renewer, err error) {
	var gpu, cpu sql.NullInt64
	var liveness offpeak.Liveness
	var heard int64
	if err := t.row(`SELECT ask_gpu, ask_cpu, liveness, last_heard FROM nodes WHERE id = $1`, []any{string(l.Node)}, &gpu, &cpu, &liveness, &heard); err != nil {
		return n, fmt.Errorf("read the node of lease %s: %w", l.ID, err)
	}
	n.ask = askOf(gpu, cpu)
	if liveness == offpeak.NodeOnline {
		n.heard = moment(heard)
	}
	return n, nil
}

// renewal is the price of a job's next term where this is asked, and whether the job
// takes it.
func (s *Store) renewal(ask *offpeak.Ask, j *job) (price offpeak.Price, fits bool) {
	if ask == nil {
		return 0, false // it is offered to nobody any more
	}
	r := &j.Spec.Requirements
	price = s.cfg.Price(*ask, r)
	most := offpeak.MaxPrice
	if r.MaxPrice != nil {
		most = *r.MaxPrice
	}
	return price, price <= most
}

// renew begins a lease's next term.
func (t *verb) renew(l *lease, next *ledger.Lease, price offpeak.Price) *store.Renewal {
	ended := *next
	ended.Terms = next.Terms[:len(next.Terms)-1]
	out := &store.Renewal{Paid: *paid(l, &ended), Price: price}
	t.closeTerm(l.ID, l.Metered)
	t.later(nextTerm, string(l.ID), int64(len(next.Terms)), int64(price), micros(t.now))
	t.later(repriceLease, int64(price), int64(len(next.Terms)), string(l.ID))
	l.Price, l.term = price, len(next.Terms)
	t.event(offpeak.Event{Type: "lease.renewed", Account: l.Account, Job: l.Job, Attempt: l.Attempt, Lease: l.ID, Node: l.Node, Data: data(struct {
		Term  int           `json:"term"`
		Price offpeak.Price `json:"price"`
	}{len(next.Terms), price})})
	return out
}
