package transfer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"offpeak"
	"offpeak/agent/state"
	"offpeak/blob"
)

// Outputs is what became of an attempt's outputs.
type Outputs struct {
	// Tree holds what was stored, "" if nothing was.
	Tree offpeak.Hash
	// Missing names the patterns that match nothing; nil if there are none.
	Missing *blob.NoMatchError
	// LeftOut says in a sentence what a tree may not hold and was left out.
	LeftOut string
}

// OutputPaths are the patterns of what an attempt leaves: those its task names
// and the output folder, if anything is in it.
func (l *Lease) OutputPaths(named []string) []string {
	paths := slices.Clone(named)
	if l.Folder.Holds(state.WorkDir, state.OutputDir) && !slices.Contains(paths, state.OutputDir) {
		paths = append(paths, state.OutputDir)
	}
	return paths
}

// StoreOutputs stores what the patterns match in the job's folder. Patterns
// that match nothing don't keep the rest from being stored.
func (l *Lease) StoreOutputs(ctx context.Context, paths []string) (out Outputs, err error) {
	work, err := l.Folder.Work()
	if err != nil {
		return out, fmt.Errorf("open job folder: %w", err)
	}
	defer work.Close()
	packed, err := l.packOutputs(ctx, work, paths, &out)
	if err != nil {
		return out, fmt.Errorf("pack outputs: %w", err)
	}
	if packed == nil {
		return out, nil
	}
	out.LeftOut = l.skipped(packed)
	tree, err := blob.Upload(ctx, l.Remote(), packed, nil)
	if err != nil {
		return out, fmt.Errorf("upload outputs: %w", err)
	}
	out.Tree = tree
	return out, nil
}

// packOutputs packs what is there, and again if it changed meanwhile; nil if
// nothing is.
func (l *Lease) packOutputs(ctx context.Context, work *os.Root, paths []string, out *Outputs) (*blob.Packed, error) {
	for tries := packTries; ; {
		packed, err := blob.Pack(ctx, work, paths, blob.PackOptions{RefuseLinks: true, LeaveOutNames: true})
		if none, ok := errors.AsType[*blob.NoMatchError](err); ok {
			out.Missing = none
			paths = slices.DeleteFunc(slices.Clone(paths), func(p string) bool { return slices.Contains(none.Patterns, p) })
			if len(paths) == 0 {
				return nil, nil
			}
			continue
		}
		if tries--; err == nil || tries <= 0 || !errors.Is(err, blob.ErrChanged) {
			return packed, err
		}
	}
}
