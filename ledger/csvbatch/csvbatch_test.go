package csvbatch_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"offpeak"
	"offpeak/ledger"
	"offpeak/ledger/csvbatch"
)

// key makes a key from one byte: these tests need the same one each time.
func key(b byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{b}, ed25519.SeedSize))
}

func public(k ed25519.PrivateKey) ed25519.PublicKey { return k.Public().(ed25519.PublicKey) }

func deposits() ledger.Batch {
	return ledger.Batch{
		ID: "batch-1", Direction: ledger.DirectionDeposits, At: time.Date(2026, 12, 2, 23, 0, 0, 0, time.UTC),
		Movements: []ledger.Movement{
			{External: "bank-1", Account: "acct_a", Amount: 12_500_000},
			{External: "bank-2", Account: "acct_b", Amount: 1},
			{External: "bank-3", Account: "acct_a", Amount: ledger.MaxAmount},
		},
	}
}

func written(t testing.TB, b ledger.Batch) []byte {
	t.Helper()
	data, err := csvbatch.Write(b, key(1))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	empty := deposits()
	empty.Movements = nil
	for _, b := range []ledger.Batch{deposits(), empty} {
		data := written(t, b)
		if again := written(t, b); !bytes.Equal(data, again) {
			t.Error("the same batch gives other bytes")
		}
		got, err := csvbatch.Read(data, public(key(1)))
		if err != nil {
			t.Fatalf("%v in\n%s", err, data)
		}
		if d := cmp.Diff(b, got); d != "" {
			t.Error(d)
		}
	}
}

// TestTheSameFileTwiceChangesNothing: also where its rows come in another file.
func TestTheSameFileTwiceChangesNothing(t *testing.T) {
	t.Parallel()
	adapter := csvbatch.Adapter{Own: key(2), Trusted: public(key(1))}
	var book ledger.Book
	post := func(data []byte) error {
		b, err := adapter.ReadDeposits(data)
		if err != nil {
			return err
		}
		list, err := b.Transactions(b.At)
		if err != nil {
			return err
		}
		for _, tx := range list {
			if err := book.Post(tx); err != nil {
				return err
			}
		}
		return nil
	}
	first := deposits()
	second := deposits()
	second.ID, second.At = "batch-2", second.At.Add(time.Hour)
	second.Movements = append(second.Movements[1:], ledger.Movement{External: "bank-4", Account: "acct_b", Amount: 7})
	for _, b := range []ledger.Batch{first, first, second, second, first} {
		if err := post(written(t, b)); err != nil {
			t.Fatal(err)
		}
	}
	if got := book.Balance(ledger.Available("acct_a")); got != 12_500_000+ledger.MaxAmount {
		t.Errorf("acct_a has %s", got)
	}
	if got := book.Balance(ledger.Available("acct_b")); got != 8 {
		t.Errorf("acct_b has %s", got)
	}
	second.Movements[0].Amount++
	if err := post(written(t, second)); !errors.Is(err, offpeak.ErrOperationConflict) {
		t.Errorf("another amount under a reference that was used: %v", err)
	}
}

func TestDirections(t *testing.T) {
	t.Parallel()
	adapter := csvbatch.Adapter{Own: key(1), Trusted: public(key(1))}
	b := deposits()
	if _, err := adapter.WritePayouts(b); err == nil {
		t.Error("wrote deposits as payouts")
	}
	b.Direction = ledger.DirectionPayouts
	data, err := adapter.WritePayouts(b)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := adapter.ReadDeposits(data); !errors.Is(err, offpeak.ErrInvalid) {
		t.Errorf("read payouts as deposits: %v", err)
	}
	if got, err := csvbatch.Read(data, public(key(1))); err != nil || got.Direction != ledger.DirectionPayouts {
		t.Errorf("read payouts: %v %v", got, err)
	}
}

// forge links and signs lines as the trusted writer would, so that only the
// values themselves can be refused.
func forge(head string, rows ...string) []byte {
	link := func(above, line string) string {
		sum := sha256.Sum256([]byte(above + "\n" + line))
		return hex.EncodeToString(sum[:8])
	}
	out, last := head+"\n", link("", head)
	for _, r := range rows {
		last = link(last, r)
		out += r + "," + last + "\n"
	}
	out += "end," + last + "\n"
	return []byte(out + "signature,ed25519," + csvbatch.KeyID(public(key(1))) + "," +
		base64.StdEncoding.EncodeToString(ed25519.Sign(key(1), []byte(out))) + "\n")
}

func TestValuesAreRefused(t *testing.T) {
	t.Parallel()
	const head = "offpeak-batch,1,deposits,b1,credits,1,1.00,2026-12-02T23:00:00Z"
	if _, err := csvbatch.Read(forge(head, "1,x,acct_a,1.00"), public(key(1))); err != nil {
		t.Fatalf("the forger's own batch: %v", err)
	}
	for _, amount := range []string{"-1.00", "+1.00", "0.00", "NaN", "Inf", "1e3", "0x1", "1.0000001", "0.0000001", "1,00", "1.", ".5", "", "1", "1.000", "01.00", " 1.00", "1.00 ", "1000000000000.000001", "99999999999999999999"} {
		refused(t, "amount "+amount, 1, forge(head, "1,x,acct_a,"+amount))
	}
	for _, row := range []string{"1,,acct_a,1.00", "1,x,,1.00", "1,x y,acct_a,1.00", "1,é,acct_a,1.00", "1,x,acct_a,1.00,more", "0,x,acct_a,1.00", "2,x,acct_a,1.00", "1,\"x\ny\",acct_a,1.00", "1," + strings.Repeat("x", 101) + ",acct_a,1.00"} {
		refused(t, row, 1, forge(head, row))
	}
	for _, h := range []string{
		"offpeak-batch,2,deposits,b1,credits,1,1.00,2026-12-02T23:00:00Z", "offpeak-batch,1,gifts,b1,credits,1,1.00,2026-12-02T23:00:00Z",
		"offpeak-batch,1,deposits,,credits,1,1.00,2026-12-02T23:00:00Z", "offpeak-batch,1,deposits,b1,EUR,1,1.00,2026-12-02T23:00:00Z",
		"offpeak-batch,1,deposits,b1,,1,1.00,2026-12-02T23:00:00Z", "offpeak-batch,1,deposits,b1,credits,-1,1.00,2026-12-02T23:00:00Z",
		"offpeak-batch,1,deposits,b1,credits,1,1.01,2026-12-02T23:00:00Z", "offpeak-batch,1,deposits,b1,credits,1,1,2026-12-02T23:00:00Z",
		"offpeak-batch,1,deposits,b1,credits,01,1.00,2026-12-02T23:00:00Z", "offpeak-batch,1,deposits,b1,credits,999999999,1.00,2026-12-02T23:00:00Z",
		"offpeak-batch,1,deposits,b1,credits,1,1.00,2026-12-02T23:00:00.5Z", "offpeak-batch,1,deposits,b1,credits,1,1.00,2026-12-02T23:00:00+01:00",
		"offpeak-batch,1,deposits,b1,credits,1,1.00,yesterday", "offpeak-batch,1,deposits,b1,credits,1,1.00", "number,reference,account,amount", "",
	} {
		refused(t, h, 0, forge(h, "1,x,acct_a,1.00"))
	}
	refused(t, "a reference twice", 2, forge("offpeak-batch,1,deposits,b1,credits,2,2.00,2026-12-02T23:00:00Z", "1,x,acct_a,1.00", "2,x,acct_a,1.00"))
	rows, sum := []string{}, "9999999999999.00"
	for i := range 10 {
		rows = append(rows, fmt.Sprintf("%d,x%d,acct_a,1000000000000.00", i+1, i))
	}
	refused(t, "a total that overflows", 10, forge("offpeak-batch,1,deposits,b1,credits,10,"+sum+",2026-12-02T23:00:00Z", rows...))
}

func refused(t *testing.T, what string, row int, data []byte) {
	t.Helper()
	b, err := csvbatch.Read(data, public(key(1)))
	var e *csvbatch.RowError
	if !errors.As(err, &e) || !errors.Is(err, offpeak.ErrInvalid) || e.Row != row {
		t.Errorf("%s: %v, expected to hear of row %d", what, err, row)
	}
	if len(b.Movements) > 0 {
		t.Errorf("%s: was refused and gave %d rows", what, len(b.Movements))
	}
}

// TestTheRowIsNamed: accidents on the way.
func TestTheRowIsNamed(t *testing.T) {
	t.Parallel()
	lines := bytes.SplitAfter(written(t, deposits()), []byte("\n"))
	lines = lines[:len(lines)-1]
	join := func(l ...[]byte) []byte { return bytes.Join(l, nil) }
	edit := func(i int, from, to string) []byte {
		l := slices.Clone(lines)
		l[i] = bytes.Replace(l[i], []byte(from), []byte(to), 1)
		return join(l...)
	}
	refused(t, "altered amount", 1, edit(1, "12.50", "12.60"))
	refused(t, "altered account", 3, edit(3, "acct_a", "acct_b"))
	refused(t, "altered link", 2, edit(2, "0.000001,", "0.000001,0"))
	refused(t, "doubled row", 2, join(lines[0], lines[1], lines[1], lines[2], lines[3], lines[4], lines[5]))
	refused(t, "moved rows", 1, join(lines[0], lines[2], lines[1], lines[3], lines[4], lines[5]))
	refused(t, "left out row", 2, join(lines[0], lines[1], lines[3], lines[4], lines[5]))
	refused(t, "left out last row", 3, join(lines[0], lines[1], lines[2], lines[4], lines[5]))
	refused(t, "cut off after a row", 3, join(lines[:3]...))
	refused(t, "cut off in a row", 2, append(join(lines[:2]...), lines[2][:10]...))
	refused(t, "no end", -1, join(lines[:4]...))
	refused(t, "no signature", -1, join(lines[:5]...))
	refused(t, "signature without its end", -1, bytes.TrimSuffix(join(lines...), []byte("\n")))
	refused(t, "carriage returns", -1, edit(5, "\n", "\r\n"))
	refused(t, "something after the signature", -1, append(join(lines...), '\n'))
	refused(t, "altered header", 1, edit(0, "batch-1", "batch-2"))
	refused(t, "altered direction", 1, edit(0, "deposits", "payouts"))
	refused(t, "nothing", 0, nil)
	refused(t, "too much", 0, make([]byte, csvbatch.MaxBytes+1))
}

func TestTheSignatureDecides(t *testing.T) {
	t.Parallel()
	data := written(t, deposits())
	if _, err := csvbatch.Read(data, public(key(2))); !errors.Is(err, csvbatch.ErrSignature) {
		t.Errorf("another key: %v", err)
	}
	// Somebody else who links the rows rightly and names the trusted key.
	other, err := csvbatch.Write(deposits(), key(2))
	if err != nil {
		t.Fatal(err)
	}
	other = bytes.Replace(other, []byte(csvbatch.KeyID(public(key(2)))), []byte(csvbatch.KeyID(public(key(1)))), 1)
	if _, err := csvbatch.Read(other, public(key(1))); !errors.Is(err, csvbatch.ErrSignature) {
		t.Errorf("a forged signature: %v", err)
	}
	if _, err := csvbatch.Read(data, nil); !errors.Is(err, offpeak.ErrInvalid) {
		t.Errorf("no key: %v", err)
	}
	if _, err := csvbatch.Write(deposits(), nil); !errors.Is(err, offpeak.ErrInvalid) {
		t.Errorf("no key: %v", err)
	}
}

func TestEveryFlippedByteIsRefused(t *testing.T) {
	t.Parallel()
	data := written(t, deposits())
	for i := range data {
		for _, flip := range []byte{1, 0x20, 0x80} {
			bent := bytes.Clone(data)
			bent[i] ^= flip
			if _, err := csvbatch.Read(bent, public(key(1))); err == nil {
				t.Errorf("byte %d of %d as %q was accepted", i, len(data), bent[i])
			}
		}
		if _, err := csvbatch.Read(data[:i], public(key(1))); err == nil {
			t.Errorf("the first %d of %d bytes were accepted", i, len(data))
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(*ledger.Batch){
		"amount":    func(b *ledger.Batch) { b.Movements[1].Amount = -1 },
		"reference": func(b *ledger.Batch) { b.Movements[1].External = "a,b" },
		"account":   func(b *ledger.Batch) { b.Movements[1].Account = "a\nb" },
		"twice":     func(b *ledger.Batch) { b.Movements[1].External = "bank-1" },
		"id":        func(b *ledger.Batch) { b.ID = "" },
		"direction": func(b *ledger.Batch) { b.Direction = "" },
		"time":      func(b *ledger.Batch) { b.At = b.At.Add(time.Millisecond) },
		"rows":      func(b *ledger.Batch) { b.Movements = make([]ledger.Movement, csvbatch.MaxRows+1) },
	} {
		b := deposits()
		change(&b)
		var e *csvbatch.RowError
		if _, err := csvbatch.Write(b, key(1)); !errors.As(err, &e) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// FuzzBatch: what is read was signed, and writes back to the same bytes.
func FuzzBatch(f *testing.F) {
	f.Add(written(f, deposits()))
	f.Add(forge("offpeak-batch,1,deposits,b1,credits,1,1.00,2026-12-02T23:00:00Z", "1,x,acct_a,1.00"))
	f.Add([]byte("offpeak-batch,1,deposits,b1,credits,0,0.00,2026-12-02T23:00:00Z\nend,\nsignature,ed25519,,\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := csvbatch.Read(data, public(key(1)))
		if err != nil {
			if len(b.Movements) > 0 || b.ID != "" {
				t.Fatalf("refused with %v and read %+v", err, b)
			}
		}
		// The same lines signed anew get past the signature to the values.
		if err != nil {
			lines := strings.Split(string(data), "\n")
			var rows []string
			for _, l := range lines[1:] {
				if i := strings.LastIndexByte(l, ','); i > 0 && !strings.HasPrefix(l, "end,") && !strings.HasPrefix(l, "signature,") {
					rows = append(rows, l[:i])
				}
			}
			data = forge(lines[0], rows...)
			if b, err = csvbatch.Read(data, public(key(1))); err != nil {
				return
			}
		}
		again, err := csvbatch.Write(b, key(1))
		if err != nil {
			t.Fatalf("what was read can't be written: %v", err)
		}
		if !bytes.Equal(again, data) {
			t.Fatalf("reads\n%s\nwrites\n%s", data, again)
		}
	})
}
