package offpeak

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParseBytes(t *testing.T) {
	for s, want := range map[string]Bytes{
		"24GB":                  24_000_000_000,
		"24GiB":                 24 * 1024 * 1024 * 1024,
		"24576MiB":              24 * GiB,
		"24000MB":               24 * GB,
		"24 GB":                 24 * GB,
		" 24GB\n":               24 * GB,
		"0B":                    0,
		"1B":                    1,
		"1KB":                   1000,
		"1kB":                   1000,
		"1KiB":                  1024,
		"1TB":                   TB,
		"1024TiB":               MaxBytes,
		"1.5GiB":                3 * GiB / 2,
		"0.1GB":                 100 * MB,
		"0.0001KB":              0,
		"1.999999999999999999B": 1,
		"007MB":                 7 * MB,
	} {
		if got, err := ParseBytes(s); got != want || err != nil {
			t.Errorf("ParseBytes(%q) = %d, %v, want %d", s, got, err, want)
		}
	}
	for _, s := range []string{
		"", " ", "24", "0", "24GBB", "24gb", "24Gb", "24 G B", "24G", "24Gi", "GB", ".5GB", "5.GB", "-24GB", "+24GB", "-0B",
		"NaN", "NaNGB", "inf", "InfGB", "1e3GB", "1e3", "0x10", "0x10GB", "1_000MB", "1,5GB", "24GB 1MB", "24PB", "1PiB",
		"1025TiB", "1024.000000000001TiB", "9223372036854775808B", "99999999999999999999GB", "１GB", "24\u00a0GB", "24GB\x00",
		"0." + strings.Repeat("0", 400) + "1GB", strings.Repeat("9", 1000) + "GB",
	} {
		got, err := ParseBytes(s)
		var value *ValueError
		if got != 0 || !errors.As(err, &value) || value.Value != s || !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "24GiB") {
			t.Errorf("ParseBytes(%q) = %d, %v, want a *ValueError with an example", s, got, err)
		}
	}
}

func TestBytesString(t *testing.T) {
	for b, want := range map[Bytes]string{
		0:                    "0B",
		1:                    "1B",
		999:                  "999B",
		1000:                 "1KB",
		1024:                 "1KiB",
		24 * GB:              "24GB",
		24 * GiB:             "24GiB",
		24564 * MiB:          "24564MiB",
		24*GiB - 1:           "23.99GiB",
		256 * MiB:            "256MiB",
		1000 * MiB:           "1000MiB",
		123_456_789:          "117.73MiB",
		GiB + 1:              "1.00GiB",
		MaxBytes:             "1024TiB",
		Bytes(math.MaxInt64): "8388607.99TiB",
		-GiB:                 "-1GiB",
		-(24*GiB - 1):        "-23.99GiB",
		Bytes(math.MinInt64): "-8388608.00TiB",
		99_999:               "99999B",
		1_234_500 * KB:       "1.14GiB",
		16_376 * MiB:         "16376MiB",
	} {
		if got := b.String(); got != want {
			t.Errorf("%d is shown as %q, want %q", int64(b), got, want)
		}
	}
}

func TestBytesRoundTrip(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		b := Bytes(rapid.Int64Range(0, int64(MaxBytes)).Draw(r, "bytes"))
		if rapid.Bool().Draw(r, "round") {
			u := rapid.SampledFrom(byteUnits).Draw(r, "unit").size
			b = b / u * u
		}
		// What is shown is never more than there is, and near it.
		shown, err := ParseBytes(b.String())
		if err != nil || shown > b || float64(shown) < float64(b)*0.99 {
			r.Fatalf("%d is shown as %s, read as %d, %v", b, b, shown, err)
		}
		if b < 100_000 && shown != b {
			r.Fatalf("%d is shown as %s", b, b)
		}
		data, err := json.Marshal(b)
		if err != nil {
			r.Fatal(err)
		}
		var back Bytes
		if err := json.Unmarshal(data, &back); err != nil || back != b {
			r.Fatalf("%d in JSON: %s, %d, %v", b, data, back, err)
		}
	})
}

func TestBytesJSON(t *testing.T) {
	for data, want := range map[string]Bytes{`0`: 0, `5`: 5, `"24GB"`: 24 * GB, `1125899906842624`: MaxBytes} {
		var b Bytes
		if err := json.Unmarshal([]byte(data), &b); err != nil || b != want {
			t.Errorf("%s: %d, %v", data, b, err)
		}
	}
	for _, data := range []string{`-1`, `1.5`, `1e3`, `1125899906842625`, `9223372036854775808`, `"24"`, `"24GBB"`, `null`, `true`, `{}`, `[]`} {
		b := Bytes(7)
		if err := json.Unmarshal([]byte(data), &b); !errors.Is(err, ErrInvalid) || b != 7 {
			t.Errorf("%s: %d, %v", data, b, err)
		}
	}
}

func TestParseCredits(t *testing.T) {
	for s, want := range map[string]MicroCredits{
		"0": 0, "5": 5 * Credit, "5.00": 5 * Credit, "0.000001": 1, " 12.345678 ": 12_345_678, "1000000000000": MaxAmount,
	} {
		if got, err := ParseCredits(s); got != want || err != nil {
			t.Errorf("ParseCredits(%q) = %d, %v, want %d", s, got, err, want)
		}
	}
	for _, s := range []string{
		"", "-1", "+1", "NaN", "Inf", "1e3", "1e400", "0x10", ".5", "5.", "0.0000001", "1000000000000.000001", "1,5", "5 EUR", "$5", "5/h", "99999999999999999999",
	} {
		got, err := ParseCredits(s)
		var value *ValueError
		if got != 0 || !errors.As(err, &value) || value.Value != s || !strings.Contains(err.Error(), "5.00") {
			t.Errorf("ParseCredits(%q) = %d, %v, want a *ValueError with an example", s, got, err)
		}
	}
}

func TestParsePrice(t *testing.T) {
	for s, want := range map[string]Price{
		"0/h": 0, "0.40/h": 400_000, "0.4/h": 400_000, " 1/h ": 1_000_000,
		"0.000001/h": 1, "12.345678/h": 12_345_678, "1000000/h": MaxPrice, "0.4000000000/h": 400_000,
	} {
		if got, err := ParsePrice(s); got != want || err != nil {
			t.Errorf("ParsePrice(%q) = %d, %v, want %d", s, got, err, want)
		}
	}
	for _, s := range []string{
		"", "/h", "0", "0.40", "-1/h", "+1/h", "-0/h", "NaN/h", "inf/h", "1e3/h", "1e400/h", "0x10/h", ".5/h", "5./h", "0.0000001/h", "1000000.000001/h", "1,5/h", "1/d", "1/hour",
		"1 /h", "1/h/h", "$1/h", "1 EUR/h", "99999999999999999999/h", "1_0/h", "0." + strings.Repeat("0", 99) + "1/h",
	} {
		got, err := ParsePrice(s)
		var value *ValueError
		if got != 0 || !errors.As(err, &value) || value.Value != s || !strings.Contains(err.Error(), "0.40/h") {
			t.Errorf("ParsePrice(%q) = %d, %v, want a *ValueError with an example", s, got, err)
		}
	}
	rapid.Check(t, func(r *rapid.T) {
		p := Price(rapid.Int64Range(0, int64(MaxPrice)).Draw(r, "price"))
		if back, err := ParsePrice(p.String()); err != nil || back != p {
			r.Fatalf("%d is shown as %s, read as %d, %v", int64(p), p, back, err)
		}
	})
}

func TestMicroCreditsString(t *testing.T) {
	for m, want := range map[MicroCredits]string{
		0: "0.00", 1: "0.000001", 400_000: "0.40", Credit: "1.00", -Credit: "-1.00", -1: "-0.000001", 1_234_567: "1.234567",
		math.MaxInt64: "9223372036854.775807", math.MinInt64: "-9223372036854.775808",
	} {
		if got := m.String(); got != want {
			t.Errorf("%d is shown as %s, want %s", int64(m), got, want)
		}
	}
}

func TestDurationText(t *testing.T) {
	for s, want := range map[string]time.Duration{"0s": 0, "90s": 90 * time.Second, "1h30m": 90 * time.Minute, "100ms": 100 * time.Millisecond, "87600h": time.Duration(MaxDuration)} {
		var d Duration
		if err := json.Unmarshal([]byte(`"`+s+`"`), &d); err != nil || d.Std() != want {
			t.Errorf("%s: %s, %v", s, d, err)
		}
		var back Duration
		if data, err := json.Marshal(d); err != nil || json.Unmarshal(data, &back) != nil || back != d {
			t.Errorf("%s in JSON: %s, %v", d, data, err)
		}
	}
	for _, s := range []string{"", "5", "-1s", "87600h1ns", "1y", "1d", "NaN", "inf", "1e3s", "999999999h", "1s\x00"} {
		d := Duration(7)
		var value *ValueError
		if err := d.UnmarshalText([]byte(s)); !errors.As(err, &value) || d != 7 {
			t.Errorf("%q: %s, %v", s, d, err)
		}
	}
	var d Duration
	if err := json.Unmarshal([]byte("5"), &d); err == nil {
		t.Error("a number without a unit was taken for a duration")
	}
}

func FuzzParseBytes(f *testing.F) {
	for _, s := range []string{"24GB", "24GiB", "24GBB", "1.5 MiB", "-1B", "1e3GB", "1024TiB", "0x1B"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, err := ParseBytes(s)
		if err != nil {
			if b != 0 || !errors.Is(err, ErrInvalid) {
				t.Fatalf("%q: %d, %v", s, b, err)
			}
			return
		}
		if b < 0 || b > MaxBytes {
			t.Fatalf("%q: %d is out of bounds", s, b)
		}
		if c := strings.TrimSpace(s)[0]; c < '0' || c > '9' {
			t.Fatalf("%q was taken", s)
		}
	})
}

func FuzzParsePrice(f *testing.F) {
	for _, s := range []string{"0.40/h", "1", "-1", "NaN", "1e3", "0.0000001", "1000000/h"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePrice(s)
		if err != nil {
			if p != 0 || !errors.Is(err, ErrInvalid) {
				t.Fatalf("%q: %d, %v", s, p, err)
			}
			return
		}
		if back, err := ParsePrice(p.String()); err != nil || back != p || p < 0 || p > MaxPrice {
			t.Fatalf("%q: %d is shown as %s, read as %d, %v", s, int64(p), p, back, err)
		}
	})
}
