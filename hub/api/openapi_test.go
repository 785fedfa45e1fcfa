package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestDocument(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{})
	resp, err := http.Get(g.url + "/v1/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var doc struct {
		OpenAPI string                               `json:"openapi"`
		Paths   map[string]map[string]map[string]any `json:"paths"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(doc.OpenAPI, "3.1") {
		t.Errorf("version %q", doc.OpenAPI)
	}
	operations := 0
	for _, rt := range g.api.routes() {
		op := doc.Paths[rt.path][strings.ToLower(rt.method)]
		if op == nil {
			t.Errorf("%s %s is not in the document", rt.method, rt.path)
			continue
		}
		operations++
		if _, body := op["requestBody"]; body != (rt.body != nil || rt.raw) {
			t.Errorf("%s %s: a body is %v", rt.method, rt.path, body)
		}
		if op["summary"] == nil || op["summary"] == "" {
			t.Errorf("%s %s has no summary", rt.method, rt.path)
		}
	}
	all := 0
	for _, item := range doc.Paths {
		all += len(item)
	}
	if all != operations {
		t.Errorf("%d operations in the document, %d in the table", all, operations)
	}
	y, err := http.Get(g.url + "/v1/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer y.Body.Close()
	if text, _ := io.ReadAll(y.Body); !bytes.HasPrefix(text, []byte("components:")) && !bytes.Contains(text, []byte("openapi: 3.1")) {
		t.Errorf("the document in YAML begins %.40q", text)
	}
}

// The document is OpenAPI 3.1 in what generators of clients lean on: every
// operation has a name of its own, a summary, described answers and the problem
// as its error; every reference leads somewhere; every parameter of a path is
// declared, once; types are those of JSON Schema.
func TestDocumentIsSound(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{})
	resp, err := http.Get(g.url + "/v1/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var doc map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil {
		t.Fatal(err)
	}
	info, _ := doc["info"].(map[string]any)
	if info["title"] == "" || info["title"] == nil || info["version"] == nil {
		t.Errorf("info %v", info)
	}
	soundNode(t, doc, "#", doc)

	seen := map[string]string{}
	inPath := regexp.MustCompile(`\{([^}]*)\}`)
	for path, item := range doc["paths"].(map[string]any) {
		for method, value := range item.(map[string]any) {
			name, op := method+" "+path, value.(map[string]any)
			id, _ := op["operationId"].(string)
			if id == "" || seen[id] != "" {
				t.Errorf("%s: operation id %q is that of %q too", name, id, seen[id])
			}
			seen[id] = name
			if text, _ := op["summary"].(string); text == "" {
				t.Errorf("%s: no summary", name)
			}
			answers, _ := op["responses"].(map[string]any)
			if answers["default"] == nil || len(answers) < 2 {
				t.Errorf("%s: answers %v, want success and default", name, answers)
			}
			for code, answer := range answers {
				if text, _ := answer.(map[string]any)["description"].(string); text == "" {
					t.Errorf("%s: answer %s has no description", name, code)
				}
			}
			problem, _ := answers["default"].(map[string]any)
			if content, _ := problem["content"].(map[string]any); content["application/problem+json"] == nil {
				t.Errorf("%s: errors are no problems: %v", name, problem)
			}
			var want, have []string
			for _, m := range inPath.FindAllStringSubmatch(path, -1) {
				want = append(want, m[1])
			}
			once := map[string]bool{}
			params, _ := op["parameters"].([]any)
			for _, p := range params {
				p := p.(map[string]any)
				place := fmt.Sprint(p["in"], " ", p["name"])
				if once[place] || p["schema"] == nil {
					t.Errorf("%s: parameter %s twice or without a schema", name, place)
				}
				once[place] = true
				if p["in"] == "path" {
					have = append(have, p["name"].(string))
					if p["required"] != true {
						t.Errorf("%s: parameter %s is not required", name, place)
					}
				}
			}
			slices.Sort(want)
			slices.Sort(have)
			if !slices.Equal(want, have) {
				t.Errorf("%s: declares %v of its path's parameters %v", name, have, want)
			}
		}
	}
}

// soundNode checks references and types below a value of the document.
func soundNode(t *testing.T, doc map[string]any, at string, value any) {
	switch v := value.(type) {
	case map[string]any:
		if ref, ok := v["$ref"].(string); ok && !resolves(doc, ref) {
			t.Errorf("%s refers to %s, which is not there", at, ref)
		}
		if strings.HasPrefix(at, "#/components/schemas/") || strings.HasSuffix(at, "/schema") {
			types, list := v["type"].([]any)
			if one, ok := v["type"].(string); ok && !list {
				types = []any{one}
			}
			for _, kind := range types {
				if !slices.Contains([]any{"array", "boolean", "integer", "null", "number", "object", "string"}, kind) {
					t.Errorf("%s has type %v", at, kind)
				}
			}
			if v["nullable"] != nil {
				t.Errorf("%s says nullable, which 3.1 does not know", at)
			}
		}
		for name, child := range v {
			if name == "properties" && strings.HasPrefix(at, "#/components/schemas/") {
				// A field may be called as a keyword is.
				for field, schema := range child.(map[string]any) {
					soundNode(t, doc, at+"/properties/"+field+"/schema", schema)
				}
				continue
			}
			soundNode(t, doc, at+"/"+name, child)
		}
	case []any:
		for i, child := range v {
			soundNode(t, doc, fmt.Sprintf("%s/%d", at, i), child)
		}
	}
}

// resolves says whether a reference of the document leads somewhere in it.
func resolves(doc map[string]any, ref string) bool {
	path, ok := strings.CutPrefix(ref, "#/")
	var at any = doc
	for part := range strings.SplitSeq(path, "/") {
		m, isMap := at.(map[string]any)
		if !isMap {
			return false
		}
		at = m[strings.NewReplacer("~1", "/", "~0", "~").Replace(part)]
	}
	return ok && at != nil
}
