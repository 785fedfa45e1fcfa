package manifest

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"offpeak"
)

// Array holds the flags that make an array of a job.
type Array struct {
	indexes string
	sweep   []string
	atOnce  int
	gang    int
}

// Bind adds the flags to a command.
func (a *Array) Bind(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&a.indexes, "array", "", "an array of jobs, one for each `index`: 0-999 or 3,7,10-12; with %N behind it at most N run at once")
	f.StringArrayVar(&a.sweep, "sweep", nil, "an array of jobs, one for each value: `name=values` like lr=0.1,0.01 or seed=1..3; several give each combination (repeatable)")
	f.IntVar(&a.gang, "gang", 0, fmt.Sprintf("%d to %d jobs `n` that start together, each on a node of its own, or not at all", offpeak.MinGang, offpeak.MaxGang))
	f.IntVar(&a.atOnce, "at-once", 0, "most members `n` of an array that run at once (default no limit)")
}

// Read returns the array that the flags describe, nil for a job of its own.
func (a *Array) Read(cmd *cobra.Command) (*offpeak.Array, error) {
	set := cmd.Flags().Changed
	if set("gang") {
		switch {
		case set("array") || set("sweep") || set("at-once"):
			return nil, &offpeak.FieldError{Field: "--gang", Rule: "goes without --array, --sweep and --at-once: members of a gang are numbered from 0 and all run at once; leave one of the two out"}
		case a.gang < offpeak.MinGang || a.gang > offpeak.MaxGang:
			return nil, &offpeak.FieldError{Field: "--gang", Value: strconv.Itoa(a.gang), Rule: fmt.Sprintf("is from %d to %d", offpeak.MinGang, offpeak.MaxGang)}
		}
		return &offpeak.Array{Gang: a.gang}, nil
	}
	if !set("array") && !set("sweep") {
		if set("at-once") {
			return nil, &offpeak.FieldError{Field: "--at-once", Rule: "goes with --array or --sweep"}
		}
		return nil, nil
	}
	out := &offpeak.Array{AtOnce: a.atOnce}
	if set("at-once") && (a.atOnce < 1 || a.atOnce > offpeak.MaxMembers) {
		return nil, &offpeak.FieldError{Field: "--at-once", Value: strconv.Itoa(a.atOnce), Rule: fmt.Sprintf("is from 1 to %d", offpeak.MaxMembers)}
	}
	if set("array") {
		indexes, most, limited := strings.Cut(a.indexes, "%")
		var err error
		if out.Indexes, err = offpeak.ParseIndexes(indexes); err != nil {
			return nil, fieldOf("--array", err)
		}
		if limited {
			n, err := strconv.Atoi(most)
			switch {
			case err != nil || n < 1 || n > offpeak.MaxMembers:
				return nil, &offpeak.FieldError{Field: "--array", Value: a.indexes, Rule: fmt.Sprintf("has a number from 1 to %d behind %%", offpeak.MaxMembers)}
			case set("at-once") && n != a.atOnce:
				return nil, &offpeak.FieldError{Field: "--at-once", Rule: "is given once: here or behind % in --array"}
			}
			out.AtOnce = n
		}
	}
	for _, text := range a.sweep {
		p, err := parameter(text)
		if err != nil {
			return nil, err
		}
		out.Sweep = append(out.Sweep, p)
	}
	return out, a.written(out.Validate())
}

// written has what breaks a rule named by the flag that says it.
func (a *Array) written(err error) error {
	all, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	var out []error
	for _, err := range all.Unwrap() {
		f, ok := errors.AsType[*offpeak.FieldError](err)
		if !ok {
			out = append(out, err)
			continue
		}
		said := *f
		var i int
		if _, err := fmt.Sscanf(f.Field, "array.sweep[%d]", &i); err == nil && i < len(a.sweep) {
			said.Field, said.Value = "--sweep", a.sweep[i]
		} else if field, ok := strings.CutPrefix(f.Field, "array."); ok {
			said.Field = map[string]string{"sweep": "--sweep", "indexes": "--array", "at_once": "--at-once"}[field]
		}
		out = append(out, &said)
	}
	return errors.Join(out...)
}

func fieldOf(field string, err error) error {
	if v, ok := err.(*offpeak.ValueError); ok { //nolint:errorlint // as ParseIndexes returns it
		return &offpeak.FieldError{Field: field, Value: v.Value, Rule: v.Rule}
	}
	return err
}

// parameter reads name=values.
func parameter(text string) (p offpeak.Parameter, err error) {
	name, values, ok := strings.Cut(text, "=")
	if !ok {
		return p, &offpeak.FieldError{Field: "--sweep", Value: text, Rule: "is written name=values, for example lr=0.1,0.01 or seed=1..3"}
	}
	p.Name = name
	between := regexp.MustCompile(`^(-?[0-9]{1,15})\.\.(-?[0-9]{1,15})$`)
	for value := range strings.SplitSeq(values, ",") {
		ends := between.FindStringSubmatch(value)
		switch {
		case ends == nil && strings.Contains(value, "..") && !strings.Contains(value, "/"):
			return p, &offpeak.FieldError{Field: "--sweep", Value: text, Rule: "has ranges of whole numbers, for example seed=1..3"}
		case ends == nil:
			p.Values = append(p.Values, value)
			continue
		}
		first, err := strconv.Atoi(ends[1])
		last, err2 := strconv.Atoi(ends[2])
		switch {
		case err != nil || err2 != nil || first > last:
			return p, &offpeak.FieldError{Field: "--sweep", Value: text, Rule: "has ranges that run upward, for example seed=1..3"}
		case last-first >= offpeak.MaxMembers:
			return p, &offpeak.FieldError{Field: "--sweep", Value: text, Rule: fmt.Sprintf("has at most %d combinations", offpeak.MaxMembers)}
		}
		for n := first; n <= last; n++ {
			p.Values = append(p.Values, strconv.Itoa(n))
		}
	}
	return p, nil
}

// parseArray reads an array as --array takes it.
func parseArray(text string) (*offpeak.Array, error) {
	indexes, most, limited := strings.Cut(text, "%")
	out := &offpeak.Array{}
	var err error
	if out.Indexes, err = offpeak.ParseIndexes(indexes); err != nil {
		return nil, err
	}
	if limited {
		if out.AtOnce, err = strconv.Atoi(most); err != nil || out.AtOnce < 1 || out.AtOnce > offpeak.MaxMembers {
			return nil, &offpeak.ValueError{Value: text, Rule: fmt.Sprintf("has a number from 1 to %d behind %%", offpeak.MaxMembers)}
		}
	}
	return out, nil
}
