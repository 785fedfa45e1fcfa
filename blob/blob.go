// Package blob keeps bytes by the hash of their content: inputs, outputs,
// checkpoints and large log segments.
//
// It has two halves. A Store holds blobs of at most MaxBlob bytes: a local
// folder here, S3 in a later engine. A tree describes files: a manifest, itself
// a blob, that lists paths, modes and the chunks that make up each file. Pack
// turns a folder into a tree and Unpack a tree into a folder; both work inside
// an os.Root, so nothing in a tree or a folder can reach outside it.
//
// It knows nothing of accounts, jobs, quotas or networks. Who may read a blob
// and when it is garbage is decided by the store's book-keeping.
//
// It starts goroutines only inside Upload and Unpack, which end them before
// they return. It is tested against a corpus of hostile folders and trees, in
// races with a process that swaps folders for links, and on a full disk.
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

// Store keeps blobs. All methods may be called at once.
type Store interface {
	// Put stores the bytes that r yields, at most MaxBlob, if their SHA-256 is
	// hash; it is durable when it returns. Storing a blob that is there already
	// reads and checks r all the same and changes nothing. It returns
	// ErrHashMismatch, ErrTooLarge, or ErrStorage when the disk is full.
	Put(ctx context.Context, hash offpeak.Hash, r io.Reader) (size offpeak.Bytes, err error)
	// Open returns the bytes for reading, or ErrNotFound. The reader verifies
	// the hash: reading to the end of changed bytes returns ErrHashMismatch.
	Open(ctx context.Context, hash offpeak.Hash) (io.ReadCloser, offpeak.Bytes, error)
	// Has says whether the blob is there.
	Has(ctx context.Context, hash offpeak.Hash) (bool, error)
	// Remove removes a blob. Removing one that is not there is not an error.
	Remove(ctx context.Context, hash offpeak.Hash) error
	// Lock holds the blob's lock until unlock is called, so that storing it and
	// collecting it as garbage exclude each other.
	Lock(hash offpeak.Hash) (unlock func())
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
