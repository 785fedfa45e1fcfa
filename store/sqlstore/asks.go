package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"offpeak"
	"offpeak/store"
)

// maxPlan bounds the text of a plan.
const maxPlan = 64 << 10

// firstAsk is what a node asks that has just enrolled: nothing of anybody until its
// account's plan has been read, or else no money.
func (t *verb) firstAsk(id offpeak.NodeID, account offpeak.AccountID) error {
	planned, err := t.exists(`SELECT 1 FROM plans WHERE account = $1 AND node = ''`, string(account))
	if err != nil {
		return err
	}
	if planned {
		return t.must(`UPDATE nodes SET ask_gpu = NULL, ask_cpu = NULL, ask_due = $1 WHERE id = $2`, micros(t.now), string(id))
	}
	_, err = t.Exec(`INSERT INTO asks (node, revision, account, from_at, gpu, cpu) VALUES ($1, 0, $2, $3, 0, 0)`, string(id), string(account), micros(t.now))
	return err
}

// SetPlan stores what an owner asks.
func (s *Store) SetPlan(ctx context.Context, op store.Op, account offpeak.AccountID, node offpeak.NodeID, plan json.RawMessage, until time.Time) ([]offpeak.NodeID, error) {
	object := string(node)
	if node == "" {
		object = string(account)
	}
	if len(plan) > maxPlan || len(plan) > 0 && !json.Valid(plan) || !utf8.Valid(plan) {
		return nil, &offpeak.FieldError{Field: "plan", Rule: "is JSON of at most 64 KiB, in UTF-8"}
	}
	return write(ctx, s, "set what is asked for "+object, func(t *verb) ([]offpeak.NodeID, error) {
		out, _, err := once(t, op, "ask.plan", object, func() ([]offpeak.NodeID, error) {
			if !until.IsZero() && !until.After(t.now) {
				return nil, &offpeak.FieldError{Field: "until", Value: until.Format(time.RFC3339), Rule: "is a time to come: from then on the node is offered to nobody"}
			}
			return t.plan(account, node, plan)
		})
		return out, err
	})
}

func (t *verb) plan(account offpeak.AccountID, node offpeak.NodeID, plan json.RawMessage) ([]offpeak.NodeID, error) {
	if node != "" {
		n, err := t.node(account, node)
		if err != nil {
			return nil, err
		}
		account = n.Account
	}
	if err := t.Lock(`SELECT 1 FROM accounts WHERE id = $1`+forUpdate, string(account)); err != nil {
		return nil, err
	}
	if _, err := t.account(account); err != nil {
		return nil, err
	}
	var err error
	if len(plan) == 0 {
		_, err = t.Exec(`DELETE FROM plans WHERE account = $1 AND node = $2`, string(account), string(node))
	} else {
		_, err = t.Exec(`INSERT INTO plans (account, node, plan, set_at) VALUES ($1, $2, $3, $4)
			ON CONFLICT (account, node) DO UPDATE SET plan = excluded.plan, set_at = excluded.set_at`, string(account), string(node), string(plan), micros(t.now))
	}
	if err != nil {
		return nil, err
	}
	ids := []offpeak.NodeID{node}
	if node == "" {
		ids = ids[:0]
		if err := t.each(`SELECT id FROM nodes n WHERE account = $1 AND removed_at = 0 AND NOT EXISTS (SELECT 1 FROM plans p WHERE p.account = n.account AND p.node = n.id) ORDER BY id`,
			[]any{string(account)}, func(r Rows) error {
				ids = append(ids, "")
				return r.Scan(&ids[len(ids)-1])
			}); err != nil {
			return nil, err
		}
	}
	if len(ids) > 0 {
		if err := t.lockNodes(ids...); err != nil {
			return nil, err
		}
		if _, err := t.Exec(`UPDATE nodes SET ask_due = $1, ask_revision = ask_revision + 1 WHERE id = ANY($2)`, micros(t.now), texts(ids)); err != nil {
			return nil, err
		}
	}
	if len(plan) == 0 {
		plan = json.RawMessage("null")
	}
	t.event(offpeak.Event{Type: "ask.plan", Account: account, Node: node, Data: data(map[string]json.RawMessage{"plan": plan})})
	return ids, nil
}

// Plan returns a plan that was set.
func (s *Store) Plan(ctx context.Context, account offpeak.AccountID, node offpeak.NodeID) (store.Plan, error) {
	return read(ctx, s, "read a plan", func(t *verb) (store.Plan, error) {
		if node != "" {
			n, err := t.node(account, node)
			if err != nil {
				return store.Plan{}, err
			}
			account = n.Account
		}
		p := store.Plan{Account: account, Node: node}
		var text string
		var at int64
		err := t.row(`SELECT plan, set_at FROM plans WHERE account = $1 AND node = $2`, []any{string(account), string(node)}, &text, &at)
		p.Plan, p.SetAt = json.RawMessage(text), moment(at)
		return p, err
	})
}

// DueAsks returns nodes whose ask is due, and those that are named.
func (s *Store) DueAsks(ctx context.Context, limit int, nodes ...offpeak.NodeID) ([]store.DueAsk, error) {
	const holds = `COALESCE((SELECT plan FROM plans p WHERE p.account = nodes.account AND p.node = nodes.id), (SELECT plan FROM plans p WHERE p.account = nodes.account AND p.node = ''), '')`
	return read(ctx, s, "look for asks that are due", func(t *verb) (out []store.DueAsk, err error) {
		look := func(where string, args ...any) error {
			return t.each(`SELECT `+nodeColumns+`, ask_revision, ask_due, `+holds+` FROM nodes WHERE removed_at = 0 AND `+where, args, func(r Rows) error {
				n, d := &node{}, store.DueAsk{Now: t.now}
				var due int64
				var plan string
				if err := n.scan(r, &d.Revision, &due, &plan); err != nil {
					return err
				}
				d.Node, d.Due, d.Plan = n.Node, moment(due), json.RawMessage(plan)
				out = append(out, d)
				return nil
			})
		}
		if limit > 0 {
			if err := look(`ask_due <> 0 AND ask_due <= $1 ORDER BY ask_due, id LIMIT $2`, micros(t.now), int64(limit)); err != nil {
				return nil, err
			}
		}
		if len(nodes) > 0 {
			where, arg := oneOf("id", nodes)
			return out, look(where+` ORDER BY id`, arg)
		}
		return out, nil
	})
}

// asked is what a node asks, as MoveAsks finds it.
type asked struct {
	account  offpeak.AccountID
	revision int64
	ask      *offpeak.Ask
}

// MoveAsks sets what nodes ask.
func (s *Store) MoveAsks(ctx context.Context, moves []store.AskMove) ([]offpeak.NodeID, error) {
	ids := make([]offpeak.NodeID, len(moves))
	for i, m := range moves {
		ids[i] = m.Node
		if m.Ask == nil {
			continue
		}
		if err := m.Ask.Validate(); err != nil {
			return nil, fmt.Errorf("move the ask of node %s: %w", m.Node, err)
		}
	}
	if len(moves) == 0 {
		return nil, nil
	}
	return write(ctx, s, "move asks", func(t *verb) ([]offpeak.NodeID, error) {
		if err := t.lockNodes(ids...); err != nil {
			return nil, err
		}
		have := make(map[offpeak.NodeID]asked, len(ids))
		if err := t.each(`SELECT id, account, ask_revision, ask_gpu, ask_cpu FROM nodes WHERE removed_at = 0 AND id = ANY($1)`, []any{texts(ids)}, func(r Rows) error {
			var id offpeak.NodeID
			var a asked
			var gpu, cpu sql.NullInt64
			err := r.Scan(&id, &a.account, &a.revision, &gpu, &cpu)
			a.ask = askOf(gpu, cpu)
			have[id] = a
			return err
		}); err != nil {
			return nil, err
		}
		var moved []offpeak.NodeID
		for _, m := range moves {
			a, there := have[m.Node]
			if !there || a.revision != m.Revision {
				continue
			}
			delete(have, m.Node) // once
			changed, err := t.moveAsk(&m, &a)
			if err != nil {
				return nil, err
			}
			if changed {
				moved = append(moved, m.Node)
			}
		}
		return moved, nil
	})
}

func (t *verb) moveAsk(m *store.AskMove, a *asked) (changed bool, err error) {
	gpu, cpu := nullAsk(m.Ask)
	if err := t.must(`UPDATE nodes SET ask_gpu = $1, ask_cpu = $2, ask_due = $3, ask_revision = ask_revision + 1 WHERE id = $4 AND ask_revision = $5`,
		gpu, cpu, micros(m.Due), string(m.Node), m.Revision); err != nil {
		return false, err
	}
	if (a.ask == nil) == (m.Ask == nil) && (a.ask == nil || *a.ask == *m.Ask) {
		return false, nil
	}
	if _, err := t.Exec(`INSERT INTO asks (node, revision, account, from_at, gpu, cpu) VALUES ($1, $2, $3, $4, $5, $6)`,
		string(m.Node), m.Revision+1, string(a.account), micros(t.now), gpu, cpu); err != nil {
		return false, err
	}
	t.event(offpeak.Event{Type: "node.ask", Account: a.account, Node: m.Node, Data: data(map[string]*offpeak.Ask{"ask": m.Ask})})
	return true, nil
}

// AskHistory lists what a node asked.
func (s *Store) AskHistory(ctx context.Context, account offpeak.AccountID, id offpeak.NodeID, page store.Page) ([]store.AskChange, string, error) {
	limit, err := bounded(page.Limit)
	if err != nil {
		return nil, "", err
	}
	before := int64(1) << 62
	if page.Cursor != "" {
		if before, err = strconv.ParseInt(page.Cursor, 10, 64); err != nil {
			return nil, "", badCursor(page.Cursor)
		}
	}
	last := before // is the revision of the last row of the page
	list, err := read(ctx, s, "read what node "+string(id)+" asked", func(t *verb) (out []store.AskChange, err error) {
		if _, err := t.node(account, id); err != nil {
			return nil, err
		}
		return out, t.each(`SELECT revision, from_at, gpu, cpu FROM asks WHERE node = $1 AND revision < $2 ORDER BY revision DESC LIMIT $3`, []any{string(id), before, int64(limit + 1)}, func(r Rows) error {
			var revision, from int64
			var gpu, cpu sql.NullInt64
			err := r.Scan(&revision, &from, &gpu, &cpu)
			out = append(out, store.AskChange{From: moment(from), Ask: askOf(gpu, cpu)})
			if len(out) == limit {
				last = revision
			}
			return err
		})
	})
	if err != nil || len(list) <= limit {
		return list, "", err
	}
	return list[:limit], strconv.FormatInt(last, 10), nil
}

func badCursor(cursor string) error {
	return &offpeak.FieldError{Field: "cursor", Value: cursor, Rule: "is what the page before returned"}
}

const candleColumns = `vendor, model, vram, region, resolution, start_at, opening, highest, lowest, closing, opened_at, closed_at, trades, metered`

func candleRow(c *offpeak.Candle) []any {
	return []any{
		c.Vendor, c.Model, int64(c.VRAM), c.Region, string(c.Resolution), micros(c.Start), int64(c.Open), int64(c.High), int64(c.Low), int64(c.Close),
		micros(c.OpenedAt), micros(c.ClosedAt), c.Trades, int64(c.Metered),
	}
}

func scanCandle(r Rows) (c offpeak.Candle, err error) {
	var start, opened, closed int64
	err = r.Scan(&c.Vendor, &c.Model, &c.VRAM, &c.Region, &c.Resolution, &start, &c.Open, &c.High, &c.Low, &c.Close, &opened, &closed, &c.Trades, &c.Metered)
	c.Start, c.OpenedAt, c.ClosedAt = moment(start), moment(opened), moment(closed)
	return c, err
}

const candleKey = `vendor = $1 AND model = $2 AND vram = $3 AND region = $4 AND resolution = $5 AND start_at = $6`

// AddCandles joins candles to those that are there.
func (s *Store) AddCandles(ctx context.Context, candles []offpeak.Candle) error {
	// In one order, so that two hubs wait for each other and never in a ring.
	candles = slices.Clone(candles)
	slices.SortFunc(candles, func(a, b offpeak.Candle) int {
		return cmp.Or(a.Compare(b.Segment), cmp.Compare(a.Resolution, b.Resolution), a.Start.Compare(b.Start))
	})
	_, err := write(ctx, s, "add candles", func(t *verb) (struct{}, error) {
		for i := range candles {
			if err := t.addCandle(&candles[i]); err != nil {
				return struct{}{}, err
			}
		}
		return struct{}{}, nil
	})
	return err
}

func (t *verb) addCandle(c *offpeak.Candle) error {
	row := candleRow(c)
	n, err := t.Exec(`INSERT INTO candles (`+candleColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) ON CONFLICT DO NOTHING`, row...)
	if err != nil || n == 1 {
		return err
	}
	var have offpeak.Candle
	if err := t.each(`SELECT `+candleColumns+` FROM candles WHERE `+candleKey+forUpdate, row[:6], func(r Rows) (err error) {
		have, err = scanCandle(r)
		return err
	}); err != nil {
		return err
	}
	joined := have.Join(*c)
	return t.must(`UPDATE candles SET opening = $7, highest = $8, lowest = $9, closing = $10, opened_at = $11, closed_at = $12, trades = $13, metered = $14 WHERE `+candleKey, candleRow(&joined)...)
}

// lower is what both engines' lower is: of ASCII.
func lower(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}, s)
}

// candleCursor is the key of the last candle of a page.
type candleCursor struct {
	offpeak.Segment
	Resolution offpeak.Resolution
	Start      int64
}

// Candles lists candles.
func (s *Store) Candles(ctx context.Context, f store.CandleFilter, page store.Page) ([]offpeak.Candle, string, error) {
	limit, err := bounded(page.Limit)
	if err != nil {
		return nil, "", err
	}
	var args []any
	var conditions []string
	and := func(condition string, values ...any) {
		for _, v := range values {
			args = append(args, v)
			condition = strings.Replace(condition, "?", "$"+strconv.Itoa(len(args)), 1)
		}
		conditions = append(conditions, condition)
	}
	and(`start_at >= ?`, micros(f.From))
	if !f.Until.IsZero() {
		and(`start_at < ?`, micros(f.Until))
	}
	if f.Resolution != "" {
		and(`resolution = ?`, string(f.Resolution))
	}
	if f.Vendor != "" {
		and(`vendor = ?`, f.Vendor)
	}
	if f.Model != "" {
		and(`lower(model) LIKE ? ESCAPE '\'`, "%"+strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(lower(f.Model))+"%")
	}
	if f.VRAM != 0 {
		and(`vram = ?`, int64(f.VRAM))
	}
	if f.Region != "" {
		and(`region = ?`, f.Region)
	}
	if f.Plain {
		and(`vendor = '' AND model = '' AND vram = 0`)
	}
	if page.Cursor != "" {
		var c candleCursor
		if err := json.Unmarshal([]byte(page.Cursor), &c); err != nil {
			return nil, "", badCursor(page.Cursor)
		}
		and(`(vendor, model, vram, region, resolution, start_at) > (?, ?, ?, ?, ?, ?)`, c.Vendor, c.Model, int64(c.VRAM), c.Region, string(c.Resolution), c.Start)
	}
	args = append(args, int64(limit+1))
	list, err := read(ctx, s, "list candles", func(t *verb) (out []offpeak.Candle, err error) {
		return out, t.each(`SELECT `+candleColumns+` FROM candles WHERE `+strings.Join(conditions, " AND ")+` ORDER BY vendor, model, vram, region, resolution, start_at LIMIT $`+strconv.Itoa(len(args)), args, func(r Rows) error {
			c, err := scanCandle(r)
			out = append(out, c)
			return err
		})
	})
	if err != nil || len(list) <= limit {
		return list, "", err
	}
	last := &list[limit-1]
	return list[:limit], string(data(candleCursor{last.Segment, last.Resolution, micros(last.Start)})), nil
}

// pruneAsks removes what nodes asked before they asked something else.
func pruneAsks(t *verb, before int64, limit int) (int, error) {
	n, err := t.Exec(`DELETE FROM asks WHERE (node, revision) IN (SELECT a.node, a.revision FROM asks a
		WHERE a.from_at < $1 AND EXISTS (SELECT 1 FROM asks b WHERE b.node = a.node AND b.revision > a.revision AND b.from_at < $1) ORDER BY a.from_at LIMIT $2)`, before, int64(limit))
	return int(n), err
}

func pruneCandles(r offpeak.Resolution) func(t *verb, before int64, limit int) (int, error) {
	return func(t *verb, before int64, limit int) (int, error) {
		n, err := t.Exec(`DELETE FROM candles WHERE (vendor, model, vram, region, resolution, start_at) IN (
			SELECT vendor, model, vram, region, resolution, start_at FROM candles WHERE resolution = $1 AND start_at < $2 ORDER BY start_at LIMIT $3)`, string(r), before, int64(limit))
		return int(n), err
	}
}

// mostSegments bounds the segments of which candles are kept: a region is whatever
// an owner calls it.
const mostSegments = 1024

// pruneSegments removes the candles of segments beyond the bound, those that traded
// longest ago; of one segment those of hours last, by which it is found.
func pruneSegments(t *verb, _ int64, limit int) (int, error) {
	n, err := t.Exec(`DELETE FROM candles WHERE (vendor, model, vram, region, resolution, start_at) IN (
		SELECT vendor, model, vram, region, resolution, start_at FROM candles WHERE (vendor, model, vram, region) IN (
			SELECT vendor, model, vram, region FROM candles WHERE resolution = 'hour' GROUP BY vendor, model, vram, region
			ORDER BY max(closed_at) DESC, vendor, model, vram, region LIMIT $1 OFFSET $2)
		ORDER BY resolution DESC, start_at LIMIT $1)`, int64(limit), int64(mostSegments))
	return int(n), err
}
