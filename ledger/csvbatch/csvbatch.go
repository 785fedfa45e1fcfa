// Package csvbatch is the payment adapter that needs no outside service: it
// writes payouts as a signed CSV file for whoever makes the transfers, and
// reads deposits from one that whoever sees them arrive has signed.
//
// # The format, version 1
//
// Lines of ASCII that each end in a line feed; fields parted by commas, never
// quoted, so that one batch has one form:
//
//	offpeak-batch,1,deposits,batch-2026-12-02,credits,2,37.50,2026-12-02T23:00:00Z
//	1,bank-7781,acct_01jd…,12.50,0b6a3c1f5e2d4a99
//	2,bank-7782,acct_01je…,25.00,9f51c07e33aa1d20
//	end,9f51c07e33aa1d20
//	signature,ed25519,c1c1a3f0b2d49e87,MEUCIQ…
//
// The header has the version, the direction (deposits or payouts), the
// batch's id, the currency (always credits), the number of rows, their total,
// and when the batch was made (RFC 3339, UTC, whole seconds). A row has its
// number, the world's reference, the account, the amount in credits as
// offpeak.MicroCredits prints it, and its link: the first 8 bytes, in hex, of
// the SHA-256 of the link above (for the first row, of the header line) and
// the row up to the comma before its own link. The end line repeats the last
// link, or the header's where there is no row. The signature line has the first
// 8 bytes of the SHA-256 of the public key in hex, so that a wrong key is told
// from an altered file, and the Ed25519 signature, in padded base64, of all
// bytes above its line.
//
// The links are no protection: anybody can compute them. They are there so that
// a row that was altered, left out, moved or doubled by accident is named. The
// signature is what protects, and Read believes nothing before it has verified
// that.
package csvbatch

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"offpeak"
	"offpeak/ledger"
)

// Bounds of a batch.
const (
	// MaxRows bounds the rows of a batch.
	MaxRows = 100_000
	// MaxBytes bounds a batch as it arrives: no row is longer than 256 bytes.
	MaxBytes = (MaxRows + 3) * 256
)

const (
	magic    = "offpeak-batch"
	version  = "1"
	currency = "credits"
)

// ErrSignature says that the bytes were not signed with the key that is trusted.
var ErrSignature = errors.New("the signature is not that of the trusted key over these bytes")

// RowError says which row of a batch breaks which rule.
type RowError struct {
	// Row counts from 1; 0 is the header, -1 what follows the rows.
	Row int
	// Rule says what is wrong.
	Rule string
	// Err is the error of the value that is wrong, nil where the rule says all.
	Err error
}

func (e *RowError) Error() string {
	where := "row " + strconv.Itoa(e.Row)
	switch e.Row {
	case header:
		where = "header"
	case trailer:
		where = "end of the batch"
	}
	if e.Err != nil {
		return fmt.Sprintf("%s: %s: %v", where, e.Rule, e.Err)
	}
	return where + ": " + e.Rule
}

// Unwrap makes errors.Is(e, offpeak.ErrInvalid) true, and leads to Err.
func (e *RowError) Unwrap() []error {
	if e.Err == nil {
		return []error{offpeak.ErrInvalid}
	}
	return []error{offpeak.ErrInvalid, e.Err}
}

const (
	header  = 0
	trailer = -1
)

// Adapter carries payments as signed files. It implements ledger.Payments.
type Adapter struct {
	// Own signs payouts.
	Own ed25519.PrivateKey
	// Trusted is the key that deposits are signed with.
	Trusted ed25519.PublicKey
}

var _ ledger.Payments = Adapter{}

// WritePayouts signs payouts with the adapter's own key. It returns the errors
// of Write.
func (a Adapter) WritePayouts(b ledger.Batch) ([]byte, error) {
	if b.Direction != ledger.DirectionPayouts {
		return nil, &RowError{Row: header, Rule: "the batch is of payouts"}
	}
	return Write(b, a.Own)
}

// ReadDeposits reads deposits that are signed with the trusted key. It returns
// the errors of Read, and a *RowError for a batch of payouts.
func (a Adapter) ReadDeposits(data []byte) (ledger.Batch, error) {
	b, err := Read(data, a.Trusted)
	if err == nil && b.Direction != ledger.DirectionDeposits {
		return ledger.Batch{}, &RowError{Row: header, Rule: "the batch is of deposits"}
	}
	return b, err
}

// Write returns a batch, signed. The same batch and key give the same bytes. It
// returns a *RowError for a batch that Read would refuse, and a
// *offpeak.FieldError for what is no key.
func Write(b ledger.Batch, key ed25519.PrivateKey) ([]byte, error) {
	if len(key) != ed25519.PrivateKeySize {
		return nil, &offpeak.FieldError{Field: "key", Rule: "is an Ed25519 private key"}
	}
	if err := check(b); err != nil {
		return nil, fmt.Errorf("write batch %q: %w", b.ID, err)
	}
	var total offpeak.MicroCredits
	for _, m := range b.Movements {
		total += m.Amount
	}
	head := strings.Join([]string{magic, version, string(b.Direction), b.ID, currency, strconv.Itoa(len(b.Movements)), total.String(), b.At.UTC().Format(time.RFC3339)}, ",")
	var out bytes.Buffer
	fmt.Fprintln(&out, head)
	last := link("", head)
	for i, m := range b.Movements {
		row := rowText(i+1, m)
		last = link(last, row)
		fmt.Fprintf(&out, "%s,%s\n", row, last)
	}
	fmt.Fprintf(&out, "end,%s\n", last)
	signature := ed25519.Sign(key, out.Bytes())
	fmt.Fprintf(&out, "signature,ed25519,%s,%s\n", KeyID(key.Public().(ed25519.PublicKey)), base64.StdEncoding.EncodeToString(signature))
	return out.Bytes(), nil
}

// check holds a batch against the rules that both directions share.
func check(b ledger.Batch) error {
	if b.Direction != ledger.DirectionDeposits && b.Direction != ledger.DirectionPayouts {
		return &RowError{Row: header, Rule: "the direction is deposits or payouts"}
	}
	probe := ledger.Movement{External: b.ID, Account: "a", Amount: 1}
	if err := probe.Validate(); err != nil {
		return &RowError{Row: header, Rule: "the batch's id has 1 to 100 printable ASCII characters, without spaces and commas"}
	}
	if at := b.At; !at.Equal(at.Truncate(time.Second)) || at.UTC().Year() < 2000 || at.UTC().Year() > 9999 {
		return &RowError{Row: header, Rule: "the time is a whole second from the year 2000 on"}
	}
	if len(b.Movements) > MaxRows {
		return &RowError{Row: header, Rule: fmt.Sprintf("a batch has at most %d rows", MaxRows)}
	}
	var total offpeak.MicroCredits
	seen := make(map[string]int, len(b.Movements))
	for i, m := range b.Movements {
		if err := m.Validate(); err != nil {
			return &RowError{Row: i + 1, Rule: "is not a payment", Err: err}
		}
		if first, ok := seen[m.External]; ok {
			return &RowError{Row: i + 1, Rule: fmt.Sprintf("the reference %s is that of row %d", m.External, first)}
		}
		seen[m.External] = i + 1
		// One amount is far below half of an int64, so the sum can't wrap unseen.
		if total += m.Amount; total < 0 {
			return &RowError{Row: i + 1, Rule: "the total of the batch overflows"}
		}
	}
	return nil
}

func rowText(n int, m ledger.Movement) string {
	return strings.Join([]string{strconv.Itoa(n), m.External, string(m.Account), m.Amount.String()}, ",")
}

// link chains a line to the one above.
func link(above, line string) string {
	sum := sha256.Sum256([]byte(above + "\n" + line))
	return hex.EncodeToString(sum[:8])
}

// KeyID names a public key in a signature line.
func KeyID(key ed25519.PublicKey) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:8])
}

// Read returns a batch that is signed with a key. It returns no batch and a
// *RowError for the first row that breaks the format, and an error that is
// ErrSignature for well-formed bytes that the key did not sign.
func Read(data []byte, key ed25519.PublicKey) (ledger.Batch, error) {
	b, signed, signature, err := parse(data, key)
	if err == nil && !ed25519.Verify(key, signed, signature) {
		err = ErrSignature
	}
	if err != nil {
		return ledger.Batch{}, fmt.Errorf("read batch: %w", err)
	}
	return b, nil
}

// parse reads the format and verifies nothing but that.
func parse(data []byte, key ed25519.PublicKey) (b ledger.Batch, signed, signature []byte, err error) {
	bad := func(row int, rule string, err error) (ledger.Batch, []byte, []byte, error) {
		return ledger.Batch{}, nil, nil, &RowError{Row: row, Rule: rule, Err: err}
	}
	if len(key) != ed25519.PublicKeySize {
		return b, nil, nil, &offpeak.FieldError{Field: "key", Rule: "is an Ed25519 public key"}
	}
	if len(data) > MaxBytes {
		return bad(header, fmt.Sprintf("a batch has at most %d bytes", MaxBytes), nil)
	}
	lines := lineReader{rest: data}
	head, ok := lines.next()
	if !ok {
		return bad(header, "the batch is empty or its first line has no end", nil)
	}
	h, err := parseHeader(head)
	if err != nil {
		return b, nil, nil, err
	}
	b = h.batch
	last := link("", head)
	for n := 1; n <= h.count; n++ {
		line, ok := lines.next()
		if !ok {
			return bad(n, fmt.Sprintf("the batch is cut off: the header says %d rows", h.count), nil)
		}
		if strings.HasPrefix(line, "end,") {
			return bad(n, fmt.Sprintf("is missing: the header says %d rows", h.count), nil)
		}
		m, err := parseRow(n, line, last)
		if err != nil {
			return b, nil, nil, err
		}
		last = line[strings.LastIndexByte(line, ',')+1:]
		b.Movements = append(b.Movements, m)
	}
	end, ok := lines.next()
	switch {
	case !ok:
		return bad(trailer, "the batch is cut off before its end line", nil)
	case !strings.HasPrefix(end, "end,"):
		return bad(h.count+1, fmt.Sprintf("is one too many: the header says %d rows", h.count), nil)
	case end != "end,"+last:
		return bad(trailer, "the end line has the link of the last row", nil)
	}
	if err := check(b); err != nil {
		return b, nil, nil, err
	}
	var total offpeak.MicroCredits
	for _, m := range b.Movements {
		total += m.Amount
	}
	if total.String() != h.total {
		return bad(header, fmt.Sprintf("the total is %q, the rows sum to %s", h.total, total), nil)
	}
	signed = data[:len(data)-len(lines.rest)]
	line, ok := lines.next()
	f := strings.Split(line, ",")
	if !ok || len(lines.rest) > 0 || len(f) != 4 || f[0] != "signature" || f[1] != "ed25519" {
		return bad(trailer, "the last line is signature,ed25519,KEY,SIGNATURE", nil)
	}
	if f[2] != KeyID(key) {
		return bad(trailer, fmt.Sprintf("the batch is signed with the key %q, trusted is %s", f[2], KeyID(key)), ErrSignature)
	}
	signature, err = base64.StdEncoding.DecodeString(f[3])
	// The decoder is lenient; encoding again says whether this is the one form.
	if err != nil || len(signature) != ed25519.SignatureSize || base64.StdEncoding.EncodeToString(signature) != f[3] {
		return bad(trailer, "the signature is 64 bytes in base64", ErrSignature)
	}
	return b, signed, signature, nil
}

type head struct {
	batch ledger.Batch
	count int
	total string
}

func parseHeader(line string) (h head, err error) {
	bad := func(format string, args ...any) (head, error) {
		return head{}, &RowError{Row: header, Rule: fmt.Sprintf(format, args...)}
	}
	f := strings.Split(line, ",")
	switch {
	case f[0] != magic:
		return bad("the first field is %s", magic)
	case len(f) < 2 || f[1] != version:
		return bad("the version is %s", version)
	case len(f) != 8:
		return bad("has %d fields, not 8", len(f))
	case f[4] != currency:
		return bad("the currency is %s, not %q", currency, f[4])
	}
	n, err := strconv.Atoi(f[5])
	if err != nil || n < 0 || n > MaxRows || strconv.Itoa(n) != f[5] {
		return bad("the number of rows is a whole number from 0 to %d, not %q", MaxRows, f[5])
	}
	at, err := time.Parse(time.RFC3339, f[7])
	if err != nil || at.UTC().Format(time.RFC3339) != f[7] {
		return bad("the time is like 2026-12-02T23:00:00Z, not %q", f[7])
	}
	return head{batch: ledger.Batch{ID: f[3], Direction: ledger.Direction(f[2]), At: at.UTC()}, count: n, total: f[6]}, nil
}

func parseRow(n int, line, above string) (ledger.Movement, error) {
	bad := func(rule string, err error) (ledger.Movement, error) {
		return ledger.Movement{}, &RowError{Row: n, Rule: rule, Err: err}
	}
	f := strings.Split(line, ",")
	if len(f) != 5 {
		return bad(fmt.Sprintf("has %d fields, not 5", len(f)), nil)
	}
	if f[0] != strconv.Itoa(n) {
		return bad(fmt.Sprintf("has the number %q: a row is missing, doubled or moved", f[0]), nil)
	}
	amount, err := ledger.ParseAmount(f[3])
	if err != nil {
		return bad("the amount is wrong", err)
	}
	m := ledger.Movement{External: f[1], Account: offpeak.AccountID(f[2]), Amount: amount}
	if amount.String() != f[3] {
		return bad(fmt.Sprintf("the amount is written %s, not %q", amount, f[3]), nil)
	}
	if f[4] != link(above, rowText(n, m)) {
		return bad("was altered: its link is not that of its fields and the row above", nil)
	}
	return m, nil
}

// lineReader yields lines without their line feeds.
type lineReader struct{ rest []byte }

func (l *lineReader) next() (string, bool) {
	i := bytes.IndexByte(l.rest, '\n')
	if i < 0 {
		return "", false
	}
	line := string(l.rest[:i])
	l.rest = l.rest[i+1:]
	return line, true
}
