package people

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/manifest"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

func newPs(env world.Env) *cobra.Command {
	c := &client{env: env}
	var all, watch bool
	var states, labels []string
	var limit int
	var group string
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List jobs",
		Long: `Ps lists your account's jobs that have not ended, newest first; an array stands in
one line, but where jobs are picked by label, and --group lists its members. With --all it
lists ended ones too; with --watch it prints the list anew whenever something
happens, until interrupted.`,
		Example: `  offpeak ps
  offpeak ps --all --limit 20
  offpeak ps --state failed -l project=digits -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q, err := jobQuery(all, states, labels)
			if err != nil {
				return world.Refuse(err)
			}
			if limit < 0 {
				return world.Refuse(&offpeak.FieldError{Field: "--limit", Value: fmt.Sprint(limit), Rule: "is 0 (no limit) or more"})
			}
			// Names alone are for another command to read: none is left out unasked.
			if c.output == "name" && !cmd.Flags().Changed("limit") {
				limit = 0
			}
			if err := c.dial(); err != nil {
				return err
			}
			ctx := cmd.Context()
			if len(labels) == 0 {
				q.Set("group", "none")
			}
			if group != "" {
				id, err := c.findGroup(ctx, group)
				if err != nil {
					return err
				}
				q.Set("group", string(id))
			}
			if !watch {
				return c.listJobs(ctx, q, limit)
			}
			return c.watch(ctx, "job.", func() error { return c.listJobs(ctx, q, limit) })
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&all, "all", "a", false, "ended jobs too")
	f.StringArrayVar(&states, "state", nil, "only jobs in this `state` (repeatable)")
	f.StringArrayVarP(&labels, "label", "l", nil, "only jobs with this label, `k=v` (repeatable)")
	f.StringVar(&group, "group", "", "the members of this array, by its `id`")
	f.IntVar(&limit, "limit", 100, "most jobs to list; 0 is no limit (and the default of -o name)")
	f.BoolVarP(&watch, "watch", "w", false, "print the list anew whenever it changes")
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(texts(offpeak.JobStates()), cobra.ShellCompDirectiveNoFileComp))
	return c.command(cmd)
}

func texts[S ~string](in []S) []string {
	out := make([]string, len(in))
	for i, s := range in {
		out[i] = string(s)
	}
	return out
}

func jobQuery(all bool, states, labels []string) (url.Values, error) {
	q := url.Values{}
	known := offpeak.JobStates()
	for _, s := range states {
		if !slices.Contains(known, offpeak.JobState(s)) {
			return nil, &offpeak.FieldError{Field: "--state", Value: s, Rule: "is one of " + strings.Join(texts(known), ", ")}
		}
		q.Add("state", s)
	}
	if len(states) == 0 && !all {
		for _, s := range known {
			if !s.Terminal() {
				q.Add("state", string(s))
			}
		}
	}
	if _, err := manifest.Pairs("--label", nil, labels); err != nil {
		return nil, err
	}
	for _, l := range labels {
		q.Add("label", l)
	}
	return q, nil
}

func (c *client) listJobs(ctx context.Context, q url.Values, limit int) error {
	jobs, err := pages(ctx, c, clone(q), limit, func(ctx context.Context, d *wire.Direct, q url.Values) (wire.List[offpeak.Job], error) {
		return d.Jobs(ctx, q)
	})
	if err != nil {
		return err
	}
	names := map[offpeak.NodeID]string{}
	if c.output == "table" && slices.ContainsFunc(jobs.Items, func(j offpeak.Job) bool { return j.Node != "" }) {
		// Names are a kindness: without the right to see nodes, ids serve.
		if nodes, err := c.nodes(ctx); err == nil {
			for _, n := range nodes.Items {
				names[n.ID] = n.Name
			}
		}
	}
	out := listed{Items: jobs.Items, Next: jobs.Next}
	if q.Get("group") == "none" {
		if out.Groups, err = c.groupsLike(ctx, q["state"], limit); err != nil {
			return err
		}
	}
	return c.print(out, out.names(), func(t *render.Table) {
		if len(jobs.Items)+len(out.Groups) == 0 {
			if q.Has("state") {
				t.Line("No jobs now (ended ones: offpeak ps --all). To begin one: offpeak run -- echo hello")
			} else {
				t.Line("No jobs. Begin with: offpeak run -- echo hello")
			}
			return
		}
		now := time.Now()
		t.Row("JOB", "NAME", "STATE", "ATTEMPT", "NODE", "SUBMITTED", "WHY")
		groups := out.Groups
		for _, j := range jobs.Items {
			for len(groups) > 0 && groups[0].SubmittedAt.After(j.SubmittedAt) {
				t.Row(groupRow(now, groups[0])...)
				groups = groups[1:]
			}
			node := names[j.Node]
			if node == "" {
				node = render.Dash(string(j.Node))
			}
			t.Row(string(j.ID), render.Dash(j.Spec.Name), string(j.State), fmt.Sprint(j.Attempt), node, render.Ago(now, &j.SubmittedAt), render.Dash(string(j.Reason)))
		}
		for _, g := range groups {
			t.Row(groupRow(now, g)...)
		}
		if jobs.Next != "" {
			t.Line(fmt.Sprintf("There are more: these are the newest %d (--limit 0 lists all).", len(jobs.Items)))
		}
	})
}

// listed is what ps prints: jobs, and arrays as wholes.
type listed struct {
	Items  []offpeak.Job   `json:"items"`
	Groups []offpeak.Group `json:"groups,omitempty"`
	Next   string          `json:"next,omitempty"`
}

func (l listed) names() (out []string) {
	for _, j := range l.Items {
		out = append(out, string(j.ID))
	}
	for _, g := range l.Groups {
		out = append(out, string(g.ID))
	}
	return out
}

func clone(q url.Values) url.Values {
	out := url.Values{}
	for k, v := range q {
		out[k] = slices.Clone(v)
	}
	return out
}

// watch calls show now and, at most twice a second, after events whose type
// begins with prefix, until ctx is done.
func (c *client) watch(ctx context.Context, prefix string, show func() error) error {
	changed := make(chan struct{}, 1)
	kick := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	kick()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- c.hub.Events(ctx, "", "", kick, func(e offpeak.Event) error {
			if strings.HasPrefix(e.Type, prefix) || strings.HasPrefix(e.Type, "lease.") || strings.HasPrefix(e.Type, "group.") {
				kick()
			}
			return nil
		})
	}()
	pace := time.NewTicker(500 * time.Millisecond)
	defer pace.Stop()
	for first := true; ; first = false {
		select {
		case <-changed:
		case err := <-ended:
			return err
		}
		if !first {
			if world.Terminal(c.env.Stdout) {
				// Home, and clear to the end: the list takes the place of the last one.
				fmt.Fprint(c.env.Stdout, "\x1b[H\x1b[J")
			} else if c.output == "table" {
				fmt.Fprintln(c.env.Stdout)
			}
		} else if world.Terminal(c.env.Stdout) {
			fmt.Fprint(c.env.Stdout, "\x1b[2J\x1b[H")
		}
		if err := show(); err != nil {
			return err
		}
		select {
		case <-pace.C:
		case err := <-ended:
			return err
		}
	}
}
