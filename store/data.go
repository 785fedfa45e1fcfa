package store

import (
	"context"
	"time"

	"offpeak"
)

// Data is the book-keeping of blobs, trees and logs. The bytes of blobs are in
// package blob; small log segments are in the store itself.
type Data interface {
	// AddBlob says that the bytes of hash are stored and belong to the account
	// too, and protects them from collection for a day. ErrQuota when the
	// account's storage is used up.
	AddBlob(ctx context.Context, account offpeak.AccountID, hash offpeak.Hash, size offpeak.Bytes) error
	// MissingBlobs returns those hashes that the account does not have, in the
	// order given; those it has are protected from collection for a day.
	MissingBlobs(ctx context.Context, account offpeak.AccountID, hashes []offpeak.Hash) ([]offpeak.Hash, error)
	// AddTree says that tree is a manifest over chunks, all of them the
	// account's (ErrBlobMissing names the first that is not).
	AddTree(ctx context.Context, account offpeak.AccountID, tree offpeak.Hash, chunks []offpeak.Hash) error
	// HasBlob returns nil if the account has the blob, else ErrNotFound.
	HasBlob(ctx context.Context, account offpeak.AccountID, hash offpeak.Hash) error
	// LeaseAccount returns whose job a live lease of this node runs, or a
	// *StaleLeaseError: what a node may read and write under its lease.
	LeaseAccount(ctx context.Context, node offpeak.NodeID, lease offpeak.LeaseID) (offpeak.AccountID, offpeak.JobID, error)
	// LeaseReads returns nil if hash is part of the input or of a checkpoint
	// that the live lease may restore, else ErrNotFound.
	LeaseReads(ctx context.Context, node offpeak.NodeID, lease offpeak.LeaseID, hash offpeak.Hash) error
	// Unused lists at most limit (account, blob) pairs that nothing refers to
	// and whose protection is over.
	Unused(ctx context.Context, limit int) ([]BlobRef, error)
	// DropBlob removes the pair if it is still unused, and says whether that was
	// the last account that had the blob, so that its bytes may go.
	DropBlob(ctx context.Context, ref BlobRef) (dropped, last bool, err error)

	// AppendLog stores an immutable segment of a live lease's log, fenced like a
	// report. Bytes before the stored end are cut off (a retry never doubles a
	// byte); a gap is a *LogGapError. It returns the stored end.
	AppendLog(ctx context.Context, node offpeak.NodeID, lease offpeak.LeaseID, attempt offpeak.Attempt, a LogAppend) (end int64, err error)
	// LogSegments lists segments of a lease's log in the order of arrival,
	// beginning after segment number after.
	LogSegments(ctx context.Context, account offpeak.AccountID, lease offpeak.LeaseID, after int64, limit int) ([]LogSegment, error)
	// LogAt lists segments of one stream from the one that holds offset.
	LogAt(ctx context.Context, account offpeak.AccountID, lease offpeak.LeaseID, stream string, offset int64, limit int) ([]LogSegment, error)
}

// BlobRef is one account's hold on a blob.
type BlobRef struct {
	Account offpeak.AccountID
	Hash    offpeak.Hash
}

// LogAppend is a piece of a log. Exactly one of Data and Blob is set.
type LogAppend struct {
	// Stream is "stdout" or "stderr".
	Stream string
	// Offset is where the piece begins in its stream.
	Offset int64
	Data   []byte
	// Blob holds Length bytes that are stored as a blob of the job's account.
	Blob   offpeak.Hash
	Length int64
}

// LogSegment is a stored piece of a log.
type LogSegment struct {
	// N counts the segments of a lease from 1, in the order of arrival.
	N      int64
	Stream string
	Offset int64
	Length int64
	Data   []byte
	Blob   offpeak.Hash
	At     time.Time
}
