package store

import (
	"context"
	"encoding/json"
	"time"

	"offpeak"
)

// Weights is what an admin set of placement. It is kept as text, since reading it is
// for placement, and every version is kept for ever: placements name them.
type Weights interface {
	// SetWeights stores the version after the newest, which must be after, and writes
	// the event weights.set, which holds the version and the text, so that every hub
	// takes it up. ErrConflict: somebody else set another version meanwhile.
	SetWeights(ctx context.Context, op Op, after int64, text json.RawMessage) (WeightsVersion, error)
	// Weights returns the newest version. ErrNotFound: none was ever set.
	Weights(ctx context.Context) (WeightsVersion, error)
	// WeightsHistory lists the versions, the newest first.
	WeightsHistory(ctx context.Context, page Page) (list []WeightsVersion, next string, err error)
}

// WeightsVersion is one version of the weights.
type WeightsVersion struct {
	// Version counts from 1.
	Version int64
	At      time.Time
	// Account and Member set it.
	Account offpeak.AccountID
	Member  offpeak.MemberID
	Text    json.RawMessage
}
