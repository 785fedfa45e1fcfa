package blob

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"offpeak"
)

// Bounds of a tree. MaxBlob bounds its manifest as well.
const (
	MaxEntries = 100_000
	MaxPath    = 1024
	MaxDepth   = 64
	maxName    = 255
)

// manifestVersion is raised when the format changes.
const manifestVersion = 1

// stagingDir is where Unpack keeps files that are not whole yet. Pack leaves it
// out and no manifest may name it.
const stagingDir = ".offpeak-part"

// Kind tells the entries of a tree apart.
type Kind string

// The kinds. There are no links, devices, pipes or sockets in a tree: what
// can't be written down can't be unpacked.
const (
	KindFile Kind = "file"
	KindDir  Kind = "dir"
)

// Manifest describes a tree. It has one form of bytes only, so equal trees have
// equal hashes: entries are in the order of their paths' bytes, and every
// folder has an entry of its own before what is in it.
type Manifest struct {
	Version int     `json:"v"`
	Entries []Entry `json:"entries"`
}

// Entry is a file or folder of a tree.
type Entry struct {
	// Path is relative, with / between names, and leaves nothing to resolve.
	// It is kept byte for byte: no case or Unicode form is changed.
	Path string `json:"path"`
	Kind Kind   `json:"kind"`
	// Exec is the only bit of a file's mode that is kept.
	Exec bool          `json:"exec,omitempty"`
	Size offpeak.Bytes `json:"size,omitempty"`
	// Chunks are the file's bytes in pieces of ChunkSize, the last one shorter.
	Chunks []offpeak.Hash `json:"chunks,omitempty"`
}

// ParseManifest reads a manifest that anyone may have written. It returns an
// error that wraps ErrInvalid for anything that Encode would not have written
// and for names that no tree may hold, or ErrTooLarge for one that is over a
// bound.
func ParseManifest(data []byte) (Manifest, error) {
	m, err := parseManifest(data)
	if err != nil {
		return Manifest{}, fmt.Errorf("read manifest: %w", err)
	}
	return m, nil
}

func parseManifest(data []byte) (Manifest, error) {
	if len(data) > int(MaxBlob) {
		return Manifest{}, fmt.Errorf("%d bytes, at most %d: %w", len(data), int64(MaxBlob), offpeak.ErrTooLarge)
	}
	var m Manifest
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil {
		return Manifest{}, fmt.Errorf("%w: %w", offpeak.ErrInvalid, err)
	}
	if err := m.check(); err != nil {
		return Manifest{}, err
	}
	// What Go's decoder forgives (white space, repeated or oddly cased keys,
	// trailing bytes, broken UTF-8) ends here.
	canonical, err := json.Marshal(m)
	if err != nil {
		return Manifest{}, fmt.Errorf("%w: %w", offpeak.ErrInvalid, err)
	}
	if !bytes.Equal(canonical, data) {
		return Manifest{}, fmt.Errorf("%w: not in canonical form", offpeak.ErrInvalid)
	}
	return m, nil
}

// Encode returns the manifest's bytes, or ErrInvalid or ErrTooLarge as
// ParseManifest would.
func (m Manifest) Encode() ([]byte, error) {
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("write manifest: %w", err)
	}
	data, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("write manifest: %w", err)
	}
	if len(data) > int(MaxBlob) {
		return nil, fmt.Errorf("write manifest: %d bytes for %d entries, at most %d: %w", len(data), len(m.Entries), int64(MaxBlob), offpeak.ErrTooLarge)
	}
	return data, nil
}

// Size is the sum of the sizes of the files.
func (m Manifest) Size() offpeak.Bytes {
	var sum offpeak.Bytes
	for i := range m.Entries {
		sum += m.Entries[i].Size
	}
	return sum
}

// Chunks returns the hashes of all chunks, each once, in the order of their
// first use.
func (m Manifest) Chunks() []offpeak.Hash {
	seen := make(map[offpeak.Hash]struct{})
	var out []offpeak.Hash
	for i := range m.Entries {
		for _, h := range m.Entries[i].Chunks {
			if _, ok := seen[h]; !ok {
				seen[h] = struct{}{}
				out = append(out, h)
			}
		}
	}
	return out
}

func (m Manifest) check() error {
	if m.Version != manifestVersion {
		return fmt.Errorf("%w: version %d, want %d", offpeak.ErrInvalid, m.Version, manifestVersion)
	}
	if m.Entries == nil {
		return &offpeak.FieldError{Field: "entries", Rule: "is a list, empty for an empty tree"}
	}
	if len(m.Entries) > MaxEntries {
		return fmt.Errorf("%d entries, at most %d: %w", len(m.Entries), MaxEntries, offpeak.ErrTooLarge)
	}
	dirs := make(map[string]bool)
	var total offpeak.Bytes
	for i, e := range m.Entries {
		field := fmt.Sprintf("entries[%d]", i)
		if err := checkPath(field+".path", e.Path); err != nil {
			return err
		}
		if i > 0 && e.Path <= m.Entries[i-1].Path {
			return &offpeak.FieldError{Field: field + ".path", Value: e.Path, Rule: "comes after the path before it, in byte order and once"}
		}
		if cut := strings.LastIndexByte(e.Path, '/'); cut >= 0 && !dirs[e.Path[:cut]] {
			return &offpeak.FieldError{Field: field + ".path", Value: e.Path, Rule: "lies in a folder that has an entry of its own before it"}
		}
		if err := e.check(field); err != nil {
			return err
		}
		if e.Kind == KindDir {
			dirs[e.Path] = true
		}
		if total += e.Size; total > offpeak.MaxBytes {
			return fmt.Errorf("files of together more than %s: %w", offpeak.MaxBytes, offpeak.ErrTooLarge)
		}
	}
	return nil
}

func (e Entry) check(field string) error {
	switch e.Kind {
	case KindDir:
		if e.Exec || e.Size != 0 || e.Chunks != nil {
			return &offpeak.FieldError{Field: field, Value: e.Path, Rule: "is a folder and has a path only"}
		}
		return nil
	case KindFile:
	default:
		return &offpeak.FieldError{Field: field + ".kind", Value: string(e.Kind), Rule: "is file or dir"}
	}
	if e.Size < 0 || e.Size > offpeak.MaxBytes {
		return &offpeak.FieldError{Field: field + ".size", Value: e.Size.String(), Rule: "is from 0 to " + offpeak.MaxBytes.String()}
	}
	if want := chunkCount(e.Size); int64(len(e.Chunks)) != want || (want == 0 && e.Chunks != nil) {
		return &offpeak.FieldError{Field: field + ".chunks", Value: fmt.Sprint(len(e.Chunks)), Rule: fmt.Sprintf("has %d hashes for %d bytes", want, int64(e.Size))}
	}
	for _, h := range e.Chunks {
		if !h.Valid() {
			return &offpeak.FieldError{Field: field + ".chunks", Value: string(h), Rule: "holds hashes of 64 lower-case hex digits"}
		}
	}
	return nil
}

func chunkCount(size offpeak.Bytes) int64 { return int64((size + ChunkSize - 1) / ChunkSize) }

// chunkLen is the length of a file's i-th chunk.
func (e Entry) chunkLen(i int) int {
	return int(min(ChunkSize, e.Size-offpeak.Bytes(i)*ChunkSize))
}

// checkPath returns nil for a path that a tree may hold. The rules are those
// of every system at once where a name could mean something else on another
// one (backslash, dots), and stop there: a colon or "aux" is a fine name on
// most systems, so it is refused only when it is unpacked where it is not.
// Control characters are refused since no one means them; right-to-left text
// is not, since people write in it. Whoever prints a name quotes it.
func checkPath(field, p string) error {
	bad := func(rule string) error {
		return &offpeak.FieldError{Field: field, Value: p, Rule: rule}
	}
	switch {
	case len(p) > MaxPath:
		return bad(fmt.Sprintf("is at most %d bytes long", MaxPath))
	case !utf8.ValidString(p):
		return bad("is valid UTF-8")
	}
	for _, r := range p {
		if r < 0x20 || (r >= 0x7f && r < 0xa0) || r == '\\' {
			return bad("holds no control character and no backslash")
		}
	}
	names := strings.Split(p, "/")
	if len(names) > MaxDepth {
		return bad(fmt.Sprintf("is at most %d folders deep", MaxDepth))
	}
	for _, n := range names {
		switch {
		case n == "" || n == "." || n == "..":
			return bad("is relative, with one / between names and without . and ..")
		case len(n) > maxName:
			return bad(fmt.Sprintf("has names of at most %d bytes", maxName))
		}
	}
	if names[0] == stagingDir {
		return bad("does not begin with " + stagingDir + ", which holds half-written files")
	}
	return nil
}
