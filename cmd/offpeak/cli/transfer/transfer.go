// Package transfer moves files between the folder that a person stands in and
// the hub: inputs there, outputs back, with progress on anything that takes
// over a second.
//
// It knows what --input may name and that outputs hold nothing but what the job
// declared, since a node is not to be trusted with a person's files. How bytes
// are packed and checked is blob's.
package transfer

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"offpeak"
	"offpeak/blob"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
)

// InputHelp says in help texts what --input does.
const InputHelp = `--input PATH puts a file or folder into the job's folder, under the name it has
here. A folder written with / at its end, or . for the current one, lands with
its contents at the top of the job's folder; files that its .offpeakignore names
stay here. Links and devices are left out, with a note.`

// Desk moves files for one person.
type Desk struct {
	Hub *remote.Hub
	// Note shows a line to the person who waits; Stderr is where bars are drawn.
	Note   func(line string)
	Stderr io.Writer
}

// Inputs says which folder to pack and what of it; no paths is all of it.
func Inputs(given []string) (root string, paths []string, err error) {
	return inputs("--input", ".", given)
}

// inputs is Inputs for a field whose paths are relative to a folder.
func inputs(field, folder string, given []string) (root string, paths []string, err error) {
	wrong := func(value, rule string) error {
		return world.Refuse(&offpeak.FieldError{Field: field, Value: value, Rule: rule})
	}
	for _, in := range given {
		at := in
		if folder != "." && !filepath.IsAbs(in) {
			at = filepath.Join(folder, in)
		}
		info, err := os.Lstat(at)
		whole := in == "." || strings.HasSuffix(in, "/") || strings.HasSuffix(in, string(filepath.Separator))
		switch {
		case err != nil:
			return "", nil, wrong(in, "is a file or folder that is there")
		case whole && !info.IsDir():
			return "", nil, wrong(in, "is a folder")
		case whole && len(given) > 1:
			return "", nil, wrong(in, "is given alone: its contents land at the top of the job's folder")
		case whole:
			return at, nil, nil
		case filepath.IsLocal(in):
			paths = append(paths, escapePattern(filepath.ToSlash(filepath.Clean(in))))
		case len(given) > 1:
			return "", nil, wrong(in, "is inside "+here(folder)+" where several inputs are given")
		default:
			abs, err := filepath.Abs(at)
			if err != nil {
				return "", nil, wrong(in, "is a file or folder that is there")
			}
			return filepath.Dir(abs), []string{escapePattern(filepath.Base(abs))}, nil
		}
	}
	return folder, paths, nil
}

// here names the folder that paths are relative to.
func here(folder string) string {
	if folder == "." {
		return "the current folder"
	}
	return folder
}

// escapePattern makes a path stand for itself where patterns are read.
func escapePattern(p string) string {
	return strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(p)
}

// Send packs inputs, sends what the hub does not have yet and returns the tree.
func (d Desk) Send(ctx context.Context, given []string) (offpeak.Hash, error) {
	return d.SendFrom(ctx, "--input", ".", given)
}

// Check says what is wrong with inputs whose paths are relative to a folder.
func (Desk) Check(field, folder string, given []string) error {
	_, _, err := inputs(field, folder, given)
	return err
}

// SendFrom is Send for a field whose paths are relative to a folder.
func (d Desk) SendFrom(ctx context.Context, field, folder string, given []string) (offpeak.Hash, error) {
	folder, paths, err := inputs(field, folder, given)
	if err != nil {
		return "", err
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return "", world.Refuse(fmt.Errorf("open input: %w", err))
	}
	defer root.Close()
	ignore, err := blob.ReadIgnore(root)
	if err != nil {
		return "", err
	}
	step, done := d.progress("reading inputs")
	packed, err := blob.Pack(ctx, root, paths, blob.PackOptions{Ignore: ignore, Progress: step})
	done()
	if err != nil {
		return "", err
	}
	for _, s := range packed.Skipped {
		d.Note(s.String())
	}
	if packed.MoreSkipped > 0 {
		d.Note(fmt.Sprintf("%d more left out", packed.MoreSkipped))
	}
	step, done = d.progress("sending inputs")
	defer done()
	return blob.Upload(ctx, remote.Blobs{Hub: d.Hub}, packed, step)
}

// Look returns what a tree of outputs holds. A node is not trusted to send back
// only what the job named, or what lies in the folder that is always kept.
func (d Desk) Look(ctx context.Context, tree offpeak.Hash, patterns []string) (blob.Manifest, error) {
	m, err := blob.Fetch(ctx, remote.Blobs{Hub: d.Hub}, tree)
	if err != nil {
		return m, err
	}
	patterns = append(slices.Clone(patterns), keptFolder)
	for _, e := range m.Entries {
		if !declared(e.Path, patterns) {
			return m, fmt.Errorf("fetch outputs: %q is not among the job's outputs: %w", render.Safe(e.Path), offpeak.ErrInvalid)
		}
	}
	return m, nil
}

// Fetch lays a tree of outputs out in a folder. What is there already under the
// same names is replaced.
func (d Desk) Fetch(ctx context.Context, tree offpeak.Hash, patterns []string, folder string) error {
	if _, err := d.Look(ctx, tree, patterns); err != nil {
		return err
	}
	from := remote.Blobs{Hub: d.Hub}
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return fmt.Errorf("fetch outputs: %w", err)
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return fmt.Errorf("fetch outputs: %w", err)
	}
	defer root.Close()
	step, done := d.progress("fetching outputs")
	defer done()
	return blob.Unpack(ctx, from, tree, root, blob.UnpackOptions{Overwrite: true, Progress: step})
}

// keptFolder is the folder that agents keep without being asked: the job knows it
// as OFFPEAK_OUTPUT_DIR.
const keptFolder = "outputs"

// declared says that a path is matched by an output pattern, lies below what is
// matched, or is a folder on the way to it.
func declared(p string, patterns []string) bool {
	have := strings.Split(p, "/")
	for _, pattern := range patterns {
		want := strings.Split(pattern, "/")
		n := min(len(have), len(want))
		ok, err := path.Match(strings.Join(want[:n], "/"), strings.Join(have[:n], "/"))
		if pattern == "." || (ok && err == nil) {
			return true
		}
	}
	return false
}

// Waits before progress is shown, and between lines where no bar can be drawn.
const (
	beforeProgress = time.Second
	betweenLines   = 5 * time.Second
)

// progress returns a function that shows how far a transfer is, once it takes
// over a second: a bar on a terminal, else a line now and then. done ends it.
func (d Desk) progress(what string) (step func(done, total offpeak.Bytes), done func()) {
	begun := time.Now()
	if !world.Terminal(d.Stderr) {
		last := begun
		return func(done, total offpeak.Bytes) {
			if now := time.Now(); now.Sub(last) >= betweenLines {
				last = now
				d.Note(fmt.Sprintf("%s: %s of %s", what, render.About(done), render.About(total)))
			}
		}, func() {}
	}
	var p *mpb.Progress
	var bar *mpb.Bar
	step = func(done, total offpeak.Bytes) {
		if bar == nil && time.Since(begun) >= beforeProgress {
			p = mpb.New(mpb.WithOutput(d.Stderr), mpb.WithWidth(64))
			bar = p.AddBar(int64(total),
				mpb.PrependDecorators(decor.Name(what+" "), decor.CountersKibiByte("% .1f of % .1f")),
				mpb.AppendDecorators(decor.Percentage(), decor.AverageSpeed(decor.SizeB1024(0), " % .1f")))
		}
		if bar != nil {
			bar.SetCurrent(int64(done))
		}
	}
	return step, func() {
		if bar != nil {
			bar.Abort(false)
			p.Wait()
		}
	}
}
