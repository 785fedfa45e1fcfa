package data_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"offpeak/hub/data"
)

// A folder whose database was lost is not begun anew over its blobs.
func TestCheckFolder(t *testing.T) {
	folder := t.TempDir()
	lay := func(name, text string) {
		t.Helper()
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(folder, name)), 0o700))
		must(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	fine := func(what string, want error) {
		t.Helper()
		if err := data.CheckFolder(folder); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	fine("an empty folder", nil)
	fine("no folder", data.CheckFolder(filepath.Join(folder, "none")))
	must(t, os.MkdirAll(filepath.Join(folder, data.BlobFolder, "ab"), 0o700))
	fine("folders for blobs alone", nil)
	lay(data.DatabaseFile+"-wal", "frames")
	fine("a log alone", data.ErrNoDatabase)
	must(t, os.Remove(filepath.Join(folder, data.DatabaseFile+"-wal")))
	lay(data.BlobFolder+"/ab/cdef", "bytes")
	fine("blobs alone", data.ErrNoDatabase)
	lay(data.DatabaseFile, "")
	fine("blobs and an empty file", data.ErrNoDatabase)
	lay(data.DatabaseFile, "SQLite format 3")
	fine("blobs and a database", nil)
}
