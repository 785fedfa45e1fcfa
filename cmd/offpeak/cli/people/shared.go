package people

import (
	"context"
	"net/url"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/transfer"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

// Client is what commands of neighbouring packages work with, as those of this one
// do: a way to the hub, and names, flags and output alike.
type Client struct{ own client }

// NewClient returns a client for one command.
func NewClient(env world.Env) *Client { return &Client{client{env: env}} }

// Command finishes a command: shared flags, strict arguments, bad input marked as
// such.
func (c *Client) Command(cmd *cobra.Command) *cobra.Command { return c.own.command(cmd) }

// Group finishes a command that only holds others.
func Group(cmd *cobra.Command) *cobra.Command {
	cmd.Args, cmd.RunE = cobra.NoArgs, help
	return strict(cmd)
}

// Dial finds the hub; it makes no call.
func (c *Client) Dial() (*remote.Hub, error) {
	err := c.own.dial()
	return c.own.hub, err
}

// Print shows a value as the person wants it: as a table, as the API's JSON, or the
// ids alone.
func (c *Client) Print(value any, ids []string, show func(t *render.Table)) error {
	return c.own.print(value, ids, show)
}

// Remember keeps the id of the last submitted job, for "-".
func (c *Client) Remember(id offpeak.JobID) { c.own.remember(string(id)) }

// Note shows a line to the person who waits.
func (c *Client) Note(line string) { c.own.note(line) }

// Desk moves files. The hub is dialled.
func (c *Client) Desk() transfer.Desk { return c.own.desk() }

// Nodes says how nodes are called, each asked for once. The hub is dialled.
func (c *Client) Nodes() func(ctx context.Context, id offpeak.NodeID) string {
	return c.own.follower("", false, false).NodeName
}

// Node finds the node that a person named. The hub is dialled.
func (c *Client) Node(ctx context.Context, ref string) (offpeak.NodeID, error) {
	return c.own.node(ctx, ref)
}

// OwnNodes lists the nodes of the person's own account. The hub is dialled.
func (c *Client) OwnNodes(ctx context.Context) ([]offpeak.Node, error) {
	own, err := c.own.ownAccount(ctx)
	if err != nil {
		return nil, err
	}
	list, err := c.own.nodes(ctx)
	if err != nil {
		return nil, err
	}
	out := list.Items[:0]
	for _, n := range list.Items {
		if n.Account == own.ID {
			out = append(out, n)
		}
	}
	return out, nil
}

// OwnAccount returns the person's own account. The hub is dialled.
func (c *Client) OwnAccount(ctx context.Context) (offpeak.Account, error) {
	return c.own.ownAccount(ctx)
}

// Account finds the account that a person named; "" is their own. The hub is
// dialled.
func (c *Client) Account(ctx context.Context, ref string) (offpeak.Account, error) {
	return c.own.account(ctx, ref)
}

// Job finds the job that a person named. The hub is dialled.
func (c *Client) Job(ctx context.Context, ref string) (offpeak.JobID, error) {
	return c.own.job(ctx, ref)
}

// JobOrGroup finds the job, or the array, that a person named. The hub is dialled.
func (c *Client) JobOrGroup(ctx context.Context, ref string) (offpeak.JobID, offpeak.GroupID, error) {
	return c.own.jobOrGroup(ctx, ref)
}

// CompleteJobs completes the ids of jobs in any of states, all if there are none.
func (c *Client) CompleteJobs(states ...offpeak.JobState) cobra.CompletionFunc {
	return c.own.completeJobs(states...)
}

// CompletePipelines completes the ids of pipelines.
func (c *Client) CompletePipelines(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	return c.own.completePipelines(cmd, args, toComplete)
}

// CompleteNodes completes the names of nodes.
func (c *Client) CompleteNodes(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	return c.own.completeNodes(cmd, args, toComplete)
}

// NodeHelp says in help texts how a node may be named.
const NodeHelp = nodeHelp

// JobHelp says in help texts how a job may be named.
const JobHelp = jobHelp

// Pages walks over the pages of a list until limit items are there; 0 is all.
func Pages[T any](ctx context.Context, c *Client, q url.Values, limit int, get func(context.Context, *wire.Direct, url.Values) (wire.List[T], error)) (wire.List[T], error) {
	return pages(ctx, &c.own, q, limit, get)
}
