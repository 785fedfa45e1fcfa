package sqlstore

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf8"

	"offpeak"
	"offpeak/store"
)

// maxWeights bounds the text of a version.
const maxWeights = 16 << 10

const weightsColumns = `version, at, account, member, text`

func scanWeights(r Rows, w *store.WeightsVersion) error {
	var at int64
	var text string
	err := r.Scan(&w.Version, &at, &w.Account, &w.Member, &text)
	w.At, w.Text = moment(at), json.RawMessage(text)
	return err
}

// SetWeights stores the next version.
func (s *Store) SetWeights(ctx context.Context, op store.Op, after int64, text json.RawMessage) (store.WeightsVersion, error) {
	if len(text) > maxWeights || !json.Valid(text) || !utf8.Valid(text) {
		return store.WeightsVersion{}, &offpeak.FieldError{Field: "weights", Rule: "is JSON of at most 16 KiB, in UTF-8"}
	}
	return write(ctx, s, "set weights", func(t *verb) (store.WeightsVersion, error) {
		out, _, err := once(t, op, "weights.set", strconv.FormatInt(after+1, 10), func() (store.WeightsVersion, error) {
			w := store.WeightsVersion{Version: after + 1, At: t.now, Account: op.Actor.Account, Member: op.Actor.Member, Text: text}
			// Of two at once the second waits for the first and then finds its version
			// there, or the newest one to be another.
			n, err := t.Exec(`INSERT INTO weights (version, at, account, member, text) SELECT $1, $2, $3, $4, $5
				WHERE (SELECT COALESCE(max(version), 0) FROM weights) = $6 ON CONFLICT DO NOTHING`,
				w.Version, micros(t.now), string(w.Account), string(w.Member), string(text), after)
			if err != nil {
				return w, err
			}
			if n == 0 {
				return w, fmt.Errorf("version %d is not the newest any more: %w", after, offpeak.ErrConflict)
			}
			t.event(offpeak.Event{Type: "weights.set", Data: data(struct {
				Version int64            `json:"version"`
				Member  offpeak.MemberID `json:"member,omitempty"`
				Weights json.RawMessage  `json:"weights"`
			}{w.Version, w.Member, text})})
			return w, nil
		})
		return out, err
	})
}

// Weights returns the newest version.
func (s *Store) Weights(ctx context.Context) (store.WeightsVersion, error) {
	return read(ctx, s, "read weights", func(t *verb) (store.WeightsVersion, error) {
		list, err := t.weights(`ORDER BY version DESC LIMIT 1`)
		if err == nil && len(list) == 0 {
			return store.WeightsVersion{}, offpeak.ErrNotFound
		}
		if err != nil {
			return store.WeightsVersion{}, err
		}
		return list[0], nil
	})
}

func (t *verb) weights(rest string, args ...any) (out []store.WeightsVersion, err error) {
	return out, t.each(`SELECT `+weightsColumns+` FROM weights `+rest, args, func(r Rows) error {
		out = append(out, store.WeightsVersion{})
		return scanWeights(r, &out[len(out)-1])
	})
}

// WeightsHistory lists the versions.
func (s *Store) WeightsHistory(ctx context.Context, page store.Page) ([]store.WeightsVersion, string, error) {
	limit, err := bounded(page.Limit)
	if err != nil {
		return nil, "", err
	}
	before := int64(1) << 62
	if page.Cursor != "" {
		if before, err = strconv.ParseInt(page.Cursor, 10, 64); err != nil {
			return nil, "", &offpeak.FieldError{Field: "cursor", Value: page.Cursor, Rule: "is what the page before returned"}
		}
	}
	list, err := read(ctx, s, "list weights", func(t *verb) ([]store.WeightsVersion, error) {
		return t.weights(`WHERE version < $1 ORDER BY version DESC LIMIT $2`, before, int64(limit+1))
	})
	if err != nil || len(list) <= limit {
		return list, "", err
	}
	return list[:limit], strconv.FormatInt(list[limit-1].Version, 10), nil
}
