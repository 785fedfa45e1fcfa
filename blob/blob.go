// Package blob keeps bytes by the hash of their content: inputs, outputs,
// checkpoints and large log segments.
//
// It has two halves. A Store holds blobs of at most MaxBlob bytes. Local keeps
// them in a folder of one process; Shared keeps them where several hubs reach
// them, in a Bucket: a folder that they share, or S3 (package s3). A tree describes files: a manifest, itself
// a blob, that lists paths, modes and the chunks that make up each file. Pack
// turns a folder into a tree and Unpack a tree into a folder; both work inside
// an os.Root, so nothing in a tree or a folder can reach outside it.
//
// It knows nothing of accounts, jobs, quotas or networks. Who may read a blob
// and when it is garbage is decided by the store's book-keeping.
//
// It starts goroutines only inside Upload and Unpack, which end them before
// they return. It is tested against a corpus of hostile folders and trees, in
// races with a process that swaps folders for links, and on a full disk. Every
// Store passes the suite in package blobtest.
package blob

import (
	"context"
	"io"

	"offpeak"
)

// MaxBlob is the largest blob: chunks of files are at most this long, manifests too.
const MaxBlob = 8 * offpeak.MiB

// ChunkSize is the length of the chunks that Pack cuts files into (the last
// one of a file is shorter). It is the unit of deduplication and of resuming.
const ChunkSize = 1 * offpeak.MiB

// Store keeps blobs. All methods may be called at once, by every hub of a grid
// where the store is one that hubs share. Whoever stores a blob and whoever
// collects it may meet: DESIGN.md says why neither loses.
type Store interface {
	// Put stores the bytes that r yields, at most MaxBlob, if their SHA-256 is
	// hash; it is durable when it returns. Storing a blob that is there already
	// reads and checks r all the same. It returns ErrHashMismatch, ErrTooLarge,
	// ErrStorage when the disk is full, or ErrUnavailable.
	Put(ctx context.Context, hash offpeak.Hash, r io.Reader) (size offpeak.Bytes, err error)
	// Keep stores like Put and then calls book, which writes down whose the blob
	// is. Nobody collects the bytes before that is written. It returns what book
	// returned; after ErrQuota the blob was booked for nobody by this call.
	Keep(ctx context.Context, hash offpeak.Hash, r io.Reader, book func(context.Context, offpeak.Bytes) error) error
	// Open returns the bytes for reading, or ErrNotFound. The reader verifies
	// the hash: reading to the end of changed bytes returns ErrHashMismatch.
	Open(ctx context.Context, hash offpeak.Hash) (io.ReadCloser, offpeak.Bytes, error)
	// Has says whether the blob is there.
	Has(ctx context.Context, hash offpeak.Hash) (bool, error)
	// Collect calls unused once and, if that says that the books name the blob no
	// more, removes its bytes, but for those that a Keep is about to book.
	Collect(ctx context.Context, hash offpeak.Hash, unused func(context.Context) (bool, error)) error
	// Sweep collects every blob that unused says nobody has, and whatever else
	// those who died left behind. unused may be called more than once for a blob.
	Sweep(ctx context.Context, unused func(context.Context, offpeak.Hash) (bool, error)) (removed int, err error)
}

// Remote is the other side of a transfer: what the CLI and the agent see of a
// hub's blobs, already bound to an account or a lease.
type Remote interface {
	// Missing returns those of hashes that the remote does not have.
	Missing(ctx context.Context, hashes []offpeak.Hash) ([]offpeak.Hash, error)
	// Upload stores one blob.
	Upload(ctx context.Context, hash offpeak.Hash, data []byte) error
	// Commit declares hash, stored before, to be a tree.
	Commit(ctx context.Context, tree offpeak.Hash) error
	// Download fetches one blob.
	Download(ctx context.Context, hash offpeak.Hash) ([]byte, error)
}
