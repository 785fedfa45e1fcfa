// Package s3 keeps shared blobs in a bucket behind an S3 API: AWS, MinIO, Ceph
// and their like.
//
// It owns how objects are written, read and listed there, how long each call may
// take, and which of the vocabulary's errors an answer becomes. What the objects
// mean is package blob's. It asks of the service what S3 promises: an object is
// there whole or not at all, and one that was written is seen at once by every
// reader and listing.
//
// All methods may be called at once. It starts no goroutines but those of the
// HTTP client. It is tested against a fake service in this process, directly and
// through a proxy that breaks.
package s3

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"offpeak"
	"offpeak/blob"
)

const (
	// defaultTimeout bounds one call, retries of the client included; a blob is
	// at most 8 MiB.
	defaultTimeout = 30 * time.Second
	// tries is how often the client makes a call that may succeed the next time.
	tries = 4
	// page is how many objects are listed at once.
	page = 1000
)

// Config says where the bucket is.
type Config struct {
	// Endpoint is the service's host and, where it is not the usual one, port.
	Endpoint string
	// Plain speaks HTTP without TLS.
	Plain bool
	// Region is the bucket's; "" asks the service.
	Region string
	// Bucket must exist.
	Bucket string
	// Prefix is the folder in the bucket under which all objects lie; "" is the
	// bucket itself.
	Prefix string
}

// Env is the outside world, handed in.
type Env struct {
	// Credentials sign the calls; DefaultCredentials are what everybody uses.
	Credentials *credentials.Credentials
	// Now is the time. The service refuses calls of a clock that is far off its own.
	Now func() time.Time
	// Timeout bounds one call, retries of the client included; 0 is 30 s.
	Timeout time.Duration
}

// DefaultCredentials looks in the environment (AWS_ACCESS_KEY_ID,
// AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN), then in the file of shared
// credentials ($AWS_SHARED_CREDENTIALS_FILE, else ~/.aws/credentials), then asks
// the cloud which role this machine has. They are renewed before they expire.
func DefaultCredentials() *credentials.Credentials {
	return credentials.NewChainCredentials([]credentials.Provider{
		&credentials.EnvAWS{},
		&credentials.FileAWSCredentials{},
		&credentials.IAM{Client: &http.Client{Timeout: 5 * time.Second}},
	})
}

// Bucket is a blob.Bucket.
type Bucket struct {
	client    minio.Core
	transport *http.Transport
	cfg       Config
	now       func() time.Time
	timeout   time.Duration
}

var _ blob.Bucket = (*Bucket)(nil)

// Open makes a client of the bucket. It calls nobody but, perhaps, whoever knows
// the credentials. It returns ErrInvalid for a configuration that can't be, and
// ErrStorage where no credentials are found.
func Open(cfg Config, env Env) (*Bucket, error) {
	where := fmt.Sprintf("open bucket %s at %s", cfg.Bucket, cfg.Endpoint)
	transport, err := minio.DefaultTransport(!cfg.Plain)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", where, offpeak.ErrStorage, err)
	}
	client, err := minio.NewCore(cfg.Endpoint, &minio.Options{
		Creds: env.Credentials, Secure: !cfg.Plain, Region: cfg.Region, Transport: transport, MaxRetries: tries,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", where, offpeak.ErrInvalid, err)
	}
	found, err := env.Credentials.GetWithContext(client.CredContext())
	if err != nil || found.AccessKeyID == "" {
		return nil, fmt.Errorf("%s: %w: no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write ~/.aws/credentials", where, offpeak.ErrStorage)
	}
	return &Bucket{client: *client, transport: transport, cfg: cfg, now: env.Now, timeout: cmp.Or(env.Timeout, defaultTimeout)}, nil
}

// Close closes connections that wait for the next call.
func (b *Bucket) Close() error {
	b.transport.CloseIdleConnections()
	return nil
}

func (b *Bucket) object(key string) string {
	if b.cfg.Prefix == "" {
		return key
	}
	return b.cfg.Prefix + "/" + key
}

// Write implements blob.Bucket.
func (b *Bucket) Write(ctx context.Context, key string, data []byte) error {
	return b.write(ctx, key, data, minio.PutObjectOptions{})
}

// Create implements blob.Bucket.
func (b *Bucket) Create(ctx context.Context, key string, data []byte) error {
	var only minio.PutObjectOptions
	only.SetMatchETagExcept("*")
	return b.write(ctx, key, data, only)
}

func (b *Bucket) write(ctx context.Context, key string, data []byte, opts minio.PutObjectOptions) error {
	opts.ContentType = "application/octet-stream"
	// The hash of the whole body is signed in place of hashes of its chunks: by it
	// the service checks the bytes before the object shows.
	opts.DisableContentSha256 = true
	call, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	sum := sha256.Sum256(data)
	_, err := b.client.PutObject(call, b.cfg.Bucket, b.object(key), bytes.NewReader(data), int64(len(data)), "", hex.EncodeToString(sum[:]), opts)
	return b.failed(ctx, "write "+key, err)
}

// Read implements blob.Bucket. The service may keep silent no longer than a call
// may take; whoever reads may take as long as he likes.
func (b *Bucket) Read(ctx context.Context, key string) (io.ReadCloser, offpeak.Bytes, error) {
	call, cancel := context.WithCancel(ctx)
	patience := time.AfterFunc(b.timeout, cancel)
	failed := func(err error) error { return b.failed(ctx, "read "+key, err) }
	body, info, _, err := b.client.GetObject(call, b.cfg.Bucket, b.object(key), minio.GetObjectOptions{})
	patience.Stop()
	if err != nil {
		cancel()
		return nil, 0, failed(err)
	}
	return &reader{body: body, cancel: cancel, patience: patience, timeout: b.timeout, failed: failed}, offpeak.Bytes(info.Size), nil
}

// reader is an object's body, whose call ends when it is closed.
type reader struct {
	body     io.ReadCloser
	cancel   context.CancelFunc
	patience *time.Timer
	timeout  time.Duration
	failed   func(error) error
}

func (r *reader) Read(p []byte) (int, error) {
	r.patience.Reset(r.timeout)
	n, err := r.body.Read(p)
	r.patience.Stop()
	if err != nil && !errors.Is(err, io.EOF) {
		err = r.failed(err)
	}
	return n, err
}

func (r *reader) Close() error {
	r.cancel()
	return r.body.Close()
}

// List implements blob.Bucket. It takes a page at a time, so that whoever walks
// over it may take as long as he likes.
func (b *Bucket) List(ctx context.Context, prefix string) iter.Seq2[blob.Object, error] {
	return func(yield func(blob.Object, error) bool) {
		after := ""
		for {
			objects, err := b.page(ctx, prefix, after)
			if err != nil {
				yield(blob.Object{}, b.failed(ctx, "list "+prefix, err))
				return
			}
			for _, o := range objects {
				if !yield(o, nil) {
					return
				}
			}
			if len(objects) < page {
				return
			}
			after = objects[page-1].Key
		}
	}
}

// page lists the first objects after a key; fewer than a page are the last.
func (b *Bucket) page(ctx context.Context, prefix, after string) (out []blob.Object, err error) {
	call, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	opts := minio.ListObjectsOptions{Prefix: b.object(prefix), Recursive: true, MaxKeys: page, FetchOwner: new(false)}
	if after != "" {
		opts.StartAfter = b.object(after)
	}
	for o := range b.client.ListObjectsIter(call, b.cfg.Bucket, opts) {
		if o.Err != nil {
			return nil, o.Err
		}
		out = append(out, blob.Object{Key: strings.TrimPrefix(o.Key, b.object("")), Written: o.LastModified})
		if len(out) == page {
			break
		}
	}
	// The client ends a walk whose time is up as if there were no more.
	return out, call.Err()
}

// Remove implements blob.Bucket.
func (b *Bucket) Remove(ctx context.Context, key string) error {
	call, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	err := b.client.RemoveObject(call, b.cfg.Bucket, b.object(key), minio.RemoveObjectOptions{})
	if code(err) == minio.NoSuchKey {
		return nil
	}
	return b.failed(ctx, "remove "+key, err)
}

// Now implements blob.Bucket: this machine's time, which the service holds to
// within minutes of its own by refusing calls that are signed with another.
func (b *Bucket) Now(context.Context) (time.Time, error) { return b.now(), nil }

func code(err error) string { return minio.ToErrorResponse(err).Code }

// failed names an error of the service: what was done, where, and what it means
// to a caller.
func (b *Bucket) failed(ctx context.Context, did string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", did, ctx.Err())
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %v", b.timeout)
	}
	answer, isAnswer := errors.AsType[minio.ErrorResponse](err)
	kind := offpeak.ErrStorage
	switch {
	case answer.Code == minio.NoSuchKey:
		kind = offpeak.ErrNotFound
	case answer.Code == minio.PreconditionFailed, answer.Code == "ConditionalRequestConflict":
		kind = offpeak.ErrConflict
	case !isAnswer, passes(answer):
		kind = offpeak.ErrUnavailable
	}
	return fmt.Errorf("%s in bucket %s at %s: %w: %w", did, b.cfg.Bucket, b.cfg.Endpoint, kind, err)
}

// passes says that the next try may succeed: the service is down or overloaded.
// A full one it is not.
func passes(a minio.ErrorResponse) bool {
	switch a.Code {
	case "SlowDown", "RequestTimeout", "RequestTimeoutException", "Throttling", "ThrottlingException", "RequestLimitExceeded", "InternalError", "ServiceUnavailable", "OperationAborted":
		return true
	}
	return a.StatusCode == http.StatusTooManyRequests || a.StatusCode >= 500 && a.StatusCode != http.StatusInsufficientStorage && a.StatusCode != http.StatusNotImplemented
}
