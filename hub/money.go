package hub

import (
	"context"
	"fmt"

	"offpeak"
	"offpeak/ledger"
	"offpeak/wire"
)

// posted takes money that came in or went out into the picture: jobs that waited
// for it are tried again at once, here and, by the events, on the hub that matches.
func (h *Hub) posted(accounts []offpeak.AccountID) {
	h.fundedNow(accounts...)
	h.wrote()
}

// fundedNow lets jobs be tried again that waited for what their accounts may have:
// money, or room in a quota.
func (h *Hub) fundedNow(accounts ...offpeak.AccountID) {
	h.mu.Lock()
	h.funded++
	for _, a := range accounts {
		h.queue.Funded(a)
	}
	h.mu.Unlock()
	h.wake()
}

// countMoney shows the ledger's sums in the metrics.
func (h *Hub) countMoney(ctx context.Context) {
	sums, err := h.money.GridBalance(ctx)
	if err != nil {
		h.env.Log.Debug("sum the ledger", "err", err)
		return
	}
	h.metrics.summed(sums)
}

// fundedAll is fundedNow for everybody, where news may have been missed.
func (h *Hub) fundedAll() {
	h.mu.Lock()
	h.funded++
	h.queue.FundedAll()
	h.mu.Unlock()
	h.wake()
}

// unpaid says why a job waits for money, with the next step.
func unpaid(funds *ledger.FundsError, has wire.Balance) string {
	const ask = "Look at `offpeak balance` and ask an admin for a deposit (`offpeak deposit`); it goes on by itself when one comes in."
	switch {
	case funds == nil:
		return fmt.Sprintf("Its account has too little money for it: %s credits are available and %s held for other leases. %s", has.Available, has.Held, ask)
	case funds.Budget:
		return fmt.Sprintf("Its budget leaves %s credits, and the next paid interval needs %s: submit it again with a larger budget.", funds.Have, funds.Need)
	}
	return fmt.Sprintf("Its account has too little money for it: the first paid interval needs %s credits, %s are available and %s held for other leases. %s", funds.Need, has.Available, has.Held, ask)
}
