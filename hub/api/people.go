package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"offpeak"
	"offpeak/store"
	"offpeak/wire"
)

// Page is the part of a list that is asked for. Like the other inputs that
// are embedded, it is exported so that huma finds its fields.
type Page struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"the most items of a page"`
	Cursor string `query:"cursor" maxLength:"512" doc:"next of the page before"`
}

func (p Page) store() store.Page { return store.Page{Cursor: p.Cursor, Limit: p.Limit} }

// Scope lets an admin look at one account only.
type Scope struct {
	Account string `query:"account" doc:"admins only: one account's"`
}

// scoped is whose objects a request is about: the caller's, or of an admin's
// choice, which has to be there, so that a slip of the pen is no empty list.
func (a *api) scoped(ctx context.Context, c *caller, account string) (offpeak.AccountID, error) {
	id := offpeak.AccountID(account)
	if id == "" || id == c.account {
		return c.account, nil
	}
	if c.account != "" {
		return "", wrap("account can be chosen by admins only", offpeak.ErrForbidden)
	}
	if _, err := a.hub.Store().Account(ctx, id); err != nil {
		return "", fmt.Errorf("account %s: %w", account, err)
	}
	return id, nil
}

func listOf[T any](items []T, next string, err error) (wire.List[T], error) {
	if items == nil {
		items = []T{}
	}
	return wire.List[T]{Items: items, Next: next}, err
}

// JobPath names a job.
type JobPath struct {
	Job offpeak.JobID `path:"job" maxLength:"128"`
}

func (a *api) submit(ctx context.Context, c *caller, _ *none) (offpeak.Job, error) {
	in, err := decode[wire.NewJob](c.body)
	if err != nil {
		return offpeak.Job{}, err
	}
	return a.hub.Submit(ctx, c.op, c.token.Account, in.Spec, in.After...)
}

type jobsQuery struct {
	Page
	Scope
	State []string       `query:"state,explode" doc:"only jobs in these states"`
	Name  string         `query:"name" doc:"only jobs of this name"`
	Label []string       `query:"label,explode" doc:"only jobs with this label, as name=value"`
	Group string         `query:"group" maxLength:"128" doc:"only members of this group; none: only jobs that are members of none"`
	Node  offpeak.NodeID `query:"node" doc:"only jobs whose newest attempt is on this node"`
}

func (a *api) jobs(ctx context.Context, c *caller, in *jobsQuery) (wire.List[offpeak.Job], error) {
	var empty wire.List[offpeak.Job]
	account, err := a.scoped(ctx, c, in.Account)
	if err != nil {
		return empty, err
	}
	f := store.JobFilter{Account: account, Name: in.Name, Node: in.Node}
	switch in.Group {
	case "":
	case "none":
		f.Alone = true
	default:
		f.Group = offpeak.GroupID(in.Group)
		if _, err := a.hub.Store().Group(ctx, c.account, f.Group); err != nil {
			return empty, fmt.Errorf("group %s: %w", in.Group, err)
		}
	}
	if f.States, err = statesOf(in.State); err != nil {
		return empty, err
	}
	for _, l := range in.Label {
		k, v, ok := strings.Cut(l, "=")
		if !ok || k == "" {
			return empty, &offpeak.FieldError{Field: "query.label", Value: l, Rule: "is name=value"}
		}
		if f.Label == nil {
			f.Label = map[string]string{}
		}
		f.Label[k] = v
	}
	return listOf(a.hub.Store().Jobs(ctx, f, in.store()))
}

func statesOf(texts []string) (out []offpeak.JobState, err error) {
	for _, s := range texts {
		state := offpeak.JobState(s)
		if !slices.Contains(offpeak.JobStates(), state) {
			return nil, &offpeak.FieldError{Field: "query.state", Value: s, Rule: fmt.Sprintf("is one of %v", offpeak.JobStates())}
		}
		out = append(out, state)
	}
	return out, nil
}

type jobQuery struct {
	JobPath
	Wait string `query:"wait" doc:"answer when the job has ended, or after this long; at most 1m"`
}

func (a *api) job(ctx context.Context, c *caller, in *jobQuery) (offpeak.Job, error) {
	wait, err := waitOf(in.Wait)
	if err != nil || wait == 0 {
		return orElse(err, func() (offpeak.Job, error) { return a.hub.Store().Job(ctx, c.account, in.Job) })
	}
	// A hub that shuts down answers waiters with how things stand.
	ctx, stop := a.untilClosing(ctx)
	defer stop()
	job, err := a.hub.WaitJob(ctx, c.account, in.Job, min(wait, time.Minute))
	if errors.Is(err, context.Canceled) && a.opts.Streams.Err() != nil {
		return a.hub.Store().Job(context.WithoutCancel(ctx), c.account, in.Job)
	}
	return job, err
}

// waitOf reads how long an answer may wait.
func waitOf(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	wait, err := time.ParseDuration(text)
	if err != nil || wait < 0 {
		return 0, &offpeak.FieldError{Field: "query.wait", Value: text, Rule: "is a length of time, for example 30s"}
	}
	return wait, nil
}

func (a *api) attempts(ctx context.Context, c *caller, in *JobPath) (wire.List[offpeak.Lease], error) {
	leases, err := a.hub.Store().Attempts(ctx, c.account, in.Job)
	return listOf(leases, "", err)
}

func (a *api) checkpoints(ctx context.Context, c *caller, in *JobPath) (wire.List[offpeak.Checkpoint], error) {
	points, err := a.hub.Store().Checkpoints(ctx, c.account, in.Job)
	return listOf(points, "", err)
}

func (a *api) explain(ctx context.Context, c *caller, in *JobPath) (wire.Explanation, error) {
	return a.hub.Explain(ctx, c.account, in.Job)
}

// foretell is for a job of the account whose token it is, also an admin's.
func (a *api) foretell(ctx context.Context, c *caller, _ *none) (wire.Explanation, error) {
	in, err := decode[wire.NewJob](c.body)
	if err != nil {
		return wire.Explanation{}, err
	}
	return a.hub.Foretell(ctx, c.token.Account, in.Spec, in.After...)
}

func (a *api) cancel(ctx context.Context, c *caller, in *JobPath) (offpeak.Job, error) {
	return a.hub.Cancel(ctx, c.op, c.account, in.Job)
}

func (a *api) retry(ctx context.Context, c *caller, in *JobPath) (offpeak.Job, error) {
	return a.hub.Retry(ctx, c.op, c.account, in.Job)
}

type nodesQuery struct {
	Page
	Scope
}

func (a *api) listNodes(ctx context.Context, c *caller, in *nodesQuery) (wire.List[offpeak.Node], error) {
	account, err := a.scoped(ctx, c, in.Account)
	if err != nil {
		return wire.List[offpeak.Node]{}, err
	}
	return listOf(a.hub.Nodes(ctx, account, in.store()))
}

// NodePath names a node.
type NodePath struct {
	Node offpeak.NodeID `path:"node" maxLength:"128"`
}

func (a *api) node(ctx context.Context, c *caller, in *NodePath) (offpeak.Node, error) {
	return a.hub.Node(ctx, c.account, in.Node)
}

func (a *api) setIntent(ctx context.Context, c *caller, in *NodePath) (offpeak.Node, error) {
	change, err := decode[wire.IntentChange](c.body)
	if err != nil {
		return offpeak.Node{}, err
	}
	return a.hub.SetIntent(ctx, c.op, c.account, in.Node, change)
}

func (a *api) trustNode(ctx context.Context, c *caller, in *NodePath) (offpeak.Node, error) {
	return a.hub.Trust(ctx, c.op, c.account, in.Node)
}

func (a *api) removeNode(ctx context.Context, c *caller, in *NodePath) error {
	return a.hub.RemoveNode(ctx, c.op, c.account, in.Node)
}

func (a *api) createToken(ctx context.Context, c *caller, _ *none) (wire.CreatedToken, error) {
	var empty wire.CreatedToken
	in, err := decode[wire.NewToken](c.body)
	if err != nil {
		return empty, err
	}
	if in.Account, err = a.scoped(ctx, c, string(in.Account)); err != nil {
		return empty, err
	}
	return a.access.CreateToken(ctx, c.op, in)
}

func (a *api) listTokens(ctx context.Context, c *caller, in *nodesQuery) (wire.List[offpeak.Token], error) {
	account, err := a.scoped(ctx, c, in.Account)
	if err != nil {
		return wire.List[offpeak.Token]{}, err
	}
	return listOf(a.hub.Store().Tokens(ctx, account, in.store()))
}

type tokenPath struct {
	Token offpeak.TokenID `path:"token" maxLength:"128"`
}

func (a *api) revokeToken(ctx context.Context, c *caller, in *tokenPath) error {
	return a.access.RevokeToken(ctx, c.op, c.account, in.Token)
}

func (a *api) createAccount(ctx context.Context, c *caller, _ *none) (offpeak.Account, error) {
	in, err := decode[wire.NewAccount](c.body)
	if err != nil {
		return offpeak.Account{}, err
	}
	return a.access.CreateAccount(ctx, c.op, in)
}

func (a *api) listAccounts(ctx context.Context, _ *caller, in *Page) (wire.List[offpeak.Account], error) {
	return listOf(a.hub.Store().Accounts(ctx, in.store()))
}

// AccountPath names an account.
type AccountPath struct {
	Account offpeak.AccountID `path:"account" maxLength:"128"`
}

func (a *api) setQuota(ctx context.Context, c *caller, in *AccountPath) (offpeak.Account, error) {
	q, err := decode[offpeak.Quota](c.body)
	if err != nil {
		return offpeak.Account{}, err
	}
	return a.access.SetQuota(ctx, c.op, in.Account, q)
}

func (a *api) invite(ctx context.Context, c *caller, in *AccountPath) (wire.Invited, error) {
	m, err := decode[wire.NewMember](c.body)
	if err != nil {
		return wire.Invited{}, err
	}
	return a.access.Invite(ctx, c.op, in.Account, m)
}

func (a *api) members(ctx context.Context, c *caller, in *AccountPath) (wire.List[offpeak.Member], error) {
	if c.account != "" && in.Account != c.account {
		return wire.List[offpeak.Member]{}, fmt.Errorf("account %s: %w", in.Account, offpeak.ErrNotFound)
	}
	members, err := a.hub.Store().Members(ctx, in.Account)
	return listOf(members, "", err)
}

type memberPath struct {
	AccountPath
	Member offpeak.MemberID `path:"member" maxLength:"128"`
}

func (a *api) removeMember(ctx context.Context, c *caller, in *memberPath) error {
	return a.access.RemoveMember(ctx, c.op, in.Account, in.Member)
}

// health is what anyone may know.
type health struct {
	Status  string `json:"status" doc:"ok"`
	Version string `json:"version"`
}

func (a *api) health(ctx context.Context, _ *caller, _ *none) (health, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, err := a.hub.Store().Now(ctx); err != nil {
		a.log.Warn("health check failed", "err", err)
		return health{}, wrap("the store does not answer", offpeak.ErrUnavailable)
	}
	return health{Status: "ok", Version: a.opts.Version}, nil
}

func (a *api) whoami(ctx context.Context, c *caller, _ *none) (wire.Whoami, error) {
	account, err := a.hub.Store().Account(ctx, c.token.Account)
	if err != nil {
		return wire.Whoami{}, err
	}
	return wire.Whoami{Account: account, Role: c.token.Role, Member: c.token.Member, Node: c.token.Node,
		Token: c.token.ID, Expires: c.token.ExpiresAt, Version: a.opts.Version}, nil
}

type checkQuery struct {
	Ledger bool `query:"ledger" doc:"true: recompute the ledger, and nothing else"`
}

func (a *api) check(ctx context.Context, _ *caller, in *checkQuery) (wire.Checked, error) {
	out, err := a.hub.Check(ctx, in.Ledger)
	if out.Violations == nil {
		out.Violations = []wire.Violation{}
	}
	return out, err
}

func (a *api) listHubs(ctx context.Context, _ *caller, _ *none) (wire.List[offpeak.Hub], error) {
	hubs, err := a.hub.Hubs(ctx)
	return listOf(hubs, "", err)
}

func (a *api) backup(ctx context.Context, c *caller, _ *none) error {
	in, err := decode[wire.NewBackup](c.body)
	if err != nil {
		return err
	}
	return a.data.Backup(ctx, in.Path)
}
