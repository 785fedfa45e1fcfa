package cli

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/ledger"
	"offpeak/ledger/csvbatch"
)

// newPayments holds the commands for who makes transfers outside of the grid. They
// work on files and ask no hub.
func newPayments(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "payments",
		Short: "Keys and signed files of deposits and payouts",
		Long: `Whoever receives money for a grid and makes its transfers says so in signed CSV
files. These commands make their keys, sign deposits for "offpeak deposit import",
and read what "offpeak payout export" wrote. They work on files and ask no hub.`,
		Example: `  offpeak payments keygen bank.key
  offpeak payments sign deposits.csv signed.csv --key bank.key --batch 2026-12-02
  offpeak payments verify payouts.csv --key hub.pub`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newKeygen(env), newShowKey(env), newSign(env), newVerify(env))
	return cmd
}

// arguments refuses another number of arguments as bad input.
func arguments(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return badInput("%s takes %s", cmd.CommandPath(), what)
		}
		return nil
	}
}

// shownKey is a key as people see it.
type shownKey struct {
	Key    string `json:"key"`
	Public string `json:"public"`
}

func showKey(key ed25519.PublicKey) (shownKey, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return shownKey{}, fmt.Errorf("show key: %w", err)
	}
	return shownKey{csvbatch.KeyID(key), string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))}, nil
}

// printed prints a value as a table, which lines is, or as JSON.
func printed(env Env, format string, v any, lines func(t *render.Table)) error {
	if format == "json" {
		e := json.NewEncoder(env.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(v)
	}
	t := render.NewTable(env.Stdout)
	lines(t)
	return t.Flush()
}

func newKeygen(env Env) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "keygen FILE", Short: "Make a key that signs deposits or payouts",
		Long: `Keygen writes a private Ed25519 key to FILE, which nobody else may read, and its
public key to FILE.pub, for those who are to trust it: a hub takes it with
--deposits-key. It prints the name of the key that stands in what it signs.`,
		Example: `  offpeak payments keygen bank.key`,
		Args:    arguments(1, "one argument: the file"),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := tableOrJSON(format); err != nil {
				return err
			}
			key, err := makePrivate(args[0])
			if err != nil {
				return err
			}
			shown, err := showKey(key.Public().(ed25519.PublicKey))
			if err != nil {
				return err
			}
			if err := os.WriteFile(args[0]+".pub", []byte(shown.Public), 0o644); err != nil {
				return fmt.Errorf("write public key: %w", err)
			}
			return printed(env, format, shown, func(t *render.Table) { t.Line(shown.Key) })
		},
	}
	cmd.Flags().StringVarP(&format, "format", "o", "table", "print `table` or json")
	return cmd
}

func newShowKey(env Env) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "show FILE", Short: "Show the public half of a key",
		Long: `Show prints the public key of a private or public key's file: what a hub's
--deposits-key takes, or "offpeak payments verify". The hub's own key for payouts
is payments.key in its data folder, once it has signed some.`,
		Example: `  offpeak payments show bank.key > bank.pub`,
		Args:    arguments(1, "one argument: the key's file"),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := tableOrJSON(format); err != nil {
				return err
			}
			key, err := readPublic(args[0])
			if err != nil {
				return err
			}
			shown, err := showKey(key)
			if err != nil {
				return err
			}
			return printed(env, format, shown, func(t *render.Table) {
				for line := range strings.Lines(shown.Public) {
					t.Line(strings.TrimSuffix(line, "\n"))
				}
			})
		},
	}
	cmd.Flags().StringVarP(&format, "format", "o", "table", "print `table` or json")
	return cmd
}

func newSign(env Env) *cobra.Command {
	var format, keyFile, batch string
	cmd := &cobra.Command{
		Use: "sign FILE SIGNED", Short: "Sign a file of deposits",
		Long: `Sign reads deposits from FILE, one a line as REFERENCE,ACCOUNT,AMOUNT: the world's
reference, the account's id and credits, for example bank-7781,acct_01jd,12.50. It
writes them to SIGNED for "offpeak deposit import". Lines that are empty or begin
with # are left out.`,
		Example: `  offpeak payments sign deposits.csv signed.csv --key bank.key --batch 2026-12-02`,
		Args:    arguments(2, "two arguments: the file of deposits and the signed file to write"),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := tableOrJSON(format); err != nil {
				return err
			}
			if keyFile == "" || batch == "" {
				return badInput("--key and --batch: are needed: the private key's file, and a name for the batch")
			}
			key, err := readPrivate(keyFile)
			if err != nil {
				return err
			}
			b := ledger.Batch{ID: batch, Direction: ledger.DirectionDeposits, At: time.Now().UTC().Truncate(time.Second)}
			if b.Movements, err = readDeposits(args[0]); err != nil {
				return err
			}
			signed, err := csvbatch.Write(b, key)
			if err != nil {
				return badInput("%w", err)
			}
			if err := os.WriteFile(args[1], signed, 0o600); err != nil {
				return fmt.Errorf("write signed deposits: %w", err)
			}
			return printed(env, format, b, func(t *render.Table) { t.Line(fmt.Sprintf("%d deposits are signed", len(b.Movements))) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&keyFile, "key", "", "the private key's `file`")
	f.StringVar(&batch, "batch", "", "`name` of the batch")
	f.StringVarP(&format, "format", "o", "table", "print `table` or json")
	return cmd
}

// readDeposits reads the unsigned form: a line a deposit.
func readDeposits(path string) (list []ledger.Movement, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read deposits: %w", err)
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, ",")
		if len(f) != 3 {
			return nil, badInput("%s: line %d: is REFERENCE,ACCOUNT,AMOUNT", path, n)
		}
		amount, err := ledger.ParseAmount(f[2])
		if err != nil {
			return nil, badInput("%s: line %d: %w", path, n, err)
		}
		list = append(list, ledger.Movement{External: f[0], Account: offpeak.AccountID(f[1]), Amount: amount})
	}
	if err := lines.Err(); err != nil {
		return nil, badInput("%s: %w", path, err)
	}
	if len(list) == 0 {
		return nil, badInput("%s: holds no deposits: one a line as REFERENCE,ACCOUNT,AMOUNT", path)
	}
	return list, nil
}

func newVerify(env Env) *cobra.Command {
	var format, keyFile string
	cmd := &cobra.Command{
		Use: "verify FILE", Short: "Verify a signed file and show what it says",
		Long: `Verify reads a signed file of payouts or deposits, verifies every byte of it with
the key of who is to have signed it, and shows its rows. It shows nothing of a file
that was altered.`,
		Example: `  offpeak payments verify payouts.csv --key hub.pub`,
		Args:    arguments(1, "one argument: the signed file"),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := tableOrJSON(format); err != nil {
				return err
			}
			if keyFile == "" {
				return badInput("--key: is needed: the public key of who is to have signed it")
			}
			key, err := readPublic(keyFile)
			if err != nil {
				return err
			}
			if info, err := os.Stat(args[0]); err == nil && info.Size() > csvbatch.MaxBytes {
				return badInput("%s: a batch has at most %d bytes", args[0], csvbatch.MaxBytes)
			}
			data, err := os.ReadFile(args[0])
			if err != nil {
				return fmt.Errorf("read batch: %w", err)
			}
			b, err := csvbatch.Read(data, key)
			if errors.Is(err, offpeak.ErrInvalid) || errors.Is(err, csvbatch.ErrSignature) {
				return badInput("%s: %w", args[0], err)
			}
			if err != nil {
				return err
			}
			return printed(env, format, b, func(t *render.Table) {
				t.Row("ROW", "REFERENCE", "ACCOUNT", "CREDITS")
				for i, m := range b.Movements {
					t.Row(strconv.Itoa(i+1), m.External, string(m.Account), m.Amount.String())
				}
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&keyFile, "key", "", "`file` of the key of who signed it")
	f.StringVarP(&format, "format", "o", "table", "print `table` or json")
	return cmd
}
