package render

import (
	"bytes"
	"slices"
	"testing"

	"offpeak"
)

func TestSafe(t *testing.T) {
	for in, want := range map[string]string{
		"plain äö 漢":   "plain äö 漢",
		"\x1b[2J\r\n":  `\x1b[2J\r\n`,
		"a\x00\x7f":    `a\x00\x7f`,
		"bad\xffbyte":  `bad\xffbyte`,
		"\u202egpj":    `\u202egpj`,
		"c1 \u009b2J":  `c1 \u009b2J`,
		"\ufffd stays": "\ufffd stays",
	} {
		if got := Safe(in); got != want {
			t.Errorf("Safe(%q) = %q, want %q", in, got, want)
		}
	}
}

// What a log writes reaches a terminal without its control characters, however
// the bytes are cut into pieces.
func TestHarmlessOverAnyCut(t *testing.T) {
	in := []byte("ok\täö\n\x1b[31mred\r\xff漢\xe6\xbc")
	want := "ok\täö\n" + `\x1b[31mred\r\xff漢\xe6\xbc`
	for size := 1; size <= len(in); size++ {
		var out bytes.Buffer
		h := NewHarmless(&out)
		for piece := range slices.Chunk(in, size) {
			if n, err := h.Write(piece); n != len(piece) || err != nil {
				t.Fatal(n, err)
			}
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		if out.String() != want {
			t.Errorf("in pieces of %d: %q, want %q", size, out.String(), want)
		}
	}
}

func TestAbout(t *testing.T) {
	for in, want := range map[offpeak.Bytes]string{0: "0B", 24 * offpeak.GB: "24GB", 24683568 * offpeak.KiB: "23.54GiB", 12345678: "11.77MiB", 512 * offpeak.MiB: "512MiB"} {
		if got := About(in); got != want {
			t.Errorf("About(%d) = %s, want %s", in, got, want)
		}
	}
}
