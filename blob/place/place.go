// Package place opens the blobs of a hub where an operator says that they lie:
// in the hub's own data folder, in a folder that hubs share, or behind an S3 API.
//
// It owns how such a place is written and what makes two hubs' places the same
// one. It must not know flags, hubs or grids: who may share a place with whom is
// for its callers to decide. It is used once, at the start of a process.
package place

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"

	"offpeak"
	"offpeak/blob"
	"offpeak/blob/s3"
)

// amazon is the endpoint of buckets that name none.
const amazon = "s3.amazonaws.com"

// Spec is a place as it was written. The zero value is the hub's own folder.
type Spec struct {
	text   string
	folder string
	bucket *s3.Config
}

// Parse reads what an operator wrote: "" for the hub's own folder, the absolute
// path of a folder or a file:// URL for one that hubs share, or
// s3://bucket/prefix?endpoint=URL&region=NAME. It returns a *ValueError that
// never shows a secret.
func Parse(text string) (Spec, error) {
	switch {
	case text == "":
		return Spec{}, nil
	case filepath.IsAbs(text):
		return Spec{text: text, folder: filepath.Clean(text)}, nil
	case strings.Contains(text, "@"):
		// Before anything else: what stands there may be a secret.
		return Spec{}, &offpeak.ValueError{Value: "…@…", Rule: "has no user or password; credentials are read from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or ~/.aws/credentials"}
	}
	u, err := url.Parse(text)
	if err == nil && u.Fragment == "" {
		switch u.Scheme {
		case "file":
			return parseFile(text, u)
		case "s3":
			return parseBucket(text, u)
		}
	}
	return Spec{}, &offpeak.ValueError{Value: text, Rule: "is the absolute path of a folder, or a URL like file:///srv/offpeak or s3://bucket/prefix?endpoint=https://s3.example.org"}
}

func parseFile(text string, u *url.URL) (Spec, error) {
	folder := filepath.FromSlash(u.Path)
	if u.Host != "" && u.Host != "localhost" || u.RawQuery != "" || !filepath.IsAbs(folder) {
		return Spec{}, &offpeak.ValueError{Value: text, Rule: "names a folder by its absolute path, for example file:///srv/offpeak"}
	}
	return Spec{text: text, folder: filepath.Clean(folder)}, nil
}

func parseBucket(text string, u *url.URL) (Spec, error) {
	refuse := func(rule string) (Spec, error) { return Spec{}, &offpeak.ValueError{Value: text, Rule: rule} }
	prefix := strings.Trim(u.Path, "/")
	if prefix != "" && path.Clean("/"+prefix) != "/"+prefix {
		return refuse("has a prefix of plain names, for example s3://bucket/offpeak/blobs")
	}
	if err := s3utils.CheckValidBucketName(u.Host); err != nil || u.Port() != "" {
		return refuse("begins with the name of a bucket: 3 to 63 letters, digits, dots and hyphens")
	}
	cfg := &s3.Config{Endpoint: amazon, Bucket: u.Host, Prefix: prefix}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return refuse("has a query like ?endpoint=https://s3.example.org&region=eu-central-1")
	}
	for key, values := range query {
		if key != "endpoint" && key != "region" || len(values) != 1 || values[0] == "" {
			return refuse("knows endpoint and region, each at most once, in its query")
		}
	}
	cfg.Region = query.Get("region")
	if e := query.Get("endpoint"); e != "" {
		at, err := url.Parse(e)
		if err != nil || at.Host == "" || at.Scheme != "https" && at.Scheme != "http" || strings.Trim(at.Path, "/") != "" || at.RawQuery != "" || at.Fragment != "" {
			return refuse("has an endpoint that is https:// and a host, or http:// where nobody listens on the way, for example endpoint=https://s3.example.org")
		}
		cfg.Endpoint, cfg.Plain = at.Host, at.Scheme == "http"
	}
	return Spec{text: text, bucket: cfg}, nil
}

// Shared says that hubs on several machines can use the place.
func (s Spec) Shared() bool { return s.text != "" }

// String is the place as it was written; it holds no secret.
func (s Spec) String() string { return s.text }

// Env is the outside world, handed in.
type Env struct {
	// Own is the hub's own folder.
	Own string
	// Now is the time.
	Now func() time.Time
	// Credentials sign what goes to S3; nil looks where everybody looks.
	Credentials *credentials.Credentials
}

// Place is where a hub's blobs lie, open.
type Place struct {
	// Store holds them.
	Store blob.Store
	// ID is the same for two hubs if they reach the same blobs there, by whatever
	// name; Own is not the same as any.
	ID string

	empty func(context.Context) (bool, error)
	// where is the place as it was written.
	where string
	// claim is nil for a hub's own folder.
	claim func(ctx context.Context, owner string, take bool) (string, error)
	close func() error
}

// Own is the ID of every hub's own folder.
const Own = "local"

// Open opens the place and sees that it can be read and written. Errors are those
// of blob.OpenLocal, blob.OpenFolder and package s3; ErrInvalid for a shared
// folder that is the hub's own.
func (s Spec) Open(ctx context.Context, env Env) (*Place, error) {
	switch {
	case s.folder != "":
		return s.openFolder(ctx, env)
	case s.bucket != nil:
		return s.openBucket(ctx, env)
	}
	local, err := blob.OpenLocal(env.Own)
	if err != nil {
		return nil, err
	}
	return &Place{Store: local, ID: Own, close: local.Close, empty: func(context.Context) (bool, error) {
		for _, err := range local.All() {
			return false, err
		}
		return true, nil
	}}, nil
}

func (s Spec) openFolder(ctx context.Context, env Env) (*Place, error) {
	if own, err := filepath.Abs(env.Own); err == nil && own == s.folder {
		return nil, &offpeak.ValueError{Value: s.text, Rule: "is a folder of its own: this one is where the hub keeps blobs by itself, in another layout"}
	}
	folder, err := blob.OpenFolder(s.folder)
	if err != nil {
		return nil, err
	}
	return s.share(ctx, "folder", folder, s.folder)
}

func (s Spec) openBucket(ctx context.Context, env Env) (*Place, error) {
	if env.Credentials == nil {
		env.Credentials = s3.DefaultCredentials()
	}
	bucket, err := s3.Open(*s.bucket, s3.Env{Credentials: env.Credentials, Now: env.Now})
	if err != nil {
		return nil, err
	}
	return s.share(ctx, "s3", bucket, "")
}

type closingBucket interface {
	blob.Bucket
	Close() error
}

func (s Spec) share(ctx context.Context, kind string, bucket closingBucket, folder string) (*Place, error) {
	store := blob.NewShared(bucket)
	id, err := store.ID(ctx)
	if err == nil {
		_, err = store.Has(ctx, blob.Sum(nil)) // listing is a right of its own
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open blobs at %s: %w", s.text, err), bucket.Close())
	}
	return &Place{Store: elsewhere{store, s.text, folder}, ID: kind + ":" + id, where: s.text, close: bucket.Close, empty: store.Empty, claim: store.Claim}, nil
}

// elsewhere is a store that is not in the hub's data folder.
type elsewhere struct {
	*blob.Shared
	where, folder string
}

// Where is the place as it was written.
func (e elsewhere) Where() string { return e.where }

// Folder is where the place lies on this machine; "" if it does not.
func (e elsewhere) Folder() string { return e.folder }

// Shared says that other hubs can use the place too.
func (p *Place) Shared() bool { return p.ID != Own }

// TakenError says that the blobs of a place are another grid's.
type TakenError struct{ Where, Grid string }

func (e *TakenError) Error() string {
	return "the blobs at " + e.Where + " are those of grid " + e.Grid
}

// Unwrap makes errors.Is(e, offpeak.ErrConflict) true.
func (e *TakenError) Unwrap() error { return offpeak.ErrConflict }

// Claim notes there that the blobs are a grid's. It returns a *TakenError when they
// are another one's, unless take is set: each of two grids would take the other's
// blobs for nobody's. A hub's own folder is its grid's in any case.
func (p *Place) Claim(ctx context.Context, grid string, take bool) error {
	if p.claim == nil {
		return nil
	}
	owner, err := p.claim(ctx, grid, take)
	if err != nil {
		return fmt.Errorf("mark the blobs as the grid's: %w", err)
	}
	if owner != grid {
		return &TakenError{p.where, owner}
	}
	return nil
}

// Empty says that no blob lies there.
func (p *Place) Empty(ctx context.Context) (bool, error) { return p.empty(ctx) }

// Close gives back what the place holds open. Readers that are open stay good.
func (p *Place) Close() error { return p.close() }
