package api

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"offpeak"
	"offpeak/ledger"
	"offpeak/ledger/csvbatch"
	"offpeak/store"
	"offpeak/wire"
)

// What is no amount, no reference or no account is refused at every door with the
// rule named, and nothing moves.
func TestMoneyDoorsRefuse(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{})
	lab, _ := g.account("lab")
	if _, err := g.admin.Deposit(g.ctx(), g.op(), wire.NewMovement{External: "seed", Account: lab, Amount: "10"}); err != nil {
		t.Fatal(err)
	}
	doors := []struct{ path, body string }{
		{"/v1/deposits", `{"external":"x","account":"` + string(lab) + `","amount":%s}`},
		{"/v1/payouts", `{"external":"x","account":"` + string(lab) + `","amount":%s}`},
		{"/v1/payouts/grid", `{"external":"x","part":"fee","amount":%s}`},
		{"/v1/payouts/batch", `{"batch":"x","payouts":[{"account":"` + string(lab) + `","amount":%s}]}`},
		{"/v1/payouts/batch", `{"batch":"x","minimum":%s}`},
	}
	amounts := []string{`"-1"`, `-1`, `"NaN"`, `NaN`, `"Infinity"`, `"1e400"`, `1e400`, `"0"`, `0`, `"0.0000001"`, `"1000000000000.000001"`, `"5 EUR"`, `"$5"`, `" 5"`, `"5."`, `".5"`, `"1,5"`, `{}`, `[]`, `true`}
	for _, d := range doors {
		for _, amount := range amounts {
			g.refuses(d.path, fmt.Sprintf(d.body, amount), http.StatusUnprocessableEntity)
		}
		// A minimum that is not said is none.
		if !strings.Contains(d.body, "minimum") {
			g.refuses(d.path, fmt.Sprintf(d.body, "null"), http.StatusUnprocessableEntity)
			g.refuses(d.path, strings.Replace(d.body, `,"amount":%s`, "", 1), http.StatusUnprocessableEntity)
		}
	}
	for _, c := range []struct {
		path, body string
		status     int
	}{
		{"/v1/deposits", `{"external":"","account":"` + string(lab) + `","amount":"1"}`, 422},
		{"/v1/deposits", `{"external":"a b","account":"` + string(lab) + `","amount":"1"}`, 422},
		{"/v1/deposits", `{"external":"a,b","account":"` + string(lab) + `","amount":"1"}`, 422},
		{"/v1/deposits", `{"external":"` + strings.Repeat("a", 101) + `","account":"` + string(lab) + `","amount":"1"}`, 422},
		{"/v1/deposits", `{"external":"x","account":"","amount":"1"}`, 422},
		{"/v1/deposits", `{"external":"x","account":"` + string(lab) + `","amount":"1","currency":"EUR"}`, 422},
		{"/v1/deposits", `{"external":"x","account":"acct_nobody","amount":"1"}`, 404},
		{"/v1/deposits", `{"external":"seed","account":"` + string(lab) + `","amount":"11"}`, 409},
		{"/v1/payouts", `{"external":"x","account":"` + string(lab) + `","amount":"10.000001"}`, 402},
		{"/v1/payouts", `{"external":"x/1","account":"` + string(lab) + `","amount":"1"}`, 422},
		{"/v1/payouts/grid", `{"external":"x","part":"held","amount":"1"}`, 422},
		{"/v1/payouts/grid", `{"external":"x","part":"fee","amount":"1"}`, 402},
		{"/v1/payouts/returned", `{"external":"x"}`, 404},
		{"/v1/payouts/returned", `{}`, 422},
		{"/v1/payouts/batch", `{"batch":"a b"}`, 422},
		{"/v1/payouts/batch", `{"batch":"x","minimum":"11"}`, 409},
		{"/v1/payouts/batch", `{"batch":"x","minimum":"1","payouts":[{"account":"` + string(lab) + `","amount":"1"}]}`, 422},
		{"/v1/payouts/batch", `{"batch":"x","payouts":[{"account":"` + string(lab) + `","amount":"10.000001"}]}`, 402},
		{"/v1/deposits/batch", ``, 422},
		{"/v1/deposits/batch", strings.Repeat("a", 1<<20), 422},
		{"/v1/deposits/batch", strings.Repeat("a", wire.MaxBatch+1), 413},
	} {
		g.refuses(c.path, c.body, c.status)
	}
	for _, path := range []string{"/v1/statement?from=yesterday", "/v1/statement?format=xml", "/v1/statement?acount=x"} {
		if status, p := g.raw("GET", path, g.admin.Token, nil, nil); status != 422 || p.Code != "invalid" {
			t.Errorf("GET %s: %d %+v", path, status, p)
		}
	}
	if b, err := g.admin.Balance(g.ctx(), lab); err != nil || b.Available != 10*offpeak.Credit || b.Held != 0 {
		t.Errorf("money moved: %+v, %v", b, err)
	}
}

// refuses posts a body that must be refused with a status and a rule.
func (g *grid) refuses(path, body string, want int) {
	g.t.Helper()
	resp, err := g.admin.Raw(g.ctx(), "POST", strings.TrimPrefix(path, "/v1"), g.op(), strings.NewReader(body), "application/json")
	if err == nil {
		resp.Body.Close()
	}
	var p *wire.Problem
	if !errors.As(err, &p) || p.Status != want || p.Detail == "" {
		g.t.Errorf("POST %s %.120s: %v, want %d", path, body, err, want)
	}
}

// A batch is believed if every byte of it is what the trusted key signed, and then
// counts once. Payouts are given in the same bytes again.
func TestMoneyBatches(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{})
	lab, _ := g.account("lab")
	batch := ledger.Batch{ID: "day-1", Direction: ledger.DirectionDeposits, At: time.Date(2026, 12, 2, 0, 0, 0, 0, time.UTC)}
	const rows = 1200 // more than are posted at once
	for i := range rows {
		batch.Movements = append(batch.Movements, ledger.Movement{External: fmt.Sprintf("bank-%d", i), Account: lab, Amount: 1})
	}
	signed, err := csvbatch.Write(batch, testKey())
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(signed, []byte("\n"))
	for name, bent := range map[string][]byte{
		"cut off":   signed[:len(signed)/2],
		"altered":   bytes.Replace(signed, []byte("0.000001"), []byte("1000.00"), 1),
		"doubled":   bytes.Join(append([][]byte{lines[0], lines[1]}, lines[1:]...), nil),
		"reordered": bytes.Join(append([][]byte{lines[0], lines[2], lines[1]}, lines[3:]...), nil),
	} {
		if _, err := g.admin.ImportDeposits(g.ctx(), g.op(), bent); !errors.Is(err, offpeak.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if p, err := g.admin.ImportDeposits(g.ctx(), g.op(), signed); err != nil || p.Fresh != rows || p.Total != rows {
		t.Fatalf("imported %+v, %v", p, err)
	}
	if p, err := g.admin.ImportDeposits(g.ctx(), g.op(), signed); err != nil || p.Fresh != 0 || p.Count != rows {
		t.Errorf("imported again: %+v, %v", p, err)
	}
	// One bad row at the end refuses all.
	batch.ID, batch.Movements = "day-2", append(batch.Movements[:1], ledger.Movement{External: "new", Account: lab, Amount: 5}, ledger.Movement{External: "bank-1", Account: lab, Amount: 2})
	if signed, err = csvbatch.Write(batch, testKey()); err != nil {
		t.Fatal(err)
	}
	if _, err := g.admin.ImportDeposits(g.ctx(), g.op(), signed); !errors.Is(err, offpeak.ErrOperationConflict) {
		t.Errorf("a reference used for another amount: %v", err)
	}
	out, err := g.admin.ExportPayouts(g.ctx(), g.op(), wire.NewPayouts{Batch: "week-1"})
	if err != nil {
		t.Fatal(err)
	}
	paid, err := csvbatch.Read(out.Data, testKey().Public().(ed25519.PublicKey))
	if err != nil || len(paid.Movements) != 1 || paid.Movements[0].Amount != rows {
		t.Errorf("paid %+v, %v", paid, err)
	}
	if again, err := g.admin.ExportPayouts(g.ctx(), g.op(), wire.NewPayouts{Batch: "week-1"}); err != nil || out.Again || !again.Again || !bytes.Equal(again.Data, out.Data) {
		t.Errorf("the same batch again: %v\n%+v\n%+v", err, out, again)
	}
	other := wire.NewPayouts{Batch: "week-1", Payouts: []wire.Payout{{Account: lab, Amount: "1"}}}
	if _, err := g.admin.ExportPayouts(g.ctx(), g.op(), other); !errors.Is(err, offpeak.ErrConflict) {
		t.Errorf("other payouts under its name: %v", err)
	}
	if _, err := g.admin.ReturnPayout(g.ctx(), g.op(), wire.NewReturn{External: "week-1/1"}); err != nil {
		t.Error(err)
	}
	b, err := g.admin.GridBalance(g.ctx())
	if want := (wire.GridBalance{Deposits: rows, Available: rows}); err != nil || b != want {
		t.Errorf("in the end %+v, %v", b, err)
	}
	if c, err := g.admin.CheckLedger(g.ctx()); err != nil || !c.OK {
		t.Errorf("check: %+v, %v", c, err)
	}
}

// Accounts see their own money: balances, statements, and of a job's receipt the
// lines that they paid or were paid by.
func TestMoneyIsOnesOwn(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{})
	ctx := g.ctx()
	lab, payers := g.account("lab")
	shed, owners := g.account("shed")
	_, strangers := g.account("strangers")
	node := g.enrol(owners[offpeak.RoleOwner], "tower")
	node.beat(t, ctx)
	if _, err := g.admin.Deposit(ctx, g.op(), wire.NewMovement{External: "b", Account: lab, Amount: "1000"}); err != nil {
		t.Fatal(err)
	}
	asks := spec()
	asks.Requirements.Where = map[string]string{"room": "none"}
	j, err := payers[offpeak.RoleSubmitter].Submit(ctx, g.op(), asks)
	if err != nil {
		t.Fatal(err)
	}
	// The hub gives it to no node, so the store is asked.
	claimed, err := g.hub.Store().Claim(ctx, []store.Claim{{Job: j.ID, Attempt: 1, Node: node.node, Lease: "lease_1", Price: offpeak.Price(3600 * offpeak.Credit), Resources: offpeak.Resources{CPU: 1000}, OfferFor: time.Minute}})
	if err != nil || claimed[0].Err != nil {
		t.Fatal(err, claimed)
	}
	if b, err := payers[offpeak.RoleViewer].Balance(ctx, ""); err != nil || b.Account != lab || b.Held == 0 || b.Available+b.Held != 1000*offpeak.Credit {
		t.Errorf("while it is leased: %+v, %v", b, err)
	}
	if _, err := payers[offpeak.RoleSubmitter].Cancel(ctx, g.op(), j.ID); err != nil {
		t.Fatal(err)
	}
	if b, err := payers[offpeak.RoleViewer].Balance(ctx, ""); err != nil || b.Held != 0 || b.Available != 1000*offpeak.Credit {
		t.Errorf("after the end: %+v, %v", b, err)
	}
	for who, d := range map[string]*wire.Direct{"payer": payers[offpeak.RoleViewer], "owner": owners[offpeak.RoleViewer], "admin": g.admin} {
		if r, err := d.Receipt(ctx, j.ID); err != nil || len(r.Lines) != 1 || r.Lines[0].Owner != shed || r.Total != r.Lines[0].Charged {
			t.Errorf("%s: receipt %+v, %v", who, r, err)
		}
	}
	// A node is told what it brought itself; the charge of a job that was cancelled before
	// it began is nothing. Its owner's tokens have their statement instead.
	if e, err := node.Earned(ctx, time.Now()); err != nil || e.Total != 0 || e.At.IsZero() {
		t.Errorf("the node earned %+v, %v", e, err)
	}
	if _, err := owners[offpeak.RoleOwner].Earned(ctx, time.Now()); !errors.Is(err, offpeak.ErrForbidden) {
		t.Errorf("an owner's token asks as a node: %v", err)
	}
	if status, p := g.raw("GET", "/v1/node/earnings?today=now", node.Token, nil, nil); status != 422 {
		t.Errorf("a day that is none: %d %+v", status, p)
	}
	if r, err := strangers[offpeak.RoleViewer].Receipt(ctx, j.ID); !errors.Is(err, offpeak.ErrNotFound) {
		t.Errorf("a stranger's receipt: %+v, %v", r, err)
	}
	if _, err := strangers[offpeak.RoleViewer].Balance(ctx, lab); !errors.Is(err, offpeak.ErrForbidden) {
		t.Errorf("a stranger's balance: %v", err)
	}
	if _, err := g.admin.Balance(ctx, "acct_nobody"); !errors.Is(err, offpeak.ErrNotFound) {
		t.Errorf("nobody's balance: %v", err)
	}
	read := func(d *wire.Direct, q url.Values) string {
		t.Helper()
		body, err := d.Statement(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		defer body.Close()
		text, err := io.ReadAll(body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	text := read(payers[offpeak.RoleViewer], url.Values{"format": {"csv"}})
	if lines := strings.Split(strings.TrimSpace(text), "\n"); len(lines) != 4 || !strings.HasSuffix(lines[3], "1000.00,0.00") || strings.Contains(text, string(shed)) {
		t.Errorf("the statement is:\n%s", text)
	}
	if text := read(payers[offpeak.RoleViewer], url.Values{"until": {"2020-01-01T00:00:00Z"}}); text != "" {
		t.Errorf("before all: %s", text)
	}
	if text := read(strangers[offpeak.RoleViewer], nil); text != "" {
		t.Errorf("a stranger's statement: %s", text)
	}
}

// testKey signs what the tests' hub trusts.
func testKey() ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize))
}
