package people

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/manifest"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

func newToken(env world.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make, list and revoke tokens",
		Long: `A token lets a person or program act for an account, within its role; a join
token lets one machine become a node.`,
		Example: `  offpeak token create --role submitter --name ci
  offpeak token join
  offpeak token ls`,
		Args: cobra.NoArgs,
		RunE: help,
	}
	cmd.AddCommand(newTokenCreate(env), newTokenJoin(env), newTokenLs(env), newTokenRevoke(env))
	return strict(cmd)
}

// help prints a command's help; it is what commands do that only have others below them.
func help(cmd *cobra.Command, _ []string) error { return cmd.Help() }

func newTokenCreate(env world.Env) *cobra.Command {
	c := &client{env: env}
	var in wire.NewToken
	var role, account string
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a token and print its secret, once",
		Long: `Create makes a token for your account (or, for admins, another one) and prints
its secret. The hub keeps only a hash: write the secret down now.`,
		Example: `  offpeak token create --role submitter --name ci --expires 720h`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in.Role, in.Account = offpeak.Role(role), offpeak.AccountID(account)
			return c.createToken(cmd.Context(), in)
		},
	}
	f := cmd.Flags()
	f.StringVar(&role, "role", "submitter", "what the token may do: admin, owner, submitter or viewer")
	f.StringVar(&in.Name, "name", "", "what the token is for")
	f.StringVar(&account, "account", "", "`account` other than yours (admins)")
	f.Var((*manifest.Duration)(&in.Expires), "expires", "how long it lives (default 90 days)")
	_ = cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions([]string{"admin", "owner", "submitter", "viewer"}, cobra.ShellCompDirectiveNoFileComp))
	return c.command(cmd)
}

func newTokenJoin(env world.Env) *cobra.Command {
	c := &client{env: env}
	in := wire.NewToken{Role: offpeak.RoleJoin}
	var account string
	cmd := &cobra.Command{
		Use:   "join",
		Short: "Make a join token for a new machine",
		Long: `Join prints a text that makes a machine a node of your account when it is given
to ` + "`offpeak agent join`" + ` there. It is good for one machine and one hour unless you
say else, and holds the hub's addresses and key.`,
		Example: `  offpeak token join
  offpeak token join --uses 20 --expires 24h`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if in.Uses < 1 {
				return world.Refuse(&offpeak.FieldError{Field: "--uses", Value: fmt.Sprint(in.Uses), Rule: "is at least 1"})
			}
			in.Account = offpeak.AccountID(account)
			return c.createToken(cmd.Context(), in)
		},
	}
	f := cmd.Flags()
	f.IntVar(&in.Uses, "uses", 1, "how many machines it makes nodes")
	f.StringVar(&in.Name, "name", "", "what the token is for")
	f.StringVar(&account, "account", "", "`account` other than yours (admins)")
	f.Var((*manifest.Duration)(&in.Expires), "expires", "how long it lives (default 1h)")
	return c.command(cmd)
}

func (c *client) createToken(ctx context.Context, in wire.NewToken) error {
	if in.Name != "" {
		if err := offpeak.ValidName("--name", in.Name); err != nil {
			return world.Refuse(err)
		}
	}
	if err := c.dial(); err != nil {
		return err
	}
	op := remote.NewOp()
	made, err := remote.Ask(ctx, c.hub, remote.Mutating, func(ctx context.Context, d *wire.Direct) (wire.CreatedToken, error) {
		return d.CreateToken(ctx, op, in)
	})
	if err != nil {
		return world.Named(err, func(field string) string {
			return map[string]string{"name": "--name", "role": "--role", "expires": "--expires", "uses": "--uses"}[field]
		})
	}
	// The secret alone goes to standard output, so that it can be piped.
	if c.output == "table" {
		c.note(fmt.Sprintf("token %s, role %s, until %s; this is the only time its secret is shown", made.Token.ID, made.Token.Role, render.Stamp(&made.Token.ExpiresAt)))
	}
	return c.print(made, []string{string(made.Token.ID)}, func(t *render.Table) { t.Line(made.Secret) })
}

func newTokenLs(env world.Env) *cobra.Command {
	c := &client{env: env}
	cmd := &cobra.Command{
		Use:     "ls",
		Short:   "List tokens",
		Long:    `Ls lists your account's tokens, without their secrets.`,
		Example: `  offpeak token ls`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.dial(); err != nil {
				return err
			}
			list, err := pages(cmd.Context(), c, url.Values{}, 0, func(ctx context.Context, d *wire.Direct, q url.Values) (wire.List[offpeak.Token], error) {
				return d.Tokens(ctx, q)
			})
			if err != nil {
				return err
			}
			return c.print(list, ids(list.Items, func(k offpeak.Token) offpeak.TokenID { return k.ID }), func(t *render.Table) {
				now := time.Now()
				t.Row("TOKEN", "NAME", "ROLE", "USES LEFT", "EXPIRES", "LAST USED", "STATE")
				for _, k := range list.Items {
					uses := fmt.Sprint(k.UsesLeft)
					if k.UsesLeft < 0 {
						uses = "any"
					}
					t.Row(string(k.ID), render.Dash(k.Name), string(k.Role), uses, render.Stamp(&k.ExpiresAt), render.Ago(now, k.LastUsed), tokenState(k, now))
				}
			})
		},
	}
	return c.command(cmd)
}

func tokenState(k offpeak.Token, now time.Time) string {
	switch {
	case k.RevokedAt != nil:
		return "revoked"
	case !k.ExpiresAt.After(now):
		return "expired"
	case k.UsesLeft == 0:
		return "used up"
	}
	return "good"
}

func newTokenRevoke(env world.Env) *cobra.Command {
	c := &client{env: env}
	cmd := &cobra.Command{
		Use:     "revoke TOKEN",
		Short:   "End a token at once",
		Long:    `Revoke ends a token at once. TOKEN is its id as token ls prints it, never the secret.`,
		Example: `  offpeak token revoke tok_01jd8zk3x9f0wr4c2m7qv5t6ae`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.dial(); err != nil {
				return err
			}
			op := remote.NewOp()
			err := c.hub.Call(cmd.Context(), remote.Mutating, func(ctx context.Context, d *wire.Direct) error {
				return d.RevokeToken(ctx, op, offpeak.TokenID(args[0]))
			})
			if err != nil {
				return err
			}
			return c.print(map[string]string{"revoked": args[0]}, args, func(t *render.Table) { t.Row(args[0], "revoked") })
		},
	}
	return c.command(cmd)
}
