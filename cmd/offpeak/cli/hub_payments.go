package cli

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"offpeak"
	"offpeak/ledger"
	"offpeak/ledger/csvbatch"
)

// paymentsKeyFile is the hub's own key for payouts in its data folder.
const paymentsKeyFile = "payments.key"

// payments is the adapter of signed CSV files with its keys in files, which are
// read when they are needed: a key may be made, and changed, while the hub runs.
type payments struct {
	// own signs payouts; make says that it is made where it is not there.
	own  string
	make bool
	// trusted signs deposits; "" is nobody.
	trusted string
}

var _ ledger.Payments = payments{}

// payments is what the flags say of it.
func (o *hubOptions) payments() payments {
	p := payments{own: o.paymentsKey, trusted: o.depositsKey}
	if p.own == "" && o.db == "" {
		p.own, p.make = filepath.Join(o.data, paymentsKeyFile), true
	}
	return p
}

// checkPayments refuses key files that can't be read, before anything is served.
func (o *hubOptions) checkPayments() error {
	if o.paymentsKey != "" {
		if _, err := readPrivate(o.paymentsKey); err != nil {
			return badInput("--payments-key: %w", err)
		}
	}
	if o.depositsKey != "" {
		if _, err := readTrusted(o.depositsKey); err != nil {
			return badInput("--deposits-key: %w", err)
		}
	}
	return nil
}

// WritePayouts signs payouts with the hub's own key.
func (p payments) WritePayouts(b ledger.Batch) ([]byte, error) {
	if p.own == "" {
		return nil, fmt.Errorf("sign payouts: hubs that share a database share a key: make one with `offpeak payments keygen FILE` and start every hub with --payments-key FILE: %w", offpeak.ErrConflict)
	}
	key, err := readPrivate(p.own)
	if errors.Is(err, fs.ErrNotExist) && p.make {
		key, err = makePrivate(p.own)
	}
	if err != nil {
		return nil, err
	}
	return csvbatch.Adapter{Own: key}.WritePayouts(b)
}

// ReadDeposits reads deposits that the trusted key signed.
func (p payments) ReadDeposits(data []byte) (ledger.Batch, error) {
	if p.trusted == "" {
		return ledger.Batch{}, fmt.Errorf("no key is trusted with deposits: start the hub with --deposits-key FILE, the public key of who signs them: %w", offpeak.ErrConflict)
	}
	key, err := readTrusted(p.trusted)
	if err != nil {
		return ledger.Batch{}, err
	}
	b, err := csvbatch.Adapter{Trusted: key}.ReadDeposits(data)
	if errors.Is(err, csvbatch.ErrSignature) && !errors.Is(err, offpeak.ErrInvalid) {
		err = &offpeak.FieldError{Field: "signature", Rule: err.Error()}
	}
	return b, err
}

// makePrivate makes a key in a file that was not there.
func makePrivate(path string) (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	// Written beside it and linked, so that nobody reads half a key and the first
	// of two who make it wins.
	f, err := os.CreateTemp(filepath.Dir(path), ".payments-*") // mode 0600
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	defer os.Remove(f.Name())
	err = pem.Encode(f, &pem.Block{Type: "PRIVATE KEY", Bytes: der})
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Link(f.Name(), path)
	}
	if err != nil {
		return nil, fmt.Errorf("make key %s: %w", path, err)
	}
	return key, nil
}

func readPrivate(path string) (ed25519.PrivateKey, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	if block, _ := pem.Decode(data); block != nil && block.Type == "PRIVATE KEY" {
		parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if key, ok := parsed.(ed25519.PrivateKey); err == nil && ok {
			return key, nil
		}
	}
	return nil, fmt.Errorf("read key: %s holds no private Ed25519 key in PEM: make one with `offpeak payments keygen FILE`", path)
}

// readTrusted reads the public key of who signs deposits. The private one is refused:
// a hub that has it could sign deposits itself, and so could whoever reads its disk.
func readTrusted(path string) (ed25519.PublicKey, error) {
	if _, err := readPrivate(path); err == nil {
		return nil, fmt.Errorf("read key: %s holds a private key, and a hub is given the public one, or it could sign deposits itself: take the private key off this machine and write the other with `offpeak payments show FILE > FILE.pub`", path)
	}
	return readPublic(path)
}

// readPublic reads a public key, or that of a private one.
func readPublic(path string) (ed25519.PublicKey, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	if block, _ := pem.Decode(data); block != nil && block.Type == "PUBLIC KEY" {
		parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
		if key, ok := parsed.(ed25519.PublicKey); err == nil && ok {
			return key, nil
		}
	}
	if key, err := readPrivate(path); err == nil {
		return key.Public().(ed25519.PublicKey), nil
	}
	return nil, fmt.Errorf("read key: %s holds no Ed25519 key in PEM: `offpeak payments keygen FILE` writes one to FILE.pub", path)
}
