package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"offpeak"
)

// MaxBatch bounds a signed batch of deposits, and of payouts, on its way.
const MaxBatch = 32 << 20

// NewMovement asks for one deposit or payout.
type NewMovement struct {
	External string            `json:"external" doc:"the world's reference; the same one counts once"`
	Account  offpeak.AccountID `json:"account"`
	Amount   string            `json:"amount" doc:"credits with at most six decimals, for example \"12.50\""`
}

// NewGridPayout takes out what the operator earned or what rounding left.
type NewGridPayout struct {
	External string `json:"external"`
	Part     string `json:"part" doc:"fee or rounding"`
	Amount   string `json:"amount"`
}

// NewReturn gives back a payout that did not arrive.
type NewReturn struct {
	External string `json:"external" doc:"the payout's reference"`
}

// Earnings is what a node brought its owner by the jobs of others, less the
// operator's fee: GET /v1/node/earnings. What still runs is not settled yet.
type Earnings struct {
	Today offpeak.MicroCredits `json:"today" doc:"since today began"`
	Week  offpeak.MicroCredits `json:"week" doc:"in the last seven days"`
	Total offpeak.MicroCredits `json:"total"`
	// At is when it was summed, by the hub's clock.
	At time.Time `json:"at"`
}

// Posted says what became of deposits or payouts.
type Posted struct {
	// Transactions are their ids in the ledger, in the order of the request; at most the first 1000.
	Transactions []string             `json:"transactions"`
	Total        offpeak.MicroCredits `json:"total" doc:"micro-credits"`
	Count        int                  `json:"count"`
	// Fresh is how many were new: the others were there already, as they are here.
	Fresh int `json:"fresh"`
}

// NewPayouts asks for a signed batch of payouts, which are posted with it.
type NewPayouts struct {
	Batch string `json:"batch" doc:"names the batch: asked for again as it was, it gives the same bytes"`
	// Payouts are what to pay; none: what every account has, from Minimum on.
	Payouts []Payout `json:"payouts,omitempty"`
	Minimum string   `json:"minimum,omitempty" doc:"credits; without payouts"`
}

// Payout is one row of a batch of payouts.
type Payout struct {
	Account offpeak.AccountID `json:"account"`
	Amount  string            `json:"amount"`
}

// SignedPayouts is a signed batch of payouts.
type SignedPayouts struct {
	Data []byte
	// Again says that the batch had been posted before: nothing was this time.
	Again bool
}

// Balance is what an account has.
type Balance struct {
	Account   offpeak.AccountID    `json:"account"`
	Available offpeak.MicroCredits `json:"available" doc:"micro-credits that may be spent or paid out"`
	Held      offpeak.MicroCredits `json:"held" doc:"micro-credits set aside for leases"`
}

// GridBalance is what all accounts and the grid itself have.
type GridBalance struct {
	Deposits  offpeak.MicroCredits `json:"deposits" doc:"micro-credits that came in"`
	Payouts   offpeak.MicroCredits `json:"payouts" doc:"micro-credits that went out"`
	Available offpeak.MicroCredits `json:"available"`
	Held      offpeak.MicroCredits `json:"held"`
	Fee       offpeak.MicroCredits `json:"fee"`
	Rounding  offpeak.MicroCredits `json:"rounding"`
}

// Receipt is what a job's settled attempts cost.
type Receipt struct {
	Job   offpeak.JobID `json:"job"`
	Lines []ReceiptLine `json:"lines"`
	// Total is what the lines charge.
	Total offpeak.MicroCredits `json:"total"`
}

// ReceiptLine is one price term of one attempt: billed_ms × price / 3,600,000,
// rounded down to a micro-credit, is what was charged.
type ReceiptLine struct {
	Lease   offpeak.LeaseID   `json:"lease"`
	Attempt offpeak.Attempt   `json:"attempt"`
	Payer   offpeak.AccountID `json:"payer"`
	Owner   offpeak.AccountID `json:"owner"`
	Term    int               `json:"term"`
	Price   offpeak.Price     `json:"price" doc:"micro-credits an hour"`
	Metered offpeak.Millis    `json:"metered_ms"`
	Paid    offpeak.Millis    `json:"paid_ms" doc:"the time that was held for"`
	Kept    offpeak.Millis    `json:"kept_ms"`
	Reason  offpeak.EndReason `json:"reason"`
	Rule    offpeak.Charge    `json:"rule"`
	Billed  offpeak.Millis    `json:"billed_ms"`
	// Charged is what the payer paid; the owner, the operator and rounding share it.
	Charged  offpeak.MicroCredits `json:"charged"`
	Fee      int                  `json:"fee_basis_points"`
	Earned   offpeak.MicroCredits `json:"owner_earned"`
	Operator offpeak.MicroCredits `json:"operator_fee"`
	Rounding offpeak.MicroCredits `json:"rounding"`
}

// StatementLine is one transaction of an account: what it changed and what the
// account had after it.
type StatementLine struct {
	At             time.Time            `json:"at"`
	Transaction    string               `json:"transaction"`
	Kind           string               `json:"kind"`
	Job            offpeak.JobID        `json:"job,omitempty"`
	Attempt        offpeak.Attempt      `json:"attempt,omitempty"`
	External       string               `json:"external,omitempty"`
	Available      offpeak.MicroCredits `json:"available"`
	Held           offpeak.MicroCredits `json:"held"`
	AvailableAfter offpeak.MicroCredits `json:"available_after"`
	HeldAfter      offpeak.MicroCredits `json:"held_after"`
}

// Deposit puts money into an account.
func (d *Direct) Deposit(ctx context.Context, op offpeak.OpID, in NewMovement) (out Posted, err error) {
	err = d.Do(ctx, http.MethodPost, "/deposits", op, in, &out)
	return out, err
}

// ImportDeposits posts the deposits of a signed batch.
func (d *Direct) ImportDeposits(ctx context.Context, op offpeak.OpID, batch []byte) (out Posted, err error) {
	resp, err := d.Raw(ctx, http.MethodPost, "/deposits/batch", op, bytes.NewReader(batch), "application/octet-stream")
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	err = answered(resp.Body, &out)
	return out, err
}

// Payout takes money out of an account.
func (d *Direct) Payout(ctx context.Context, op offpeak.OpID, in NewMovement) (out Posted, err error) {
	err = d.Do(ctx, http.MethodPost, "/payouts", op, in, &out)
	return out, err
}

// GridPayout takes out what the operator earned or rounding left.
func (d *Direct) GridPayout(ctx context.Context, op offpeak.OpID, in NewGridPayout) (out Posted, err error) {
	err = d.Do(ctx, http.MethodPost, "/payouts/grid", op, in, &out)
	return out, err
}

// ReturnPayout gives back a payout that did not arrive.
func (d *Direct) ReturnPayout(ctx context.Context, op offpeak.OpID, in NewReturn) (out Posted, err error) {
	err = d.Do(ctx, http.MethodPost, "/payouts/returned", op, in, &out)
	return out, err
}

// ExportPayouts posts payouts and returns them as a signed batch.
func (d *Direct) ExportPayouts(ctx context.Context, op offpeak.OpID, in NewPayouts) (out SignedPayouts, err error) {
	body, err := encode(in)
	if err != nil {
		return out, err
	}
	resp, err := d.Raw(ctx, http.MethodPost, "/payouts/batch", op, body, "application/json")
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	if out.Data, err = io.ReadAll(io.LimitReader(resp.Body, MaxBatch)); err != nil {
		return out, fmt.Errorf("read answer: %w", errors.Join(offpeak.ErrUnavailable, err))
	}
	out.Again = resp.Header.Get(HeaderAgain) != ""
	return out, nil
}

// Balance says what an account has; "" is the caller's own.
func (d *Direct) Balance(ctx context.Context, account offpeak.AccountID) (out Balance, err error) {
	err = d.Do(ctx, http.MethodGet, "/balance?"+ofAccount(account).Encode(), "", nil, &out)
	return out, err
}

// GridBalance says what all accounts and the grid itself have.
func (d *Direct) GridBalance(ctx context.Context) (out GridBalance, err error) {
	err = d.Do(ctx, http.MethodGet, "/balance/grid", "", nil, &out)
	return out, err
}

// Receipt says what a job's settled attempts cost.
func (d *Direct) Receipt(ctx context.Context, job offpeak.JobID) (out Receipt, err error) {
	err = d.Do(ctx, http.MethodGet, "/jobs/"+url.PathEscape(string(job))+"/receipt", "", nil, &out)
	return out, err
}

// Statement opens an account's statement: a StatementLine as JSON a line, or CSV
// with format=csv. Query parameters: account (admins), from, until, format. The
// caller closes it.
func (d *Direct) Statement(ctx context.Context, q url.Values) (io.ReadCloser, error) {
	resp, err := d.Raw(ctx, http.MethodGet, "/statement?"+q.Encode(), "", nil, "")
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// CheckLedger recomputes the ledger on the live store.
func (d *Direct) CheckLedger(ctx context.Context) (out Checked, err error) {
	err = d.Do(ctx, http.MethodGet, "/check?ledger=true", "", nil, &out)
	return out, err
}

func ofAccount(account offpeak.AccountID) url.Values {
	if account == "" {
		return url.Values{}
	}
	return url.Values{"account": {string(account)}}
}
