package machine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/agent"
	"offpeak/agent/egress"
	"offpeak/agent/presence"
	"offpeak/cmd/offpeak/cli/machine/page"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
)

// Obey gives an order to the agent of a data folder, or keeps it for the next one.
type Obey func(ctx context.Context, data string, order agent.Order, lasting time.Duration) (agent.Status, error)

// every is how often a status that is watched is shown anew.
const every = time.Second

// NewStatus makes the command that says how the agent fares.
func NewStatus(env world.Env, data *string, obey Obey) *cobra.Command {
	var as format
	var watch, web bool
	var port int
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say how this machine's agent fares",
		Long: `Status asks the agent that runs here, or says what is known of the node while none
does: what runs and for whom, or why nothing does, what the machine brought, how its
GPUs fare, and how the last jobs ended. It works while no hub can be reached; then
earnings are as old as it says.

With --web it shows the same on a page of its own, with a button to pause, for as
long as the command runs. The page is served to this machine alone, and the link
that is printed opens it once.`,
		Example: `  offpeak agent status --watch
  offpeak agent status --web
  offpeak agent status -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch err := as.check(); {
			case err != nil:
				return err
			case web && watch:
				return world.BadInput("--web and --watch: one of the two")
			case web && as == "json":
				return world.BadInput("--web: a page is not printed; leave -o json out")
			case !web && cmd.Flags().Changed("port"):
				return world.BadInput("--port: is that of the page; add --web")
			case port < 0 || port > 65535:
				return world.BadInput("--port: %d: is from 1 to 65535, or 0 for any that is free", port)
			}
			ctx, restore := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer restore()
			if web {
				return serve(ctx, env, *data, port, obey)
			}
			return watched(ctx, env, as, watch, func() (agent.Status, error) { return patient(ctx, *data, watch) })
		},
	}
	as.flag(cmd)
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show it anew every second, until interrupted")
	cmd.Flags().BoolVar(&web, "web", false, "show it on a page on this machine's loopback, until interrupted")
	cmd.Flags().IntVar(&port, "port", 0, "`port` of the page (default any that is free)")
	return cmd
}

// read asks the agent, or the data folder while none runs.
func read(ctx context.Context, data string) (agent.Status, error) {
	st, err := agent.Tell(ctx, data, agent.OrderStatus, 0)
	if errors.Is(err, agent.ErrNotRunning) {
		if st, err = agent.Offline(data); errors.Is(err, agent.ErrNotEnrolled) || errors.Is(err, agent.ErrIdentityLost) {
			err = nil
		}
	}
	return st, err
}

// patient reads a status that is looked at once: the hub, which is asked for earnings
// by the first look, gets a moment to answer. Who watches sees it come.
func patient(ctx context.Context, data string, watch bool) (agent.Status, error) {
	const moments, moment = 10, 50 * time.Millisecond
	st, err := read(ctx, data)
	for range moments {
		e := st.Earnings
		if err != nil || watch || !st.Connected || e == nil || e.Earnings != nil || e.Problem != "" {
			break
		}
		select {
		case <-time.After(moment):
		case <-ctx.Done():
			return st, ctx.Err()
		}
		st, err = read(ctx, data)
	}
	return st, err
}

// watched shows a status, again and again if it is watched.
func watched(ctx context.Context, env world.Env, as format, again bool, read func() (agent.Status, error)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		st, err := read()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case again && as == "json":
			// One status a line.
			if err := json.NewEncoder(env.Stdout).Encode(st); err != nil {
				return err
			}
		default:
			var text bytes.Buffer
			if again && world.Terminal(env.Stdout) {
				text.WriteString("\x1b[H\x1b[2J")
			}
			to := env
			to.Stdout = &text
			if err := ShowStatus(to, string(as), st); err != nil {
				return err
			}
			if again && !world.Terminal(env.Stdout) {
				text.WriteString("\n")
			}
			// In one piece: a screen that is written row by row flickers.
			if _, err := env.Stdout.Write(text.Bytes()); err != nil {
				return err
			}
		}
		if !again {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// serve shows the page until ctx is done.
func serve(ctx context.Context, env world.Env, data string, port int, obey Obey) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil && port == 0 {
		// A machine that has IPv6 alone.
		l, err = (&net.ListenConfig{}).Listen(ctx, "tcp", "[::1]:0")
	}
	if err != nil {
		return world.Hint(fmt.Errorf("open the page's port: %w", err), "choose another with --port, or leave it out for one that is free")
	}
	defer l.Close()
	order := func(o agent.Order) func(context.Context, time.Duration) error {
		return func(ctx context.Context, lasting time.Duration) error {
			_, err := obey(ctx, data, o, lasting)
			return err
		}
	}
	p, err := page.New(page.World{
		View: func(ctx context.Context) (page.View, error) {
			st, err := read(ctx, data)
			return view(st, time.Now()), err
		},
		Pause:  order(agent.OrderPause),
		Resume: func(ctx context.Context) error { return order(agent.OrderResume)(ctx, 0) },
		Now:    time.Now,
	}, l.Addr())
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(env.Stdout, "Open this link in a browser on this machine; it works once:\n\n  %s\n\nThe page is there until you end this command with Ctrl-C.\n", p.Link()); err != nil {
		return err
	}
	return p.Serve(ctx, l)
}

// ShowStatus prints what an agent says of itself, as a table or as json.
func ShowStatus(env world.Env, as string, st agent.Status) error {
	if as == "json" {
		return printJSON(env.Stdout, st)
	}
	t := tabwriter.NewWriter(env.Stdout, 0, 8, 2, ' ', 0)
	row := func(name, text string) { fmt.Fprintf(t, "%s\t%s\n", name, render.Safe(text)) }
	rows := func(name string, texts []string) {
		for _, text := range texts {
			row(name, text)
			name = ""
		}
	}
	v := view(st, time.Now())
	if st.Running {
		row("Agent", fmt.Sprintf("running, pid %d, version %s", st.PID, st.Version))
	} else {
		row("Agent", "not running")
	}
	if st.Node != "" {
		row("Node", fmt.Sprintf("%q (%s)", st.Name, st.Node))
		row("Hub", strings.Join(st.Hubs, ", ")+connection(st))
	}
	if state := stateText(st); state != "" {
		row("State", state)
	}
	if st.Problem != "" {
		row("Problem", strings.ReplaceAll(st.Problem, "\n", "; "))
	}
	if st.PolicyProblem != "" {
		row("Rules", st.PolicyProblem)
	}
	rows("Rules", shownRules(st))
	var jobs, ended, devices []string
	for i, l := range st.Leases {
		text := leaseText(l)
		if j := v.Jobs[i]; j.Since != "" {
			text += fmt.Sprintf(", for %s since %s", j.For, j.Since)
		}
		jobs = append(jobs, text)
		for _, r := range l.Reached {
			jobs = append(jobs, "  "+reachedText(r))
		}
	}
	for _, d := range v.Devices {
		text := fmt.Sprintf("%s: %s, in use %s, %s of %s offered, %s held by others", d.Name, d.Temperature, d.Use, d.Offered, d.Memory, d.Foreign)
		for _, more := range []string{d.Power, d.Throttled} {
			if more != "" {
				text += ", " + more
			}
		}
		devices = append(devices, text)
	}
	for _, e := range v.Ended {
		ended = append(ended, fmt.Sprintf("%s %s, ran %s, for %s: %s", e.When, e.Title, e.Ran, e.For, e.End))
	}
	rows("Jobs", jobs)
	if len(jobs) == 0 && st.Running {
		row("Jobs", "none")
	}
	if st.Network != "" {
		row("Network", "jobs may reach "+st.Network)
	}
	rows("GPUs", devices)
	if st.Running {
		rows("Warnings", st.DeviceWarnings)
		earned := v.Earnings.Note
		if v.Earnings.Known {
			earned = fmt.Sprintf("%s today, %s in 7 days, %s in all (%s)", v.Earnings.Today, v.Earnings.Week, v.Earnings.Total, v.Earnings.Note)
		}
		row("Earnings", earned)
		row("Yields", v.Yield)
	}
	if len(v.Blocked) > 0 {
		row("Turns away", strings.Join(v.Blocked, ", "))
	}
	rows("Last jobs", ended)
	var reached []string
	for _, e := range st.Egress {
		reached = append(reached, "by "+string(e.Job)+", which has ended:")
		for _, r := range e.Reached {
			reached = append(reached, "  "+reachedText(r))
		}
	}
	rows("Reached", reached)
	return t.Flush()
}

func connection(st agent.Status) string {
	switch {
	case !st.Running:
		return ""
	case st.Connected:
		return ", connected"
	case st.Heard.IsZero():
		return ", not connected yet"
	}
	return ", not connected since " + st.Heard.Format(time.DateTime)
}

func stateText(st agent.Status) string {
	switch {
	case st.Conflict:
		return "held: another agent uses this node's identity; stop one of the two, remove its data folder and join it again"
	case st.Draining:
		return "draining: takes no new work, pauses once its jobs have ended"
	case st.Why == offpeak.EndPaused && !st.Until.IsZero():
		return "paused until " + st.Until.Local().Format(time.DateTime)
	case st.Why == offpeak.EndPaused:
		return "paused: takes no work before `offpeak agent resume`"
	case st.Why != "":
		text := "in use: " + words(st.Why)
		if v := st.Presence; v != nil && v.Why == st.Why {
			text += ": " + v.Detail + until(v.Until)
		}
		return text
	case st.Presence != nil && st.Presence.Allow == presence.AllowCPU:
		v := st.Presence
		return "available to jobs without a GPU: " + words(v.Why) + ": " + v.Detail + until(v.Until)
	}
	return string(st.Availability)
}

func leaseText(l agent.LeaseStatus) string {
	text := fmt.Sprintf("%s attempt %d, %s, ran %s", l.Job, l.Attempt, l.Phase, (time.Duration(l.Ran) * time.Millisecond).Round(time.Second))
	if l.Frozen {
		text += ", frozen"
	}
	if l.Stop != "" {
		text += ", asked to go: " + words(l.Stop)
	}
	return text
}

// reachedText says what a job did with one destination.
func reachedText(r egress.Reached) string {
	text := fmt.Sprintf("%s: %d connections, sent %s, received %s", r.Host, r.Connections, r.Sent, r.Received)
	if r.Refused > 0 {
		text += fmt.Sprintf(", refused %d times: %s", r.Refused, r.Why)
	}
	return text
}

func words(reason offpeak.EndReason) string { return strings.ReplaceAll(string(reason), "_", " ") }

// until says when something ends by itself: the time alone where it is today's.
func until(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	layout := "Mon 15:04"
	if left := time.Until(at); left < time.Hour {
		return ", until " + at.Local().Format("15:04:05")
	} else if left > 6*24*time.Hour {
		layout = "2006-01-02 15:04"
	}
	return ", until " + at.Local().Format(layout)
}

// shownRules is a line for each of the owner's rules: what was seen, what it allows,
// until when, and what counts where nothing could be seen.
func shownRules(st agent.Status) (out []string) {
	if st.Presence == nil {
		return nil
	}
	for _, r := range st.Presence.Rules {
		text := r.Name + ": " + r.Seen
		switch r.Allow {
		case presence.AllowNone:
			text += ", so no job runs"
		case presence.AllowCPU:
			text += ", so no job runs on a GPU"
		}
		text += until(r.Until)
		for _, u := range st.Presence.Unknown {
			if why, ok := strings.CutPrefix(u, r.Name+": "); ok {
				text += " (unknown: " + why + ")"
			}
		}
		out = append(out, text)
	}
	return out
}
