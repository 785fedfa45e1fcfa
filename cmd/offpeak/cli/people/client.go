// Package people holds the commands that speak to a hub for a person, one file
// a command.
//
// It owns how a hub is found, how jobs, nodes and accounts are named, and what
// each command prints; what takes long or is delicate is done by its neighbours:
// manifest reads specs, transfer moves files, follow stays with a job, remote
// outlives outages. Commands are built by New and run one a process.
package people

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/follow"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/transfer"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/internal/local"
	"offpeak/wire"
)

// New returns the commands that speak to a hub for a person.
func New(env world.Env) []*cobra.Command {
	return []*cobra.Command{
		newRun(env), newSubmit(env), newPs(env), newShow(env), newLogs(env),
		newCancel(env), newRetry(env), newWait(env), newExplain(env), newOutputs(env),
		newNodes(env), newEvents(env),
		newLogin(env), newContext(env), newWhoami(env), newToken(env), newAccount(env),
		newHubs(env), newCheck(env), newBackup(env),
	}
}

// client is what a command that speaks to a hub works with: the world, the
// flags that all such commands share, and the hub once it is dialled.
type client struct {
	env     world.Env
	output  string
	context string
	hub     *remote.Hub
	// grid says by which way the hub was found: each has a last job of its own.
	grid string
}

// command finishes a command: shared flags, strict arguments, bad input marked
// as such.
func (c *client) command(cmd *cobra.Command) *cobra.Command {
	f := cmd.Flags()
	f.StringVarP(&c.output, "format", "o", "table", "print `table`, json or name")
	f.StringVar(&c.context, "context", "", "use the context of this `name` (see offpeak context ls)")
	strict(cmd)
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !slices.Contains([]string{"table", "json", "name"}, c.output) {
			return world.Refuse(&offpeak.FieldError{Field: "--format", Value: c.output, Rule: "is table, json or name"})
		}
		return run(cmd, args)
	}
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"table", "json", "name"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("context", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		contexts, _ := remote.LoadContexts(c.contextsPath())
		var names []string
		for _, t := range contexts.Contexts {
			names = append(names, t.Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	})
	return cmd
}

// strict marks wrong flags and arguments of a command as bad input.
func strict(cmd *cobra.Command) *cobra.Command {
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return world.Refuse(world.FlagError(err)) })
	check := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if check == nil {
			return nil
		}
		if err := check(cmd, args); err != nil {
			return world.Refuse(world.Hint(err, "Read `"+cmd.CommandPath()+" --help`."))
		}
		return nil
	}
	return cmd
}

// configFolder holds what a person has set: $OFFPEAK_HOME, else offpeak in the
// user's configuration folder.
func (c *client) configFolder() string {
	if home := c.env.Getenv("OFFPEAK_HOME"); home != "" {
		return home
	}
	if dir := c.env.Getenv("XDG_CONFIG_HOME"); dir != "" {
		return filepath.Join(dir, "offpeak")
	}
	if dir := c.env.Getenv("APPDATA"); dir != "" {
		return filepath.Join(dir, "offpeak")
	}
	return filepath.Join(c.env.Getenv("HOME"), ".config", "offpeak")
}

func (c *client) contextsPath() string { return filepath.Join(c.configFolder(), "contexts.yaml") }

// lastPath is where the id of the last job is kept that was submitted to a grid, for
// "-". Names of contexts and addresses of hubs are no names of files, so it is called
// by their hash.
func (c *client) lastPath() string {
	sum := sha256.Sum256([]byte(c.grid))
	return filepath.Join(local.Home(c.env.Getenv), "last-jobs", hex.EncodeToString(sum[:8]))
}

// localName names the grid of a hub on this machine, found by its local file.
const localName = "local"

// onThisMachine is by which way that one is found.
const onThisMachine = "the hub on this machine"

// target finds the hub: --context, then the environment, then the context in
// use, then the local file of a hub on this machine.
func (c *client) target() (remote.Target, error) {
	contexts, err := remote.LoadContexts(c.contextsPath())
	if err != nil {
		return remote.Target{}, err
	}
	find := func(name string) (remote.Target, error) {
		if t, ok := contexts.Find(name); ok {
			c.grid = "context " + name
			return t, nil
		}
		return remote.Target{}, world.Refuse(world.Hint(&offpeak.FieldError{Field: "--context", Value: name, Rule: "is not among the contexts"}, "See `offpeak context ls`, or log in: `offpeak login URL --context "+render.Safe(name)+"`."))
	}
	if c.context != "" {
		return find(c.context)
	}
	here, err := local.Read(local.Path(c.env.Getenv))
	found := err == nil
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	nearby := remote.Target{Name: localName, Hubs: here.Hubs, Token: here.Token, Fingerprint: here.Fingerprint}
	if hubs := c.env.Getenv("OFFPEAK_HUB"); hubs != "" {
		c.grid = "hub " + hubs
		t := remote.Target{Name: "environment", Hubs: strings.Split(hubs, ","), Token: c.env.Getenv("OFFPEAK_TOKEN"), Fingerprint: c.env.Getenv("OFFPEAK_FINGERPRINT")}
		if t.Token == "" {
			// An address alone takes the token that is known for it.
			for i, known := range append(slices.Clone(contexts.Contexts), nearby) {
				if slices.ContainsFunc(t.Hubs, func(h string) bool { return slices.Contains(known.Hubs, h) }) {
					t.Token, t.Fingerprint, c.grid = known.Token, known.Fingerprint, "context "+known.Name
					if i == len(contexts.Contexts) {
						c.grid = onThisMachine
					}
				}
			}
		}
		return t, nil
	}
	token := c.env.Getenv("OFFPEAK_TOKEN")
	var t remote.Target
	switch {
	case contexts.Current != "":
		if t, err = find(contexts.Current); err != nil {
			return t, err
		}
	case found:
		t, c.grid = nearby, onThisMachine
	case err != nil:
		return t, err
	default:
		return t, world.Hint(errors.New("not logged in, and no hub runs on this machine"), "Log in with `offpeak login URL`, or start a hub with `offpeak hub`.")
	}
	if token != "" {
		t.Token = token
	}
	return t, nil
}

// dial finds the hub; it makes no call.
func (c *client) dial() error {
	if c.hub != nil {
		return nil
	}
	t, err := c.target()
	if err != nil {
		return err
	}
	c.hub, err = remote.New(remote.Config{Target: t, Renew: c.renew(t), Agent: "offpeak/" + world.NewBuild(c.env).Version, Note: c.note})
	if errors.Is(err, offpeak.ErrInvalid) {
		return world.Refuse(err)
	}
	return err
}

// renew reads the local file again where the target came from it: a hub that
// starts writes a new token there, before it says where it listens.
func (c *client) renew(t remote.Target) func() string {
	if t.Name != localName || c.env.Getenv("OFFPEAK_TOKEN") != "" {
		return nil
	}
	return func() string {
		l, err := local.Read(local.Path(c.env.Getenv))
		if err != nil || !slices.Equal(l.Hubs, t.Hubs) {
			return ""
		}
		return l.Token
	}
}

// desk moves files.
func (c *client) desk() transfer.Desk {
	return transfer.Desk{Hub: c.hub, Note: c.note, Stderr: c.env.Stderr}
}

// follower follows a job.
func (c *client) follower(job offpeak.JobID, quiet, raw bool) *follow.Follower {
	return follow.New(follow.Config{Env: c.env, Hub: c.hub, Note: c.note, Job: job, Quiet: quiet, Raw: raw})
}

// note shows a line to the person who waits.
func (c *client) note(line string) { fmt.Fprintln(c.env.Stderr, "offpeak: "+render.Safe(line)) }

// print shows a value as the person wants it: as a table, as the API's JSON, or
// the ids alone.
func (c *client) print(value any, ids []string, show func(t *render.Table)) error {
	switch c.output {
	case "json":
		enc := json.NewEncoder(c.env.Stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(value)
	case "name":
		for _, id := range ids {
			if _, err := fmt.Fprintln(c.env.Stdout, render.Safe(id)); err != nil {
				return err
			}
		}
		return nil
	}
	t := render.NewTable(c.env.Stdout)
	show(t)
	return t.Flush()
}

// ids collects the ids of a list.
func ids[T any, S ~string](items []T, id func(T) S) []string {
	out := make([]string, len(items))
	for i := range items {
		out[i] = string(id(items[i]))
	}
	return out
}

// pages walks over the pages of a list until limit items are there; 0 is all.
func pages[T any](ctx context.Context, c *client, q url.Values, limit int, get func(context.Context, *wire.Direct, url.Values) (wire.List[T], error)) (wire.List[T], error) {
	all := wire.List[T]{Items: []T{}}
	for {
		q.Set("limit", "500")
		if limit > 0 {
			q.Set("limit", strconv.Itoa(min(500, limit-len(all.Items))))
		}
		page, err := remote.Ask(ctx, c.hub, remote.Reading, func(ctx context.Context, d *wire.Direct) (wire.List[T], error) { return get(ctx, d, q) })
		if err != nil {
			return all, err
		}
		all.Items, all.Next = append(all.Items, page.Items...), page.Next
		if page.Next == "" || (limit > 0 && len(all.Items) >= limit) {
			return all, nil
		}
		q.Set("cursor", page.Next)
	}
}

// jobHelp says in help texts how a job may be named.
const jobHelp = `JOB is a job's id, the end (or beginning) of an id that fits one job only,
or - for the job you submitted last in this context. GROUP/INDEX is a member of an array.`

// groupHelp says so of commands that take arrays too.
const groupHelp = jobHelp + `
GROUP is an array's id, or - for the array you submitted last in this context; -/7 is
its member 7.`

// job finds the job that a person named.
func (c *client) job(ctx context.Context, ref string) (offpeak.JobID, error) {
	id, group, err := c.jobOrGroup(ctx, ref)
	if err == nil && group != "" {
		err = world.Refuse(world.Hint(&offpeak.FieldError{Field: "JOB", Value: ref, Rule: "is one job, and this is an array"}, "Name a member: "+string(group)+"/INDEX."))
	}
	return id, err
}

// jobOrGroup finds the job, or the array, that a person named.
func (c *client) jobOrGroup(ctx context.Context, ref string) (offpeak.JobID, offpeak.GroupID, error) {
	whole, index, isMember := strings.Cut(ref, "/")
	if whole == "-" {
		data, err := os.ReadFile(c.lastPath())
		if err != nil {
			return "", "", world.Refuse(world.Hint(fmt.Errorf("no job was submitted from here to %s yet", render.Safe(c.grid)), "Name a job by its id; see `offpeak ps --all`."))
		}
		whole = strings.TrimSpace(string(data))
	}
	group := offpeak.GroupID(whole)
	switch {
	case group.Valid() && !isMember:
		return "", group, nil
	case group.Valid():
		x, err := offpeak.ParseIndexes(index)
		if err != nil || x.Len() != 1 {
			return "", "", world.Refuse(&offpeak.FieldError{Field: "JOB", Value: ref, Rule: "names a member by its index: GROUP/7"})
		}
		return group.Member(x[0].First), "", nil
	case ref == "-":
		return offpeak.JobID(whole), "", nil
	case isMember:
		return "", "", world.Refuse(&offpeak.FieldError{Field: "JOB", Value: ref, Rule: "has an array's id before /"})
	}
	id, err := c.anyJob(ctx, whole)
	return id, "", err
}

func (c *client) anyJob(ctx context.Context, ref string) (offpeak.JobID, error) {
	if len(ref) == len("job_")+26 && strings.HasPrefix(ref, "job_") {
		return offpeak.JobID(ref), nil
	}
	jobs, err := pages(ctx, c, url.Values{}, 0, func(ctx context.Context, d *wire.Direct, q url.Values) (wire.List[offpeak.Job], error) {
		return d.Jobs(ctx, q)
	})
	if err != nil {
		return "", err
	}
	found, err := pick("JOB", ref, ids(jobs.Items, func(j offpeak.Job) offpeak.JobID { return j.ID }), nil)
	if err != nil {
		return "", world.Hint(err, "See `offpeak ps --all`.")
	}
	return offpeak.JobID(found), nil
}

// node finds the node that a person named by id, part of an id, or name.
func (c *client) node(ctx context.Context, ref string) (offpeak.NodeID, error) {
	nodes, err := c.nodes(ctx)
	if err != nil {
		return "", err
	}
	names := make([]string, len(nodes.Items))
	for i, n := range nodes.Items {
		names[i] = n.Name
	}
	found, err := pick("NODE", ref, ids(nodes.Items, func(n offpeak.Node) offpeak.NodeID { return n.ID }), names)
	if err != nil {
		return "", world.Hint(err, "See `offpeak nodes`.")
	}
	return offpeak.NodeID(found), nil
}

func (c *client) nodes(ctx context.Context) (wire.List[offpeak.Node], error) {
	return pages(ctx, c, url.Values{}, 0, func(ctx context.Context, d *wire.Direct, q url.Values) (wire.List[offpeak.Node], error) {
		return d.Nodes(ctx, q)
	})
}

// pick returns the one id that ref names: the whole id, else a name, else the
// end or beginning of an id. A ref that fits two is refused with both.
func pick(what, ref string, ids, names []string) (string, error) {
	if slices.Contains(ids, ref) {
		return ref, nil
	}
	var fit []string
	for i, name := range names {
		if name == ref {
			fit = append(fit, ids[i])
		}
	}
	if len(fit) == 0 && ref != "" {
		for _, id := range ids {
			if strings.HasSuffix(id, ref) || strings.HasPrefix(id, ref) {
				fit = append(fit, id)
			}
		}
	}
	switch {
	case len(fit) == 1:
		return fit[0], nil
	case len(fit) > 1:
		return "", world.Refuse(&offpeak.FieldError{Field: what, Value: ref, Rule: fmt.Sprintf("fits %d of them, among them %s and %s", len(fit), fit[0], fit[1])})
	}
	return "", fmt.Errorf("%s %q: %w", what, render.Safe(ref), offpeak.ErrNotFound)
}

// completeJobs completes ids of jobs in any of states, all if there are none.
func (c *client) completeJobs(states ...offpeak.JobState) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		q := url.Values{"limit": {"50"}}
		for _, s := range states {
			q.Add("state", string(s))
		}
		if c.dial() != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		jobs, _ := remote.Ask(cmd.Context(), c.hub, remote.Patience(1), func(ctx context.Context, d *wire.Direct) (wire.List[offpeak.Job], error) { return d.Jobs(ctx, q) })
		var out []string
		for _, j := range jobs.Items {
			out = append(out, completion(string(j.ID), string(j.State), j.Spec.Name))
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeWork completes ids of arrays and jobs in any of states, all if there are
// none: of an array its id, not those of its members.
func (c *client) completeWork(states ...offpeak.JobState) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		q := url.Values{"limit": {"50"}}
		for _, s := range states {
			q.Add("state", string(s))
		}
		if c.dial() != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		groups, _ := remote.Ask(cmd.Context(), c.hub, remote.Patience(1), func(ctx context.Context, d *wire.Direct) (wire.List[offpeak.Group], error) { return d.Groups(ctx, q) })
		var out []string
		for _, g := range groups.Items {
			out = append(out, completion(string(g.ID), string(g.State), g.Spec.Name))
		}
		q.Set("group", "none")
		jobs, _ := remote.Ask(cmd.Context(), c.hub, remote.Patience(1), func(ctx context.Context, d *wire.Direct) (wire.List[offpeak.Job], error) { return d.Jobs(ctx, q) })
		for _, j := range jobs.Items {
			out = append(out, completion(string(j.ID), string(j.State), j.Spec.Name))
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}

// completion is an id with what a shell shows beside it.
func completion(id, state, name string) string {
	return id + "\t" + render.Safe(strings.TrimSpace(state+" "+name))
}

// completePipelines completes ids of the pipelines that have steps among the newest
// jobs and arrays: the hub keeps no list of them.
func (c *client) completePipelines(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	if c.dial() != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out, seen []string
	add := func(id string, state offpeak.JobState, step string) {
		if strings.HasPrefix(id, "pipe_") && !slices.Contains(seen, id) {
			seen = append(seen, id)
			out = append(out, completion(id, "step "+step+" "+string(state), ""))
		}
	}
	jobs, _ := remote.Ask(cmd.Context(), c.hub, remote.Patience(1), func(ctx context.Context, d *wire.Direct) (wire.List[offpeak.Job], error) {
		return d.Jobs(ctx, url.Values{"limit": {"200"}})
	})
	for _, j := range jobs.Items {
		add(j.Group, j.State, j.Spec.Name)
	}
	groups, _ := remote.Ask(cmd.Context(), c.hub, remote.Patience(1), func(ctx context.Context, d *wire.Direct) (wire.List[offpeak.Group], error) {
		return d.Groups(ctx, url.Values{"limit": {"50"}})
	})
	for _, g := range groups.Items {
		add(g.Pipeline, g.State, g.Spec.Name)
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

func (c *client) completeNodes(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	if c.dial() != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	nodes, _ := remote.Ask(cmd.Context(), c.hub, remote.Patience(1), func(ctx context.Context, d *wire.Direct) (wire.List[offpeak.Node], error) {
		return d.Nodes(ctx, url.Values{"limit": {"50"}})
	})
	var out []string
	for _, n := range nodes.Items {
		out = append(out, string(n.ID)+"\t"+render.Safe(n.Name))
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// remember keeps the id of the last job or array submitted to the grid, for "-".
func (c *client) remember(id string) {
	if err := remote.WritePrivate(c.lastPath(), []byte(id+"\n")); err != nil && !errors.Is(err, os.ErrPermission) {
		c.note("can't remember the job for -: " + err.Error())
	}
}
