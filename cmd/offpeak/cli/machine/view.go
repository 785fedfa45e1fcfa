package machine

import (
	"fmt"
	"strings"
	"time"

	"offpeak"
	"offpeak/agent"
	"offpeak/agent/books"
	"offpeak/agent/presence"
	"offpeak/cmd/offpeak/cli/machine/page"
	"offpeak/cmd/offpeak/cli/render"
)

// view puts a status into words, for the terminal and for the page.
func view(st agent.Status, now time.Time) page.View {
	v := page.View{
		Name: render.Safe(st.Name), Node: string(st.Node), Version: st.Version, Running: st.Running,
		Jobs: []page.Job{}, Rules: []page.Rule{}, Devices: []page.Device{}, Ended: []page.Ended{}, Blocked: []string{}, Problems: []string{},
	}
	v.Paused = st.Why == offpeak.EndPaused
	v.Draining = st.Draining
	v.State, v.Headline, v.Detail = headline(st)
	if len(st.Hubs) > 0 {
		v.Hub = strings.Join(st.Hubs, ", ") + connection(st)
	}
	for _, l := range st.Leases {
		v.Jobs = append(v.Jobs, page.Job{ID: string(l.Job), Title: title(l.Name, l.Job), For: whose(l.Account, l.Class), Text: leaseText(l), Since: since(l.Since, now)})
	}
	if p := st.Presence; p != nil {
		for _, r := range p.Rules {
			shown := page.Rule{Name: r.Name, Seen: render.Safe(r.Seen), Effect: effect(r), Forbids: r.Allow != presence.AllowAll}
			for _, u := range p.Unknown {
				if why, ok := strings.CutPrefix(u, r.Name+": "); ok {
					shown.Unknown = render.Safe(why)
				}
			}
			v.Rules = append(v.Rules, shown)
		}
	}
	v.Earnings = earned(st, now)
	for _, d := range st.Devices {
		v.Devices = append(v.Devices, device(d))
	}
	v.Yield = yields(st)
	for _, e := range st.Ended {
		v.Ended = append(v.Ended, page.Ended{
			When: e.At.Local().Format("Mon 15:04"), Title: title(e.Name, e.Job), ID: string(e.Job), For: whose(e.Account, e.Class),
			Ran: render.Span(time.Duration(e.Ran) * time.Millisecond), End: endText(e),
		})
	}
	for _, id := range st.Blocked {
		v.Blocked = append(v.Blocked, render.Safe(string(id)))
	}
	for _, text := range append([]string{st.Problem, st.PolicyProblem}, st.DeviceWarnings...) {
		if text != "" {
			v.Problems = append(v.Problems, render.Safe(strings.ReplaceAll(text, "\n", "; ")))
		}
	}
	return v
}

// headline is the machine's state as one word for colours, a line and a reason.
func headline(st agent.Status) (state, line, detail string) {
	switch {
	case !st.Running && st.Why == offpeak.EndPaused:
		return page.Stopped, "No agent runs, and the next one begins paused", "Start it with `offpeak agent`, and resume."
	case !st.Running && st.Node == "":
		return page.Stopped, "This machine is in no grid", "Join one with `offpeak agent join TOKEN`."
	case !st.Running:
		return page.Stopped, "No agent runs: nothing works here", "Start it with `offpeak agent`."
	case st.Why == offpeak.EndPaused && !st.Until.IsZero():
		return page.Resting, "Paused" + until(st.Until), leaving(st)
	case st.Why == offpeak.EndPaused:
		return page.Resting, "Paused until you resume", leaving(st)
	case st.Conflict || st.Draining:
		return page.Waiting, stateText(st), ""
	case st.Why != "":
		detail := ""
		if p := st.Presence; p != nil && p.Why == st.Why {
			detail = p.Detail + until(p.Until)
		}
		return page.Resting, "Not working: " + words(st.Why), render.Safe(detail)
	case len(st.Leases) == 1:
		return page.Working, "Works on a job", ""
	case len(st.Leases) > 1:
		return page.Working, fmt.Sprintf("Works on %d jobs", len(st.Leases)), ""
	case !st.Connected:
		return page.Waiting, "Ready, but its hub can't be reached", "It looks for the hub and goes on by itself."
	case st.Presence != nil && st.Presence.Allow == presence.AllowCPU:
		return page.Waiting, "Ready for jobs without a GPU", render.Safe(words(st.Presence.Why) + ": " + st.Presence.Detail + until(st.Presence.Until))
	}
	return page.Waiting, "Ready: waits for a job", ""
}

// leaving says that jobs are still on their way out.
func leaving(st agent.Status) string {
	if n := len(st.Leases); n > 0 {
		return fmt.Sprintf("%d on the way out: jobs save their state first.", n)
	}
	return ""
}

func title(name string, job offpeak.JobID) string {
	if name == "" {
		return string(job)
	}
	return render.Safe(name)
}

// whose says for whom a job runs.
func whose(account offpeak.AccountID, class string) string {
	switch {
	case account == "":
		return "not known"
	case class == books.ClassSelf:
		return "your own account"
	case class == "" || class == books.ClassOther:
		return "account " + render.Safe(string(account))
	}
	return fmt.Sprintf("account %s (%s)", render.Safe(string(account)), class)
}

func since(at, now time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.Local().Format("15:04") + ", " + render.Ago(now, &at)
}

func effect(r presence.Rule) string {
	text := "nothing in the way"
	switch r.Allow {
	case presence.AllowNone:
		text = "no job runs"
	case presence.AllowCPU:
		text = "no job runs on a GPU"
	}
	return text + until(r.Until)
}

// earned says what the node brought, and how old that is.
func earned(st agent.Status, now time.Time) page.Earnings {
	e := st.Earnings
	switch {
	case e == nil:
		return page.Earnings{Note: "not known while no agent runs"}
	case e.Earnings == nil && e.Problem == "":
		return page.Earnings{Note: "asking the hub"}
	case e.Earnings == nil:
		return page.Earnings{Note: "not known: " + render.Safe(e.Problem)}
	}
	out := page.Earnings{Known: true, Today: e.Today.String(), Week: e.Week.String(), Total: e.Total.String(), Note: "as the hub said " + render.Ago(now, &e.Heard)}
	if e.Problem != "" {
		out.Note += "; since then no answer"
	}
	return out
}

func device(d books.Device) page.Device {
	out := page.Device{Name: render.Safe(d.Model), ID: string(d.ID), Temperature: "not known", Use: "not known", Memory: d.Total.String(), Offered: d.Offered.String(), Foreign: d.Foreign.String()}
	if d.Temperature != nil {
		out.Temperature = fmt.Sprintf("%.0f °C", *d.Temperature)
	}
	if d.Use != nil {
		out.Use = fmt.Sprintf("%.0f %%", *d.Use)
	}
	if d.Used == nil {
		out.Foreign = "not known"
	}
	if d.Power != nil {
		out.Power = fmt.Sprintf("%.0f W", *d.Power)
	}
	if len(d.Throttled) > 0 {
		out.Throttled = "slowed down by " + strings.ReplaceAll(strings.Join(d.Throttled, ", "), "_", " ")
	}
	return out
}

// yields says how soon jobs left when the owner came.
func yields(st agent.Status) string {
	y := st.Yields
	if y == nil || y.Count == 0 {
		return "not measured yet"
	}
	return fmt.Sprintf("half within %s, 99 of 100 within %s (%d times)", short(y.P50), short(y.P99), y.Count)
}

func short(m offpeak.Millis) string {
	return (time.Duration(m) * time.Millisecond).Round(10 * time.Millisecond).String()
}

func endText(e books.Ended) string {
	text := words(e.Reason)
	if end, ok := offpeak.EndOf(e.Reason); ok {
		text = end.Sentence
	}
	if e.Detail != "" {
		text += " (" + render.Safe(e.Detail) + ")"
	}
	return text
}
