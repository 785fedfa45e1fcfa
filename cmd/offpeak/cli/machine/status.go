package machine

import (
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/agent"
	"offpeak/agent/presence"
	"offpeak/cmd/offpeak/cli/world"
)

// NewStatus makes the command that says how the agent fares.
func NewStatus(env world.Env, data *string) *cobra.Command {
	var as format
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say how this machine's agent fares",
		Long:  `Status asks the agent that runs here, or says what is known of the node while none does.`,
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := as.check(); err != nil {
				return err
			}
			st, err := agent.Tell(cmd.Context(), *data, agent.OrderStatus, 0)
			if errors.Is(err, agent.ErrNotRunning) {
				if st, err = agent.Offline(*data); errors.Is(err, agent.ErrNotEnrolled) || errors.Is(err, agent.ErrIdentityLost) {
					err = nil
				}
			}
			if err != nil {
				return err
			}
			return ShowStatus(env, string(as), st)
		},
	}
	as.flag(cmd)
	return cmd
}

// ShowStatus prints what an agent says of itself, as a table or as json.
func ShowStatus(env world.Env, as string, st agent.Status) error {
	if as == "json" {
		return printJSON(env.Stdout, st)
	}
	t := tabwriter.NewWriter(env.Stdout, 0, 8, 2, ' ', 0)
	row := func(name, text string) { fmt.Fprintf(t, "%s\t%s\n", name, text) }
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
	for i, r := range shownRules(st) {
		name := ""
		if i == 0 {
			name = "Rules"
		}
		row(name, r)
	}
	for i, l := range st.Leases {
		name := ""
		if i == 0 {
			name = "Jobs"
		}
		row(name, leaseText(l))
	}
	if len(st.Leases) == 0 && st.Running {
		row("Jobs", "none")
	}
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
