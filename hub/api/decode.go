package api

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	json2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"offpeak"
)

// maxFaults bounds how many faults of one body are told at once.
const maxFaults = 20

// decode reads a JSON body strictly: one value, no unknown fields, none twice or
// in another case, and no text that is not UTF-8: nothing of a request is
// guessed or changed on its way in. What is wrong comes back as one
// *offpeak.FieldError a fault, with its path.
func decode[T any](body []byte) (v T, err error) {
	if err = json2.Unmarshal(body, &v, json2.RejectUnknownMembers(true)); err != nil {
		return v, faults(body, reflect.TypeFor[T](), err)
	}
	if bytes.Contains(body, []byte("null")) {
		// Left out is no price; null may be a slip of whoever reckoned one, and must
		// not be read as no limit.
		w := &walker{}
		w.walk("", body, reflect.TypeFor[T]())
		err = errors.Join(w.errs...)
	}
	return v, err
}

// faults explains why body is not a T. It runs only for bodies that were
// refused, so that good ones pay nothing for it.
func faults(body []byte, t reflect.Type, cause error) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return &offpeak.FieldError{Field: "body", Rule: "is missing: send a JSON object"}
	}
	if !json.Valid(body) {
		var raw json.RawMessage
		err := json.Unmarshal(body, &raw)
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			return &offpeak.FieldError{Field: "body", Rule: fmt.Sprintf("is one JSON value: %v, at byte %d", syntax, syntax.Offset)}
		}
		return &offpeak.FieldError{Field: "body", Rule: "is one JSON value"}
	}
	w := &walker{}
	w.walk("", body, t)
	if syntax, ok := errors.AsType[*jsontext.SyntacticError](cause); ok {
		// Valid to a lenient reader, who would take one of two or change bytes.
		rule := "is text in UTF-8, without half a surrogate pair"
		if errors.Is(syntax.Err, jsontext.ErrDuplicateName) {
			rule = "is given once"
		}
		w.add(dotted(syntax.JSONPointer), "", rule)
	}
	if len(w.errs) == 0 {
		return &offpeak.FieldError{Field: "body", Rule: fmt.Sprintf("can't be read: %v", cause)}
	}
	return errors.Join(w.errs...)
}

// walker finds every value in a body that its Go type refuses.
type walker struct{ errs []error }

func (w *walker) add(path, value, rule string) {
	if len(w.errs) >= maxFaults {
		return
	}
	if path == "" {
		path = "body"
	}
	w.errs = append(w.errs, &offpeak.FieldError{Field: path, Value: clip(value), Rule: rule})
}

func (w *walker) walk(path string, raw json.RawMessage, t reflect.Type) {
	if len(w.errs) >= maxFaults {
		return
	}
	null := string(bytes.TrimSpace(raw)) == "null"
	if null && money(t) {
		w.add(path, "null", "is an amount, never null: leave it out instead")
		return
	}
	if t.Kind() == reflect.Pointer {
		if !null {
			w.walk(path, raw, t.Elem())
		}
		return
	}
	p := reflect.PointerTo(t)
	if p.Implements(typeOf[json.Unmarshaler]()) || p.Implements(typeOf[encoding.TextUnmarshaler]()) {
		w.try(path, raw, t)
		return
	}
	switch {
	case t.Kind() == reflect.Struct:
		members, ok := w.object(path, raw, null)
		if !ok {
			return
		}
		fields := jsonFields(t)
		for _, name := range slices.Sorted(maps.Keys(members)) {
			at := join(path, clip(name))
			if f, ok := fields[name]; ok {
				w.walk(at, members[name], f)
			} else {
				w.add(at, "", "is not known here; there is "+strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
			}
		}
	case t.Kind() == reflect.Map:
		members, ok := w.object(path, raw, null)
		if !ok {
			return
		}
		for _, name := range slices.Sorted(maps.Keys(members)) {
			w.walk(join(path, clip(name)), members[name], t.Elem())
		}
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		var items []json.RawMessage
		if err := json.Unmarshal(raw, &items); err != nil {
			w.add(path, string(raw), "is a list")
			return
		}
		for i, item := range items {
			w.walk(fmt.Sprintf("%s[%d]", path, i), item, t.Elem())
		}
	default:
		w.try(path, raw, t)
	}
}

// money says that values of a type are prices or amounts.
func money(t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t == typeOf[offpeak.Price]() || t == typeOf[offpeak.MicroCredits]()
}

func (w *walker) object(path string, raw json.RawMessage, null bool) (map[string]json.RawMessage, bool) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil {
		w.add(path, string(raw), "is an object")
		return nil, false
	}
	return members, !null
}

// try decodes one value alone and says what its type asks for.
func (w *walker) try(path string, raw json.RawMessage, t reflect.Type) {
	err := json.Unmarshal(raw, reflect.New(t).Interface())
	if err == nil {
		return
	}
	if v, ok := errors.AsType[*offpeak.ValueError](err); ok {
		w.add(path, v.Value, v.Rule)
		return
	}
	w.add(path, string(raw), "is "+kindName(t))
}

func kindName(t reflect.Type) string {
	switch {
	case t == typeOf[offpeak.Price]():
		return fmt.Sprintf("a whole number of micro-credits per hour, from 0 to %d (%s)", offpeak.MaxPrice, offpeak.MaxPrice)
	case t == typeOf[offpeak.MicroCredits]():
		return fmt.Sprintf("a whole number of micro-credits, from 0 to %d (%s credits)", offpeak.MaxAmount, offpeak.MaxAmount)
	case t == typeOf[time.Time]():
		return "a time with its zone, for example 2026-03-01T00:00:00Z"
	case reflect.PointerTo(t).Implements(typeOf[encoding.TextUnmarshaler]()), t.Kind() == reflect.String:
		return "a string"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64:
		return "a whole number within bounds"
	case t.Kind() == reflect.Float32, t.Kind() == reflect.Float64:
		return "a number"
	case t.Kind() == reflect.Slice:
		return "a string in base64"
	}
	return "of another type"
}

// jsonFields maps the names of t's fields in JSON to their types.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	fields := make(map[string]reflect.Type, t.NumField())
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			maps.Copy(fields, jsonFields(f.Type))
			continue
		}
		if f.IsExported() && name != "-" {
			if name == "" {
				name = f.Name
			}
			fields[name] = f.Type
		}
	}
	return fields
}

// dotted writes a JSON pointer as the paths of fields are written.
func dotted(p jsontext.Pointer) (path string) {
	for name := range p.Tokens() {
		path = join(path, clip(name))
	}
	return path
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
