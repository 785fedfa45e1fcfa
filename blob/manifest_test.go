package blob

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"offpeak"
)

var hashA = strings.Repeat("a", 64)

// form writes a manifest by hand, canonical but for what the entries do.
func form(entries ...string) string {
	return `{"v":1,"entries":[` + strings.Join(entries, ",") + `]}`
}

func fileForm(path string, size int64, hashes ...string) string {
	quoted, _ := json.Marshal(path)
	s := `{"path":` + string(quoted) + `,"kind":"file"`
	if size != 0 {
		s += fmt.Sprintf(`,"size":%d`, size)
	}
	if len(hashes) > 0 {
		list, _ := json.Marshal(hashes)
		s += `,"chunks":` + string(list)
	}
	return s + "}"
}

func dirForm(path string) string {
	quoted, _ := json.Marshal(path)
	return `{"path":` + string(quoted) + `,"kind":"dir"}`
}

func TestParseManifestTakes(t *testing.T) {
	deep := make([]string, 0, MaxDepth)
	for i := range MaxDepth {
		deep = append(deep, dirForm(strings.TrimSuffix(strings.Repeat("d/", i+1), "/")))
	}
	for name, data := range map[string]string{
		"empty":         form(),
		"empty file":    form(fileForm("a", 0)),
		"one chunk":     form(fileForm("a", 1, hashA)),
		"whole chunk":   form(fileForm("a", int64(ChunkSize), hashA)),
		"two chunks":    form(fileForm("a", int64(ChunkSize)+1, hashA, hashA)),
		"byte order":    form(dirForm("a"), fileForm("a.txt", 0), fileForm("a/b", 0)),
		"case twins":    form(fileForm("A", 0), fileForm("a", 0)),
		"emoji":         form(fileForm("🚀.txt", 0)),
		"right to left": form(fileForm("דוח.txt", 0)),
		"both é":        form(fileForm("e\u0301", 0), fileForm("\u00e9", 0)),
		"colon":         form(fileForm("10:30.log", 0)),
		"dots":          form(fileForm("...", 0), fileForm("..a", 0)),
		"spaces":        form(fileForm(" a ", 0)),
		"deep":          form(deep...),
		"html":          form(fileForm("<&>", 0)),
	} {
		m, err := ParseManifest([]byte(data))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if again, err := m.Encode(); err != nil || string(again) != data {
			t.Errorf("%s: encoded again: %s, %v", name, again, err)
		}
	}
}

func TestParseManifestRefuses(t *testing.T) {
	deep := []string{}
	for i := range MaxDepth + 1 {
		deep = append(deep, dirForm(strings.TrimSuffix(strings.Repeat("d/", i+1), "/")))
	}
	many := make([]string, MaxEntries+1)
	for i := range many {
		many[i] = fileForm(fmt.Sprintf("%06d", i), 0)
	}
	for name, c := range map[string]struct {
		data string
		want error
	}{
		"nothing":          {"", offpeak.ErrInvalid},
		"null":             {"null", offpeak.ErrInvalid},
		"no entries":       {`{"v":1}`, offpeak.ErrInvalid},
		"null entries":     {`{"v":1,"entries":null}`, offpeak.ErrInvalid},
		"no version":       {`{"entries":[]}`, offpeak.ErrInvalid},
		"next version":     {`{"v":2,"entries":[]}`, offpeak.ErrInvalid},
		"unknown field":    {`{"v":1,"entries":[],"x":1}`, offpeak.ErrInvalid},
		"repeated key":     {`{"v":1,"v":1,"entries":[]}`, offpeak.ErrInvalid},
		"other case":       {`{"V":1,"entries":[]}`, offpeak.ErrInvalid},
		"space":            {` ` + form(), offpeak.ErrInvalid},
		"newline":          {form() + "\n", offpeak.ErrInvalid},
		"second value":     {form() + form(), offpeak.ErrInvalid},
		"deep nesting":     {strings.Repeat("[", 100_000), offpeak.ErrInvalid},
		"parent":           {form(fileForm("../a", 0)), offpeak.ErrInvalid},
		"inner parent":     {form(dirForm("a"), fileForm("a/../../b", 0)), offpeak.ErrInvalid},
		"parent alone":     {form(dirForm("..")), offpeak.ErrInvalid},
		"absolute":         {form(fileForm("/etc/passwd", 0)), offpeak.ErrInvalid},
		"dot":              {form(dirForm(".")), offpeak.ErrInvalid},
		"inner dot":        {form(dirForm("a"), fileForm("a/./b", 0)), offpeak.ErrInvalid},
		"double slash":     {form(dirForm("a"), fileForm("a//b", 0)), offpeak.ErrInvalid},
		"final slash":      {form(dirForm("a/")), offpeak.ErrInvalid},
		"empty path":       {form(fileForm("", 0)), offpeak.ErrInvalid},
		"backslash":        {form(fileForm(`a\b`, 0)), offpeak.ErrInvalid},
		"windows parent":   {form(fileForm(`..\a`, 0)), offpeak.ErrInvalid},
		"NUL":              {form(fileForm("a\x00b", 0)), offpeak.ErrInvalid},
		"escape":           {form(fileForm("a\x1b[2Jb", 0)), offpeak.ErrInvalid},
		"line break":       {form(fileForm("a\nb", 0)), offpeak.ErrInvalid},
		"C1 control":       {form(fileForm("a\u009bb", 0)), offpeak.ErrInvalid},
		"broken UTF-8":     {form(`{"path":"a` + "\xff" + `","kind":"file"}`), offpeak.ErrInvalid},
		"lone surrogate":   {form(`{"path":"\ud800","kind":"file"}`), offpeak.ErrInvalid},
		"long name":        {form(fileForm(strings.Repeat("n", 256), 0)), offpeak.ErrInvalid},
		"8 kB path":        {form(fileForm(strings.Repeat("n/", 4096)+"n", 0)), offpeak.ErrInvalid},
		"too deep":         {form(deep...), offpeak.ErrInvalid},
		"staging":          {form(dirForm(stagingDir)), offpeak.ErrInvalid},
		"twice":            {form(fileForm("a", 0), fileForm("a", 0)), offpeak.ErrInvalid},
		"file and folder":  {form(dirForm("a"), fileForm("a", 0)), offpeak.ErrInvalid},
		"out of order":     {form(fileForm("b", 0), fileForm("a", 0)), offpeak.ErrInvalid},
		"no parent":        {form(fileForm("a/b", 0)), offpeak.ErrInvalid},
		"file as folder":   {form(fileForm("a", 0), fileForm("a/b", 0)), offpeak.ErrInvalid},
		"link":             {form(`{"path":"a","kind":"symlink"}`), offpeak.ErrInvalid},
		"no kind":          {form(`{"path":"a"}`), offpeak.ErrInvalid},
		"mode":             {form(`{"path":"a","kind":"file","mode":2541}`), offpeak.ErrInvalid},
		"folder with size": {form(`{"path":"a","kind":"dir","size":1}`), offpeak.ErrInvalid},
		"executable dir":   {form(`{"path":"a","kind":"dir","exec":true}`), offpeak.ErrInvalid},
		"chunks of folder": {form(`{"path":"a","kind":"dir","chunks":[]}`), offpeak.ErrInvalid},
		"too few chunks":   {form(fileForm("a", 1)), offpeak.ErrInvalid},
		"too many chunks":  {form(fileForm("a", 1, hashA, hashA)), offpeak.ErrInvalid},
		"chunks of none":   {form(fileForm("a", 0, hashA)), offpeak.ErrInvalid},
		"empty chunks":     {form(`{"path":"a","kind":"file","chunks":[]}`), offpeak.ErrInvalid},
		"negative size":    {form(fileForm("a", -1)), offpeak.ErrInvalid},
		"size with unit":   {form(`{"path":"a","kind":"file","size":"1B","chunks":["` + hashA + `"]}`), offpeak.ErrInvalid},
		"huge size":        {form(fileForm("a", 1<<62, hashA)), offpeak.ErrInvalid},
		"overflowing size": {form(`{"path":"a","kind":"file","size":99999999999999999999}`), offpeak.ErrInvalid},
		"bad hash":         {form(fileForm("a", 1, "../../etc/passwd")), offpeak.ErrInvalid},
		"upper-case hash":  {form(fileForm("a", 1, strings.ToUpper(hashA))), offpeak.ErrInvalid},
		"many entries":     {form(many...), offpeak.ErrTooLarge},
		"long manifest":    {strings.Repeat(" ", int(MaxBlob)+1), offpeak.ErrTooLarge},
	} {
		if _, err := ParseManifest([]byte(c.data)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestManifestChunksOnce(t *testing.T) {
	b := strings.Repeat("b", 64)
	m, err := ParseManifest([]byte(form(fileForm("a", int64(ChunkSize)+1, b, hashA), fileForm("b", 1, b))))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := m.Chunks(), []offpeak.Hash{offpeak.Hash(b), offpeak.Hash(hashA)}; !slices.Equal(got, want) {
		t.Errorf("Chunks = %v", got)
	}
	if got := m.Size(); got != ChunkSize+2 {
		t.Errorf("Size = %d", got)
	}
}

// FuzzParseManifest: whatever is taken is canonical, bounded and can be laid
// out below a folder without leaving it.
func FuzzParseManifest(f *testing.F) {
	f.Add([]byte(form()))
	f.Add([]byte(form(dirForm("a"), fileForm("a/b", 1, hashA))))
	f.Add([]byte(form(fileForm("../a", 0))))
	f.Add([]byte(form(fileForm("a\\b", 0))))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := ParseManifest(data)
		if err != nil {
			if !errors.Is(err, offpeak.ErrInvalid) && !errors.Is(err, offpeak.ErrTooLarge) {
				t.Fatalf("unnamed error %v", err)
			}
			return
		}
		again, err := m.Encode()
		if err != nil || string(again) != string(data) {
			t.Fatalf("not canonical: %q, %v", again, err)
		}
		if m.Size() < 0 || m.Size() > offpeak.MaxBytes {
			t.Fatalf("size %d", m.Size())
		}
		for _, e := range m.Entries {
			if !filepath.IsLocal(filepath.FromSlash(e.Path)) || strings.ContainsRune(e.Path, 0) {
				t.Fatalf("path %q", e.Path)
			}
		}
	})
}

func TestManifestIsDocumented(t *testing.T) {
	// The encoding is a format that outlives programs: it may only change with
	// its version.
	m := Manifest{Version: 1, Entries: []Entry{
		{Path: "bin", Kind: KindDir},
		{Path: "bin/run", Kind: KindFile, Exec: true, Size: 3, Chunks: []offpeak.Hash{Sum([]byte("abc"))}},
	}}
	got, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(filepath.Join("testdata", "manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	if string(got)+"\n" != string(want) {
		t.Errorf("got %s\nwant %s", got, want)
	}
}
