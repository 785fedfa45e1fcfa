// Package manifest turns what a person says of a job, in flags and in a job
// file, into the spec that a hub takes.
//
// It owns the flags that describe a job, the job file's form and how both are
// read: every mistake is an error that names the field and the rule and wraps
// offpeak.ErrInvalid. It reads the files that are named and asks no hub. Its
// values belong to one goroutine.
package manifest

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"reflect"
	"strconv"
	"strings"

	"offpeak/cmd/offpeak/cli/world"

	"go.yaml.in/yaml/v3"

	"offpeak"
)

// Read reads a job file: YAML (or JSON, which is YAML) in the words of
// the API. Sizes carry units, or are bytes from 1 MB up, as the API prints them; a price with its unit is credits per hour, an
// amount with a decimal point is credits, and whole numbers of either are
// micro-credits, as the API prints them. Fields that do not exist are refused, each with its
// path.
func Read(path string, stdin io.Reader) (offpeak.Spec, error) {
	return read[offpeak.Spec](path, stdin, "a job: task, requirements, limits, …")
}

// Pipeline is a pipeline file.
type Pipeline struct {
	Name  string `json:"name"`
	Steps []Step `json:"steps"`
}

// Step is a step of a pipeline file: a job file's fields, and those of the step.
type Step struct {
	offpeak.Step
	// Files land in the job's folder. They are relative to the pipeline file's folder.
	Files []string `json:"files"`
}

// ReadPipeline reads a pipeline file, as Read does a job file.
func ReadPipeline(path string, stdin io.Reader) (Pipeline, error) {
	return read[Pipeline](path, stdin, "a pipeline: name and steps")
}

func read[T any](path string, stdin io.Reader, what string) (spec T, err error) {
	in := stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return spec, world.Refuse(fmt.Errorf("read job file: %w", err))
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, int64(offpeak.MaxSpec)+1))
	if err != nil {
		return spec, fmt.Errorf("read job file: %w", err)
	}
	if len(data) > int(offpeak.MaxSpec) {
		return spec, world.Hint(&offpeak.FieldError{Field: path, Rule: fmt.Sprintf("is at most %s long", offpeak.MaxSpec)}, "Put large data into an input file: --input FILE.")
	}
	var doc, more yaml.Node
	documents := yaml.NewDecoder(bytes.NewReader(data))
	if err := documents.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return spec, world.Refuse(fmt.Errorf("read job file %s: %w", path, err))
	}
	if err := documents.Decode(&more); err == nil {
		return spec, &offpeak.FieldError{Field: fmt.Sprintf("line %d", more.Line), Rule: "a file holds one document, " + what + ": put each into a file of its own"}
	} else if !errors.Is(err, io.EOF) {
		return spec, world.Refuse(fmt.Errorf("read job file %s: %w", path, err))
	}
	if len(doc.Content) == 0 {
		return spec, &offpeak.FieldError{Field: path, Rule: "holds " + what}
	}
	// An alias can stand for more than it is long, and a spec needs none.
	if line := aliased(&doc); line > 0 {
		return spec, &offpeak.FieldError{Field: fmt.Sprintf("line %d", line), Rule: "job files have no aliases (*name)"}
	}
	return spec, fill(doc.Content[0], reflect.ValueOf(&spec).Elem(), "")
}

func aliased(n *yaml.Node) int {
	if n.Kind == yaml.AliasNode {
		return n.Line
	}
	for _, c := range n.Content {
		if line := aliased(c); line > 0 {
			return line
		}
	}
	return 0
}

// fill sets v from a node as encoding/json would, and says for every mistake
// where it is.
func fill(n *yaml.Node, v reflect.Value, path string) error {
	wrong := func(rule string) error {
		value := n.Value
		return &offpeak.FieldError{Field: dashPath(path), Value: value, Rule: fmt.Sprintf("%s (line %d)", rule, n.Line)}
	}
	switch money := v.Addr().Interface().(type) {
	case **offpeak.Price:
		*money = new(offpeak.Price)
		return fillPrice(n, *money, wrong)
	case **offpeak.Array:
		if n.Kind == yaml.ScalarNode && n.Tag != "!!null" {
			a, err := parseArray(n.Value)
			if rule, ok := errors.AsType[*offpeak.ValueError](err); ok {
				return wrong(rule.Rule)
			}
			*money = a
			return nil
		}
	case **offpeak.MicroCredits:
		*money = new(offpeak.MicroCredits)
		return fillAmount(n, *money, wrong)
	}
	if n.Tag == "!!null" {
		return nil
	}
	_, isJSON := v.Addr().Interface().(json.Unmarshaler)
	_, isText := v.Addr().Interface().(encoding.TextUnmarshaler)
	if isJSON || isText {
		if n.Kind != yaml.ScalarNode {
			return wrong("is one value")
		}
		return fillScalar(n, v, isText, wrong)
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return fill(n, v.Elem(), path)
	case reflect.Struct:
		return fillStruct(n, v, path, wrong)
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			return wrong("is a list")
		}
		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
		var errs []error
		for i, item := range n.Content {
			errs = append(errs, fill(item, v.Index(i), fmt.Sprintf("%s[%d]", path, i)))
		}
		return errors.Join(errs...)
	case reflect.Map:
		return fillMap(n, v, path, wrong)
	}
	if n.Kind != yaml.ScalarNode {
		return wrong("is one value")
	}
	return fillScalar(n, v, false, wrong)
}

func fillStruct(n *yaml.Node, v reflect.Value, path string, wrong func(string) error) error {
	if n.Kind != yaml.MappingNode {
		return wrong("is a set of fields")
	}
	fields := map[string][]int{}
	var known []string
	for _, f := range reflect.VisibleFields(v.Type()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" { // an embedded one's fields stand for it
			fields[name] = f.Index
			known = append(known, name)
		}
	}
	var errs []error
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := join(path, key.Value)
		field, ok := fields[key.Value]
		switch {
		case !ok:
			errs = append(errs, &offpeak.FieldError{Field: at, Rule: fmt.Sprintf("is not a field (line %d); there are %s", key.Line, strings.Join(known, ", "))})
		case seen[key.Value]:
			errs = append(errs, &offpeak.FieldError{Field: at, Rule: fmt.Sprintf("stands there twice (line %d)", key.Line)})
		default:
			errs = append(errs, fill(value, v.FieldByIndex(field), at))
		}
		seen[key.Value] = true
	}
	return errors.Join(errs...)
}

func fillMap(n *yaml.Node, v reflect.Value, path string, wrong func(string) error) error {
	if n.Kind != yaml.MappingNode {
		return wrong("is a set of k: v")
	}
	v.Set(reflect.MakeMap(v.Type()))
	var errs []error
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if value.Kind != yaml.ScalarNode {
			errs = append(errs, &offpeak.FieldError{Field: join(path, key.Value), Rule: fmt.Sprintf("is one value (line %d)", value.Line)})
			continue
		}
		if v.MapIndex(reflect.ValueOf(key.Value)).IsValid() {
			errs = append(errs, &offpeak.FieldError{Field: join(path, key.Value), Rule: fmt.Sprintf("stands there twice (line %d)", key.Line)})
			continue
		}
		// In a map of texts, K: 1 and K: true mean the texts as they stand.
		v.SetMapIndex(reflect.ValueOf(key.Value), reflect.ValueOf(value.Value))
	}
	return errors.Join(errs...)
}

// fillPrice reads a price. Null is none: who wants no limit leaves it out.
func fillPrice(n *yaml.Node, p *offpeak.Price, wrong func(string) error) error {
	var err error
	if n.Tag == "!!int" {
		// A whole number is micro-credits, as the API prints it.
		err = json.Unmarshal([]byte(n.Value), p)
	} else {
		*p, err = offpeak.ParsePrice(n.Value)
	}
	if n.Kind != yaml.ScalarNode || err != nil || *p < 0 || *p > offpeak.MaxPrice {
		return wrong("is a price with its unit: credits per hour like 0.40/h with at most six decimals, or a whole number of micro-credits, from 0 to 1000000/h")
	}
	return nil
}

// fillAmount reads an amount, as fillPrice a price.
func fillAmount(n *yaml.Node, m *offpeak.MicroCredits, wrong func(string) error) error {
	var err error
	if n.Tag == "!!int" {
		err = json.Unmarshal([]byte(n.Value), m)
	} else {
		*m, err = offpeak.ParseCredits(n.Value)
	}
	if n.Kind != yaml.ScalarNode || err != nil || *m < 0 || *m > offpeak.MaxAmount {
		return wrong("is an amount: credits with a point like 5.00 with at most six decimals, or a whole number of micro-credits, from 0 to 1000000000000")
	}
	return nil
}

func fillScalar(n *yaml.Node, v reflect.Value, text bool, wrong func(string) error) error {
	if _, size := v.Addr().Interface().(*offpeak.Bytes); size && n.Tag == "!!int" {
		// Nobody means so few bytes, and the API prints none.
		if b, err := strconv.ParseInt(n.Value, 0, 64); err == nil && b > 0 && b < int64(offpeak.MB) {
			return wrong("a size is a number with a unit, for example 24GB, 24GiB or 512MiB; a number without one is bytes, and at least 1000000")
		}
	}
	var value any = n.Value
	if !text && v.Kind() != reflect.String {
		var number any
		if err := n.Decode(&number); err != nil {
			return wrong("can't be read")
		}
		if f, ok := number.(float64); ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
			return wrong("is a number")
		}
		value = number
	}
	data, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(data, v.Addr().Interface())
	}
	var rule *offpeak.ValueError
	switch {
	case errors.As(err, &rule):
		return wrong(rule.Rule)
	case err != nil:
		return wrong("is a " + kindName(v))
	}
	return nil
}

func kindName(v reflect.Value) string {
	switch v.Kind() {
	case reflect.Int, reflect.Int64:
		return "whole number"
	case reflect.Bool:
		return "truth value: true or false"
	}
	return "text"
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func dashPath(path string) string {
	if path == "" {
		return "the job file"
	}
	return path
}
