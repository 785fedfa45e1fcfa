package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"offpeak"
)

// PackOptions say what Pack packs. The zero value packs everything.
type PackOptions struct {
	// Ignore leaves files out; nil leaves out nothing.
	Ignore *Ignore
	// Limit bounds the sum of the files' sizes; 0 is no bound but MaxBytes.
	Limit offpeak.Bytes
	// RefuseLinks leaves out files with more than one name, as must be done
	// with folders that a job wrote: the other name may be a file of the host
	// that the job could link to but not read.
	RefuseLinks bool
	// LeaveOutNames leaves out what no tree may hold for its path, as is right for
	// outputs, where one odd name must not cost the rest. Otherwise it is an error.
	LeaveOutNames bool
	// Progress is called now and then while files are read.
	Progress func(done, total offpeak.Bytes)
}

// Packed is a folder that was read and hashed, ready to be sent. It holds no
// contents: they are read again when they are sent, and checked against the
// hash, so memory stays flat and a file that changed meanwhile is noticed.
type Packed struct {
	// Manifest describes the tree, Tree is its hash.
	Manifest Manifest
	Tree     offpeak.Hash
	// Skipped is what was left out, the first hundred; MoreSkipped counts the rest.
	Skipped     []Skip
	MoreSkipped int

	root    *os.Root
	encoded []byte
	// place says where a chunk's bytes are.
	place map[offpeak.Hash]location
}

// location is a place in a folder: the index of an entry and of a chunk in it.
type location struct{ entry, chunk int }

// Size is the sum of the sizes of the files.
func (p *Packed) Size() offpeak.Bytes { return p.Manifest.Size() }

// Pack reads the files and folders at paths below root: slash-separated paths
// or patterns as in path.Match, or everything if there are none. A folder that
// is matched is packed with all that is in it. Links are never followed; what
// is neither file nor folder is left out and listed in Skipped. root must stay
// open until the result was uploaded.
//
// It returns a *NoMatchError if a path or pattern matched nothing that can be
// packed, an error that wraps ErrTooLarge over a bound, ErrInvalid for a name
// that no tree may hold (unless those are left out) or a pattern that leaves the folder, and ErrChanged if
// a file changed while it was read.
func Pack(ctx context.Context, root *os.Root, paths []string, opts PackOptions) (*Packed, error) {
	w := &walker{opts: opts, matched: make([]bool, len(paths))}
	for _, p := range paths {
		if _, err := path.Match(p, ""); err != nil || !fs.ValidPath(p) {
			return nil, fmt.Errorf("pack: %w", &offpeak.FieldError{Field: "path", Value: p, Rule: "is a path or pattern inside the folder, with / between names and without .."})
		}
		w.patterns = append(w.patterns, p)
	}
	if err := w.walk(ctx, root); err != nil {
		return nil, fmt.Errorf("pack: %w", err)
	}
	slices.SortFunc(w.entries, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	p := &Packed{
		Manifest:    Manifest{Version: manifestVersion, Entries: w.entries},
		Skipped:     w.skips,
		MoreSkipped: w.more,
		root:        root,
		place:       make(map[offpeak.Hash]location),
	}
	if p.Manifest.Entries == nil {
		p.Manifest.Entries = []Entry{}
	}
	if err := p.hash(ctx, w.total, opts); err != nil {
		return nil, fmt.Errorf("pack: %w", err)
	}
	var err error
	if p.encoded, err = p.Manifest.Encode(); err != nil {
		return nil, fmt.Errorf("pack: %w", err)
	}
	p.Tree = Sum(p.encoded)
	return p, nil
}

func (p *Packed) hash(ctx context.Context, total offpeak.Bytes, opts PackOptions) error {
	buf := make([]byte, ChunkSize)
	var done offpeak.Bytes
	for i := range p.Manifest.Entries {
		e := &p.Manifest.Entries[i]
		if e.Kind != KindFile {
			continue
		}
		err := p.hashFile(ctx, i, buf, opts.RefuseLinks, func(n int) {
			done += offpeak.Bytes(n)
			if opts.Progress != nil {
				opts.Progress(done, total)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// hashFile fills in the chunks of an entry. The size was fixed by the walk.
func (p *Packed) hashFile(ctx context.Context, i int, buf []byte, refuseLinks bool, read func(int)) error {
	e := &p.Manifest.Entries[i]
	f, before, err := openPath(p.root, e.Path)
	if err != nil {
		return changed(e.Path, err)
	}
	defer f.Close()
	if refuseLinks && linked(before) {
		return &ChangedError{Path: e.Path, How: "it was linked"}
	}
	if offpeak.Bytes(before.Size()) != e.Size {
		return &ChangedError{Path: e.Path, How: "its size changed"}
	}
	for c := range int(chunkCount(e.Size)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		chunk := buf[:e.chunkLen(c)]
		if _, err := io.ReadFull(f, chunk); err != nil {
			return changed(e.Path, err)
		}
		h := Sum(chunk)
		e.Chunks = append(e.Chunks, h)
		if _, ok := p.place[h]; !ok {
			p.place[h] = location{i, c}
		}
		read(len(chunk))
	}
	after, err := f.Stat()
	if err != nil {
		return changed(e.Path, err)
	}
	if after.Size() != before.Size() || !after.ModTime().Equal(before.ModTime()) {
		return &ChangedError{Path: e.Path, How: "it was written to"}
	}
	return nil
}

// chunk reads the bytes of a hash again.
func (p *Packed) chunk(h offpeak.Hash) ([]byte, error) {
	if h == p.Tree {
		return p.encoded, nil
	}
	at, ok := p.place[h]
	if !ok {
		return nil, fmt.Errorf("%w: chunk %s is not in this tree", offpeak.ErrInvalid, h)
	}
	e := p.Manifest.Entries[at.entry]
	f, _, err := openPath(p.root, e.Path)
	if err != nil {
		return nil, changed(e.Path, err)
	}
	defer f.Close()
	data := make([]byte, e.chunkLen(at.chunk))
	if _, err := f.ReadAt(data, int64(at.chunk)*int64(ChunkSize)); err != nil {
		return nil, changed(e.Path, err)
	}
	if Sum(data) != h {
		return nil, &ChangedError{Path: e.Path, How: "its bytes have another hash"}
	}
	return data, nil
}

// changed tells a file that shrank or was replaced from one that can't be read.
func changed(p string, err error) error {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return &ChangedError{Path: p, How: "it became shorter"}
	case errors.Is(err, errSwapped):
		return &ChangedError{Path: p, How: "it was replaced"}
	}
	return fmt.Errorf("read %q: %w", p, err)
}
