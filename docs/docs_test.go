package docs

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"offpeak"
)

func TestEnds(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# Why attempts and jobs end

Every end has a stable code, which programs may branch on. It says whose doing the end was, which of the job's retry counters
it counts against, and what of the attempt's time is charged. This table is generated from the one the code decides by.

- **Counter**: *never* ends the job with this attempt; *user*, *node* and *interruption* are counted apart, each with its own cap
  (the ` + "`retry`" + ` of a job) and a growing pause; *free* is not counted, for the attempt never started.
- **Charge**: *full* is all metered time, *kept* the time up to the last stored checkpoint, *nothing* is nothing.

| code | lease ends | fault | counter | charge | what happened, and what to do |
|---|---|---|---|---|---|
`)
	for _, e := range offpeak.Ends() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", e.Reason, e.Lease, e.Fault, e.Counter, e.Charge, strings.TrimSpace(e.Sentence+" "+e.Next))
	}
	golden(t, "ends.md", b.String())
}

// golden compares a generated document with the stored one, or stores it.
func golden(t *testing.T, path, want string) {
	t.Helper()
	if update() {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("docs/%s does not match the code: run make generate", path)
	}
}

// update says that the documents are to be rewritten.
func update() bool {
	f := flag.Lookup("update")
	return f != nil && f.Value.String() == "true"
}

func TestMain(m *testing.M) {
	flag.Bool("update", false, "rewrite the generated documents")
	os.Exit(m.Run())
}

// Every file that a document links to is there.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	for _, pattern := range []string{"*.md", "../*.md", "../examples/*/*.md"} {
		documents, err := filepath.Glob(pattern)
		if err != nil || len(documents) == 0 {
			t.Fatalf("%s: %v, %v", pattern, documents, err)
		}
		for _, document := range documents {
			text, err := os.ReadFile(document)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range link.FindAllStringSubmatch(string(text), -1) {
				if _, err := os.Stat(filepath.Join(filepath.Dir(document), m[1])); err != nil {
					t.Errorf("%s links to %s: %v", document, m[1], err)
				}
			}
		}
	}
}

// Every filter that a node can fail is explained, by its code.
func TestRequirementsNameEveryFilter(t *testing.T) {
	text, err := os.ReadFile("requirements.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range offpeak.FitCodes() {
		if !strings.Contains(string(text), "`"+string(c)+"`") {
			t.Errorf("requirements.md does not name %s", c)
		}
	}
}
