//go:build !unix

package blob

import (
	"io/fs"
	"os"
)

// syncDir does nothing: folders can't be flushed here, and the file system's
// own journal keeps a rename whole.
func syncDir(*os.Root, string) error { return nil }

// linked says no: the number of a file's names is not known here without
// opening it by other means.
func linked(fs.FileInfo) bool { return false }
