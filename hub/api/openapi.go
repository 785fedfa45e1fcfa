package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"offpeak"
	"offpeak/wire"
)

// document is the OpenAPI document as it is served, made once.
type document struct{ json, yaml []byte }

// operation describes the route for the document.
func (rt *route) operation() huma.Operation {
	op := huma.Operation{
		OperationID:   rt.id(),
		Method:        rt.method,
		Path:          rt.path,
		Summary:       rt.summary,
		Description:   rt.detail,
		Tags:          []string{rt.tag()},
		DefaultStatus: rt.status,
		Extensions:    map[string]any{"x-roles": rt.roles},
		Responses:     map[string]*huma.Response{},
	}
	if rt.roles != nil {
		op.Security = []map[string][]string{{"bearer": {}}}
	} else {
		op.Security = []map[string][]string{}
	}
	return op
}

// id is a name for the operation, "post-jobs-job-cancel".
func (rt *route) id() string {
	path := strings.NewReplacer("/v1", "", "{", "", "}", "", ".", "-").Replace(rt.path)
	return strings.ToLower(rt.method) + strings.ReplaceAll(path, "/", "-")
}

// tag is the first word of the path.
func (rt *route) tag() string {
	word, _, _ := strings.Cut(strings.TrimPrefix(rt.path, "/v1/"), "/")
	word, _, _ = strings.Cut(word, ".")
	return word
}

// describeAnswer says what a plain route takes from its path and query and what
// it answers.
func describeAnswer(api huma.API, rt *route, op *huma.Operation) {
	for part := range strings.SplitSeq(rt.path, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			op.Parameters = append(op.Parameters, &huma.Param{Name: strings.TrimSuffix(name, "}"), In: "path", Required: true, Schema: &huma.Schema{Type: "string"}})
		}
	}
	for _, q := range rt.query {
		op.Parameters = append(op.Parameters, &huma.Param{Name: q.name, In: "query", Description: q.doc, Schema: &huma.Schema{Type: "string"}})
	}
	media := &huma.MediaType{Schema: &huma.Schema{Type: "string", Format: "binary"}}
	if rt.answer != nil {
		media.Schema = api.OpenAPI().Components.Schemas.Schema(rt.answer, true, rt.id())
	}
	r := &huma.Response{Description: http.StatusText(rt.status)}
	if rt.status != http.StatusNoContent {
		content := rt.content
		if content == "" {
			content = "application/json"
		}
		r.Content = map[string]*huma.MediaType{content: media}
	}
	op.Responses[strconv.Itoa(rt.status)] = r
}

// describeBody says what a route's body is, and that errors are problems.
func describeBody(api huma.API, rt *route) {
	op := operationOf(api.OpenAPI(), rt)
	schemas := api.OpenAPI().Components.Schemas
	op.Responses["default"] = &huma.Response{
		Description: "A problem: what is wrong, its stable code and what to do next.",
		Content:     map[string]*huma.MediaType{"application/problem+json": {Schema: schemas.Schema(typeOf[wire.Problem](), true, "Problem")}},
	}
	switch {
	case rt.body != nil:
		op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
			"application/json": {Schema: schemas.Schema(rt.body, true, rt.id())},
		}}
	case rt.raw:
		op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
			"application/octet-stream": {Schema: &huma.Schema{Type: "string", Format: "binary"}},
		}}
	}
	if rt.mutates {
		op.Parameters = append(op.Parameters, &huma.Param{Name: wire.HeaderOperation, In: "header", Required: true,
			Description: "Names this change: fresh for each one, the same when it is repeated. Kept 7 days.",
			Schema:      &huma.Schema{Type: "string", Pattern: "^[A-Za-z0-9_-]{1,64}$"}})
	}
}

func operationOf(doc *huma.OpenAPI, rt *route) *huma.Operation {
	item := doc.Paths[rt.path]
	switch rt.method {
	case http.MethodGet:
		return item.Get
	case http.MethodPost:
		return item.Post
	case http.MethodPut:
		return item.Put
	case http.MethodDelete:
		return item.Delete
	}
	panic("api: no route uses " + rt.method)
}

// finish makes the document true where huma can't know better, and renders it.
func (a *api) finish(api huma.API) document {
	doc := api.OpenAPI()
	schemas := doc.Components.Schemas.Map()
	delete(schemas, "ErrorModel")
	delete(schemas, "ErrorDetail")
	// What a submitter may leave out gets defaults.
	for name, optional := range map[string][]string{
		"NewJob": {"requirements", "limits"},
		"Step":   {"requirements", "limits"},
		"Task":   {"checkpoint"},
	} {
		if s := schemas[name]; s != nil {
			s.Required = slices.DeleteFunc(s.Required, func(f string) bool { return slices.Contains(optional, f) })
		}
	}
	var d document
	var err error
	if d.json, err = json.MarshalIndent(doc, "", "  "); err == nil {
		d.yaml, err = doc.YAML()
	}
	if err != nil {
		panic(fmt.Sprintf("api: the document can't be rendered: %v", err))
	}
	return d
}

func (a *api) documentJSON(w http.ResponseWriter, _ *http.Request, _ *caller) error {
	w.Header().Set("Content-Type", "application/vnd.oai.openapi+json;version=3.1")
	_, _ = w.Write(a.document.json)
	return nil
}

func (a *api) documentYAML(w http.ResponseWriter, _ *http.Request, _ *caller) error {
	w.Header().Set("Content-Type", "application/vnd.oai.openapi+yaml;version=3.1")
	_, _ = w.Write(a.document.yaml)
	return nil
}

// aliasSchemas tells huma how the vocabulary's types look in JSON, since the
// vocabulary itself can't know of huma.
func aliasSchemas(r huma.Registry) {
	r.RegisterTypeAlias(reflect.TypeFor[offpeak.Bytes](), reflect.TypeFor[bytesSchema]())
	r.RegisterTypeAlias(reflect.TypeFor[offpeak.Duration](), reflect.TypeFor[durationSchema]())
}

type bytesSchema int64

// Schema describes a size.
func (bytesSchema) Schema(huma.Registry) *huma.Schema {
	least := 0.0
	return &huma.Schema{
		Description: "bytes; in requests also a string with a unit, for example \"24GB\" or \"512MiB\"",
		OneOf: []*huma.Schema{
			{Type: "integer", Format: "int64", Minimum: &least},
			{Type: "string", Pattern: `^[0-9]+(\.[0-9]+)? ?(B|[KkMGT]B|[KMGT]iB)$`},
		},
	}
}

type durationSchema string

// Schema describes a length of time.
func (durationSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: "string", Description: "a length of time, for example \"90s\" or \"1h30m\"", Examples: []any{"15m0s"}}
}
