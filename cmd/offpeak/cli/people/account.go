package people

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/manifest"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

func newAccount(env world.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "account",
		Short: "Accounts, their members and quotas",
		Long:  `An account owns nodes, jobs and money. ACCOUNT is an account's id or name.`,
		Example: `  offpeak account create vision-lab --storage 500GB
  offpeak account invite vision-lab ada --role submitter`,
		Args: cobra.NoArgs,
		RunE: help,
	}
	cmd.AddCommand(newAccountCreate(env), newAccountLs(env), newAccountInvite(env), newAccountMembers(env), newRemoveMember(env), newAccountQuota(env))
	return strict(cmd)
}

// account finds the account that a person named; "" is their own, which they may
// look at without being an admin.
func (c *client) account(ctx context.Context, ref string) (offpeak.Account, error) {
	own, err := c.ownAccount(ctx)
	if err != nil {
		return offpeak.Account{}, err
	}
	if ref == "" || ref == own.Name || ref == string(own.ID) {
		return own, nil
	}
	list, err := c.accounts(ctx)
	if err != nil {
		return offpeak.Account{}, err
	}
	names := make([]string, len(list.Items))
	for i, a := range list.Items {
		names[i] = a.Name
	}
	found, err := pick("ACCOUNT", ref, ids(list.Items, func(a offpeak.Account) offpeak.AccountID { return a.ID }), names)
	if err != nil {
		return offpeak.Account{}, world.Hint(err, "See `offpeak account ls`.")
	}
	for _, a := range list.Items {
		if string(a.ID) == found {
			return a, nil
		}
	}
	return offpeak.Account{}, offpeak.ErrNotFound
}

func (c *client) ownAccount(ctx context.Context) (offpeak.Account, error) {
	who, err := remote.Ask(ctx, c.hub, remote.Reading, func(ctx context.Context, d *wire.Direct) (wire.Whoami, error) { return d.Whoami(ctx) })
	return who.Account, err
}

// first is the argument, "" where there is none.
func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

func (c *client) accounts(ctx context.Context) (wire.List[offpeak.Account], error) {
	return pages(ctx, c, url.Values{}, 0, func(ctx context.Context, d *wire.Direct, q url.Values) (wire.List[offpeak.Account], error) {
		return d.Accounts(ctx, q)
	})
}

// quotaFlags are the flags that bound an account.
type quotaFlags struct {
	storage               manifest.Size
	queued, running, gpus int
}

func (q *quotaFlags) bind(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Var(&q.storage, "storage", "most stored data, for example 500GB (default no bound)")
	f.IntVar(&q.queued, "queued", 0, "most jobs `n` that have not ended; 0 is no bound")
	f.IntVar(&q.running, "running", 0, "most jobs `n` that run at once; 0 is no bound")
	f.IntVar(&q.gpus, "gpus", 0, "most GPUs `n` that its jobs hold at once; 0 is no bound")
}

func (q *quotaFlags) over(cmd *cobra.Command, old offpeak.Quota) (offpeak.Quota, error) {
	changed := cmd.Flags().Changed
	if changed("storage") {
		old.Storage = offpeak.Bytes(q.storage)
	}
	if changed("queued") {
		old.Queued = q.queued
	}
	if changed("running") {
		old.Running = q.running
	}
	if changed("gpus") {
		old.GPUs = q.gpus
	}
	if old.Queued < 0 || old.Running < 0 || old.GPUs < 0 {
		return old, world.Refuse(&offpeak.FieldError{Field: "--queued, --running, --gpus", Rule: "are 0 (no bound) or more"})
	}
	return old, nil
}

func (c *client) printAccounts(v any, list []offpeak.Account) error {
	bound := func(n int) string {
		if n == 0 {
			return "no bound"
		}
		return fmt.Sprint(n)
	}
	return c.print(v, ids(list, func(a offpeak.Account) offpeak.AccountID { return a.ID }), func(t *render.Table) {
		t.Row("ACCOUNT", "NAME", "STORED", "STORAGE", "QUEUED", "RUNNING", "GPUS")
		for _, a := range list {
			storage := "no bound"
			if a.Quota.Storage > 0 {
				storage = render.About(a.Quota.Storage)
			}
			t.Row(string(a.ID), a.Name, render.About(a.Stored), storage, bound(a.Quota.Queued), bound(a.Quota.Running), bound(a.Quota.GPUs))
		}
	})
}

func newAccountCreate(env world.Env) *cobra.Command {
	c := &client{env: env}
	var q quotaFlags
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Make an account (admins)",
		Long:    `Create makes an account. Invite somebody to it with offpeak account invite.`,
		Example: `  offpeak account create vision-lab --storage 500GB --running 20`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := offpeak.ValidName("NAME", args[0]); err != nil {
				return world.Refuse(err)
			}
			quota, err := q.over(cmd, offpeak.Quota{})
			if err != nil {
				return err
			}
			if err := c.dial(); err != nil {
				return err
			}
			op := remote.NewOp()
			a, err := remote.Ask(cmd.Context(), c.hub, remote.Mutating, func(ctx context.Context, d *wire.Direct) (offpeak.Account, error) {
				return d.CreateAccount(ctx, op, wire.NewAccount{Name: args[0], Quota: quota})
			})
			if err != nil {
				return err
			}
			return c.printAccounts(a, []offpeak.Account{a})
		},
	}
	q.bind(cmd)
	return c.command(cmd)
}

func newAccountLs(env world.Env) *cobra.Command {
	c := &client{env: env}
	return c.command(&cobra.Command{
		Use: "ls", Short: "List accounts",
		Long:    `Ls lists the accounts you may see, with their quotas: admins all, others their own.`,
		Example: `  offpeak account ls`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.dial(); err != nil {
				return err
			}
			list, err := c.accounts(cmd.Context())
			if errors.Is(err, offpeak.ErrForbidden) {
				var own offpeak.Account
				own, err = c.ownAccount(cmd.Context())
				list = wire.List[offpeak.Account]{Items: []offpeak.Account{own}}
			}
			if err != nil {
				return err
			}
			return c.printAccounts(list, list.Items)
		},
	})
}

func newAccountInvite(env world.Env) *cobra.Command {
	c := &client{env: env}
	var in wire.NewMember
	var role string
	cmd := &cobra.Command{
		Use: "invite ACCOUNT NAME", Short: "Add a member and print their first token, once",
		Long: `Invite adds a person or program to an account and prints a token for them to log
in with. The hub keeps only a hash: hand the token on now.`,
		Example: `  offpeak account invite vision-lab ada --role submitter`,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := offpeak.ValidName("NAME", args[1]); err != nil {
				return world.Refuse(err)
			}
			in.Name, in.Role = args[1], offpeak.Role(role)
			if err := c.dial(); err != nil {
				return err
			}
			a, err := c.account(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			op := remote.NewOp()
			made, err := remote.Ask(cmd.Context(), c.hub, remote.Mutating, func(ctx context.Context, d *wire.Direct) (wire.Invited, error) {
				return d.Invite(ctx, op, a.ID, in)
			})
			if err != nil {
				return world.Named(err, func(field string) string {
					return map[string]string{"name": "NAME", "role": "--role", "expires": "--expires"}[field]
				})
			}
			if c.output == "table" {
				c.note(fmt.Sprintf("%s (%s) is a member of %s as %s; this is the only time the token is shown", made.Member.Name, made.Member.ID, a.Name, made.Member.Role))
			}
			return c.print(made, []string{string(made.Member.ID)}, func(t *render.Table) { t.Line(made.Secret) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&role, "role", "submitter", "what they may do: admin, owner, submitter or viewer")
	f.Var((*manifest.Duration)(&in.Expires), "expires", "how long their token lives (default 90 days)")
	_ = cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions([]string{"admin", "owner", "submitter", "viewer"}, cobra.ShellCompDirectiveNoFileComp))
	return c.command(cmd)
}

func (c *client) members(ctx context.Context, id offpeak.AccountID) (wire.List[offpeak.Member], error) {
	return remote.Ask(ctx, c.hub, remote.Reading, func(ctx context.Context, d *wire.Direct) (wire.List[offpeak.Member], error) {
		return d.Members(ctx, id)
	})
}

func newAccountMembers(env world.Env) *cobra.Command {
	c := &client{env: env}
	return c.command(&cobra.Command{
		Use: "members [ACCOUNT]", Short: "List an account's members",
		Long: `Members lists who may act for an account, your own unless you say else.`,
		Example: `  offpeak account members
  offpeak account members vision-lab`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.dial(); err != nil {
				return err
			}
			a, err := c.account(cmd.Context(), first(args))
			if err != nil {
				return err
			}
			list, err := c.members(cmd.Context(), a.ID)
			if err != nil {
				return err
			}
			return c.print(list, ids(list.Items, func(m offpeak.Member) offpeak.MemberID { return m.ID }), func(t *render.Table) {
				t.Row("MEMBER", "NAME", "ROLE", "SINCE")
				for _, m := range list.Items {
					t.Row(string(m.ID), m.Name, string(m.Role), render.Stamp(&m.CreatedAt))
				}
			})
		},
	})
}

func newRemoveMember(env world.Env) *cobra.Command {
	c := &client{env: env}
	return c.command(&cobra.Command{
		Use: "remove-member ACCOUNT MEMBER", Short: "Remove a member and revoke their tokens at once",
		Long: `Remove-member takes a member out of an account; all their tokens end at once.
MEMBER is an id or a name.`,
		Example: `  offpeak account remove-member vision-lab ada`,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.dial(); err != nil {
				return err
			}
			a, err := c.account(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			list, err := c.members(cmd.Context(), a.ID)
			if err != nil {
				return err
			}
			names := make([]string, len(list.Items))
			for i, m := range list.Items {
				names[i] = m.Name
			}
			id, err := pick("MEMBER", args[1], ids(list.Items, func(m offpeak.Member) offpeak.MemberID { return m.ID }), names)
			if err != nil {
				return world.Hint(err, "See `offpeak account members "+a.Name+"`.")
			}
			op := remote.NewOp()
			err = c.hub.Call(cmd.Context(), remote.Mutating, func(ctx context.Context, d *wire.Direct) error {
				return d.RemoveMember(ctx, op, a.ID, offpeak.MemberID(id))
			})
			if err != nil {
				return err
			}
			return c.print(map[string]string{"removed": id}, []string{id}, func(t *render.Table) { t.Row(id, "removed") })
		},
	})
}

func newAccountQuota(env world.Env) *cobra.Command {
	c := &client{env: env}
	var q quotaFlags
	cmd := &cobra.Command{
		Use: "quota [ACCOUNT]", Short: "Show or set what an account may use",
		Long: `Quota sets the bounds that flags name and leaves the others; without flags it
shows them. ACCOUNT is your own unless you say else. Only admins may set them.`,
		Example: `  offpeak account quota
  offpeak account quota vision-lab --storage 1TB --running 50`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.dial(); err != nil {
				return err
			}
			a, err := c.account(cmd.Context(), first(args))
			if err != nil {
				return err
			}
			quota, err := q.over(cmd, a.Quota)
			if err != nil {
				return err
			}
			if quota != a.Quota {
				op := remote.NewOp()
				a, err = remote.Ask(cmd.Context(), c.hub, remote.Mutating, func(ctx context.Context, d *wire.Direct) (offpeak.Account, error) {
					return d.SetQuota(ctx, op, a.ID, quota)
				})
				if err != nil {
					return err
				}
			}
			return c.printAccounts(a, []offpeak.Account{a})
		},
	}
	q.bind(cmd)
	return c.command(cmd)
}
