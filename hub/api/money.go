package api

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"offpeak"
	"offpeak/wire"
)

func (a *api) deposit(ctx context.Context, c *caller, _ *none) (wire.Posted, error) {
	in, err := decode[wire.NewMovement](c.body)
	if err != nil {
		return wire.Posted{}, err
	}
	return a.hub.Money().Deposit(ctx, c.op, in)
}

func (a *api) importDeposits(ctx context.Context, c *caller, _ *none) (wire.Posted, error) {
	return a.hub.Money().ImportDeposits(ctx, c.op, c.body)
}

func (a *api) payout(ctx context.Context, c *caller, _ *none) (wire.Posted, error) {
	in, err := decode[wire.NewMovement](c.body)
	if err != nil {
		return wire.Posted{}, err
	}
	return a.hub.Money().Payout(ctx, c.op, in)
}

func (a *api) gridPayout(ctx context.Context, c *caller, _ *none) (wire.Posted, error) {
	in, err := decode[wire.NewGridPayout](c.body)
	if err != nil {
		return wire.Posted{}, err
	}
	return a.hub.Money().GridPayout(ctx, c.op, in)
}

func (a *api) returnPayout(ctx context.Context, c *caller, _ *none) (wire.Posted, error) {
	in, err := decode[wire.NewReturn](c.body)
	if err != nil {
		return wire.Posted{}, err
	}
	return a.hub.Money().Return(ctx, c.op, in)
}

func (a *api) exportPayouts(w http.ResponseWriter, r *http.Request, c *caller) error {
	in, err := decode[wire.NewPayouts](c.body)
	if err != nil {
		return err
	}
	batch, err := a.hub.Money().ExportPayouts(r.Context(), c.op, in)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/csv")
	w.Header().Set("Content-Disposition", "attachment")
	if batch.Again {
		w.Header().Set(wire.HeaderAgain, "true")
	}
	_, err = w.Write(batch.Data)
	return err
}

// holder is whose money a request is about: the caller's own, or of an admin's
// choice.
func (a *api) holder(ctx context.Context, c *caller, account string) (offpeak.AccountID, error) {
	if account == "" {
		return c.token.Account, nil
	}
	return a.scoped(ctx, c, account)
}

type balanceQuery struct{ Scope }

func (a *api) balance(ctx context.Context, c *caller, in *balanceQuery) (wire.Balance, error) {
	account, err := a.holder(ctx, c, in.Account)
	if err != nil {
		return wire.Balance{}, err
	}
	return a.hub.Money().Balance(ctx, account)
}

func (a *api) gridBalance(ctx context.Context, _ *caller, _ *none) (wire.GridBalance, error) {
	return a.hub.Money().GridBalance(ctx)
}

func (a *api) receipt(ctx context.Context, c *caller, in *JobPath) (wire.Receipt, error) {
	return a.hub.Money().Receipt(ctx, c.account, in.Job)
}

// statementTime bounds how long a statement may take on its way.
const statementTime = 10 * time.Minute

func (a *api) statement(w http.ResponseWriter, r *http.Request, c *caller) error {
	q := r.URL.Query()
	for name := range q {
		if !slices.Contains([]string{"account", "from", "until", "format"}, name) {
			return &offpeak.FieldError{Field: "query." + clip(name), Rule: "is not known here; there is account, from, until, format"}
		}
	}
	account, err := a.holder(r.Context(), c, q.Get("account"))
	if err != nil {
		return err
	}
	from, err := moment("from", q.Get("from"))
	if err != nil {
		return err
	}
	until, err := moment("until", q.Get("until"))
	if err != nil {
		return err
	}
	format := q.Get("format")
	if format == "" && strings.Contains(r.Header.Get("Accept"), "text/csv") {
		format = "csv"
	}
	if err := bound(http.NewResponseController(w).SetWriteDeadline, statementTime); err != nil {
		return err
	}
	lines := a.hub.Money().Statement(r.Context(), account, from, until)
	switch format {
	case "", "json":
		return writeJSONLines(w, lines)
	case "csv":
		return writeCSV(w, lines)
	}
	return &offpeak.FieldError{Field: "query.format", Value: clip(format), Rule: "is json or csv"}
}

func moment(name, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, &offpeak.FieldError{Field: "query." + name, Value: clip(text), Rule: "is a moment, for example 2026-12-02T23:00:00Z"}
	}
	return at, nil
}

// writeJSONLines writes nothing before the first line is there, so that an error
// of its reading is answered as one.
func writeJSONLines(w http.ResponseWriter, lines iter.Seq2[wire.StatementLine, error]) error {
	w.Header().Set("Content-Type", "application/x-ndjson")
	enc := json.NewEncoder(w)
	for line, err := range lines {
		if err != nil {
			return fmt.Errorf("write statement: %w", err)
		}
		if err := enc.Encode(line); err != nil {
			return err
		}
	}
	return nil
}

func writeCSV(w http.ResponseWriter, lines iter.Seq2[wire.StatementLine, error]) error {
	w.Header().Set("Content-Type", "text/csv")
	out := csv.NewWriter(w)
	if err := out.Write([]string{"at", "transaction", "kind", "job", "attempt", "external", "available", "held", "available_after", "held_after"}); err != nil {
		return err
	}
	for l, err := range lines {
		if err != nil {
			out.Flush()
			return fmt.Errorf("write statement: %w", err)
		}
		attempt := ""
		if l.Attempt > 0 {
			attempt = strconv.Itoa(int(l.Attempt))
		}
		if err := out.Write([]string{l.At.Format(time.RFC3339Nano), plain(l.Transaction), l.Kind, plain(string(l.Job)), attempt, plain(l.External),
			l.Available.String(), l.Held.String(), l.AvailableAfter.String(), l.HeldAfter.String()}); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

// plain keeps a spreadsheet from taking a reference of the world's for a formula.
func plain(s string) string {
	if s != "" && strings.ContainsRune("=+-@", rune(s[0])) {
		return "'" + s
	}
	return s
}
