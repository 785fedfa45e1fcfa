// Package tuning holds the commands around what placement weighs: show and set it,
// replay what was recorded under other weights, and search for better ones.
//
// It owns their flags, how files of weights and of traffic are read, and what is
// printed. What weights mean is placement's, what became of traffic under them
// package replay's; opening a database is handed in, since only the commands of a
// hub's operator know how. Commands are built by New and run one a process.
package tuning

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"offpeak"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/placement"
	"offpeak/store"
)

// Open opens the database of a grid to be read: the URL of a PostgreSQL database or
// the path of a SQLite file. close gives back what that took.
type Open func(ctx context.Context, place string) (s store.Store, close func() error, err error)

// New returns the commands.
func New(env world.Env, open Open) []*cobra.Command {
	return []*cobra.Command{newWeights(env), newReplay(env, open)}
}

// weightsFile is what a file of weights holds.
type weightsFile struct {
	policy  placement.Policy
	weights map[string]float64
}

// readWeights reads a file of weights: YAML, a name and a number on each line, and
// the policy.
func readWeights(path string) (out weightsFile, err error) {
	const most = 64 << 10
	f, err := os.Open(path)
	if err != nil {
		return out, world.Refuse(fmt.Errorf("read weights: %w", err))
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return out, fmt.Errorf("read weights from %s: %w", path, err)
	}
	if len(data) > most {
		return out, world.BadInput("%s: is no file of weights: it is longer than 64 KiB", path)
	}
	var nodes map[string]yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&nodes); err != nil && !errors.Is(err, io.EOF) {
		return out, world.BadInput("read weights from %s: %w", path, err)
	}
	if err := d.Decode(new(yaml.Node)); err == nil {
		return out, world.BadInput("%s: holds one document, a set of weights: put each into a file of its own", path)
	} else if !errors.Is(err, io.EOF) {
		return out, world.BadInput("read weights from %s: %w", path, err)
	}
	out.weights = make(map[string]float64)
	var errs []error
	for name, n := range nodes {
		if name == "policy" {
			if out.policy = placement.Policy(n.Value); n.Value == "" || !out.policy.Valid() {
				errs = append(errs, world.BadInput("%s: policy: %q (line %d): is cheapest, balanced or fastest", path, n.Value, n.Line))
			}
			continue
		}
		v, err := number(n.Value)
		if err != nil || n.Kind != yaml.ScalarNode {
			errs = append(errs, world.BadInput("%s: %s: %q (line %d): is a number", path, name, n.Value, n.Line))
		}
		out.weights[name] = v
	}
	if len(nodes) == 0 {
		return out, world.BadInput("%s: holds no weights: a line is a name and a number, for example vram: 8; there are %s", path, strings.Join(placement.WeightNames(), ", "))
	}
	return out, errors.Join(errs...)
}

// number reads a finite number.
func number(text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || v-v != 0 { // not a number, or without end
		return 0, &offpeak.ValueError{Value: text, Rule: "is a number, for example 8 or 0.5"}
	}
	return v, nil
}

// yamlOf is a tuning as a file.
func yamlOf(t placement.Tuning) string {
	var b strings.Builder
	fmt.Fprintf(&b, "policy: %s\n", t.Policy)
	named := t.Named()
	for _, name := range placement.WeightNames() {
		fmt.Fprintf(&b, "%s: %s\n", name, short(named[name]))
	}
	return b.String()
}

// short prints a number without what rounding left.
func short(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }
