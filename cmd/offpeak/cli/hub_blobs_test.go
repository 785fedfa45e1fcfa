package cli

import (
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"offpeak"
	"offpeak/blob"
	"offpeak/wire"
)

// bucket is a fake S3 in this process, as --blobs names it.
func bucket(t *testing.T) string {
	t.Helper()
	fake := s3mem.New()
	if err := fake.CreateBucket("grid"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(gofakes3.New(fake).Server())
	t.Cleanup(server.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "no-one-may-see-this")
	return "s3://grid/blobs?endpoint=" + server.URL + "&region=here"
}

// upload stores a blob in a hub.
func upload(t *testing.T, d *wire.Direct, text string) offpeak.Hash {
	t.Helper()
	h := blob.Sum([]byte(text))
	if err := (wire.Blobs{Direct: d}).Upload(t.Context(), h, []byte(text)); err != nil {
		t.Fatal(err)
	}
	return h
}

func download(t *testing.T, d *wire.Direct, h offpeak.Hash, want string) {
	t.Helper()
	if got, err := (wire.Blobs{Direct: d}).Download(t.Context(), h); err != nil || string(got) != want {
		t.Fatalf("the blob holds %q, %v, want %q", got, err, want)
	}
}

// A hub keeps blobs where --blobs says, and nothing of them in its data folder. A
// backup tells where they are, and a hub restored from it serves them again.
func TestBlobsElsewhere(t *testing.T) {
	for name, at := range map[string]func(t *testing.T) string{
		"folder": func(t *testing.T) string { return filepath.Join(t.TempDir(), "shared") },
		"bucket": bucket,
	} {
		t.Run(name, func(t *testing.T) {
			home, blobs := t.TempDir(), at(t)
			h := startHub(t, home, "--blobs", blobs)
			d := direct(localFile(t, home))
			kept := upload(t, d, "kept")
			download(t, d, kept, "kept")
			backup := filepath.Join(t.TempDir(), "b")
			if err := d.Backup(t.Context(), "op-1", backup); err != nil {
				t.Fatal(err)
			}
			h.stop()
			if _, err := os.Stat(filepath.Join(home, "hub", "blobs")); !os.IsNotExist(err) {
				t.Errorf("the data folder has blobs: %v", err)
			}
			if text := h.stderr.String(); strings.Contains(text, "no-one-may-see-this") {
				t.Errorf("the log shows a secret: %s", text)
			}

			// A new grid does not begin on another one's blobs.
			code, _, stderr := once(t, t.TempDir(), "hub", "--listen", "127.0.0.1:0", "--blobs", blobs)
			if code != 1 || !strings.Contains(stderr, "another --blobs") {
				t.Errorf("a new hub on another grid's blobs: exit %d, %s", code, stderr)
			}

			next := filepath.Join(home, "next")
			code, stdout, stderr := once(t, home, "restore", backup, "--data", next)
			if want := fmt.Sprintf("--data %s --blobs '%s' --blobs-moved", next, blobs); code != 0 || !strings.Contains(stdout, want) {
				t.Fatalf("restore: exit %d, %s%s", code, stdout, stderr)
			}
			// While the grid that was backed up may still run, it is not to share them.
			code, _, stderr = once(t, home, "hub", "--listen", "127.0.0.1:0", "--data", next, "--blobs", blobs)
			if code != 1 || !strings.Contains(stderr, "--blobs-moved") {
				t.Errorf("a restored hub on the blobs of its original: exit %d, %s", code, stderr)
			}
			startHub(t, home, "--data", next, "--blobs", blobs, "--blobs-moved").stop()
			h = startHub(t, home, "--data", next, "--blobs", blobs)
			download(t, direct(localFile(t, home)), kept, "kept")
			h.stop()
		})
	}
}

// The blobs of a data folder move to another place by way of a backup.
func TestBlobsMove(t *testing.T) {
	home, blobs := t.TempDir(), bucket(t)
	h := startHub(t, home)
	d := direct(localFile(t, home))
	kept := upload(t, d, "kept")
	backup := filepath.Join(t.TempDir(), "b")
	if err := d.Backup(t.Context(), "op-1", backup); err != nil {
		t.Fatal(err)
	}
	h.stop()
	next := filepath.Join(home, "next")
	if code, stdout, stderr := once(t, home, "restore", backup, "--data", next, "--blobs", blobs); code != 0 || !strings.Contains(stdout, "--blobs '"+blobs+"'") {
		t.Fatalf("restore: exit %d, %s%s", code, stdout, stderr)
	}
	h = startHub(t, home, "--data", next, "--blobs", blobs)
	d = direct(localFile(t, home))
	download(t, d, kept, "kept")
	if c, err := d.Check(t.Context()); err != nil || !c.OK {
		t.Errorf("check: %+v, %v", c, err)
	}
	h.stop()
}
