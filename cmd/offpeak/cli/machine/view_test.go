package machine

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"offpeak"
	"offpeak/agent"
	"offpeak/agent/books"
	"offpeak/agent/presence"
	"offpeak/cmd/offpeak/cli/machine/page"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

// now is when the views of these tests are looked at.
func now() time.Time { return time.Now() }

// What the machine does is said in one line, and why not in another.
func TestHeadlines(t *testing.T) {
	runs := agent.Status{Running: true, Connected: true, Node: "node_1"}
	with := func(change func(*agent.Status)) agent.Status {
		st := runs
		change(&st)
		return st
	}
	for name, c := range map[string]struct {
		st           agent.Status
		state        string
		line, detail string
	}{
		"in no grid":       {agent.Status{}, page.Stopped, "This machine is in no grid", "agent join"},
		"no agent":         {agent.Status{Node: "n"}, page.Stopped, "No agent runs: nothing works here", "Start it"},
		"no agent, paused": {agent.Status{Node: "n", Why: offpeak.EndPaused}, page.Stopped, "No agent runs, and the next one begins paused", "resume"},
		"ready":            {runs, page.Waiting, "Ready: waits for a job", ""},
		"no hub":           {with(func(s *agent.Status) { s.Connected = false }), page.Waiting, "Ready, but its hub can't be reached", "goes on by itself"},
		"works":            {with(func(s *agent.Status) { s.Leases = make([]agent.LeaseStatus, 1) }), page.Working, "Works on a job", ""},
		"works on two":     {with(func(s *agent.Status) { s.Leases = make([]agent.LeaseStatus, 2) }), page.Working, "Works on 2 jobs", ""},
		"paused":           {with(func(s *agent.Status) { s.Why = offpeak.EndPaused }), page.Resting, "Paused until you resume", ""},
		"on the way out":   {with(func(s *agent.Status) { s.Why, s.Leases = offpeak.EndPaused, make([]agent.LeaseStatus, 1) }), page.Resting, "Paused until you resume", "save their state"},
		"paused for":       {with(func(s *agent.Status) { s.Why, s.Until = offpeak.EndPaused, now().Add(time.Minute) }), page.Resting, "Paused, until ", ""},
		"drains":           {with(func(s *agent.Status) { s.Draining, s.Why = true, offpeak.EndDrained }), page.Waiting, "draining: takes no new work", ""},
		"a clone":          {with(func(s *agent.Status) { s.Conflict = true }), page.Waiting, "held: another agent", ""},
		"the owner is there": {with(func(s *agent.Status) {
			s.Why = offpeak.EndOwnerReturned
			s.Presence = &presence.Verdict{Allow: presence.AllowNone, Why: offpeak.EndOwnerReturned, Detail: "touched 3s ago"}
		}), page.Resting, "Not working: owner returned", "touched 3s ago"},
		"disk full": {with(func(s *agent.Status) { s.Why = offpeak.EndNodeDiskFull }), page.Resting, "Not working: node disk full", ""},
		"without GPU": {with(func(s *agent.Status) {
			s.Presence = &presence.Verdict{Allow: presence.AllowCPU, Why: offpeak.EndHot, Detail: "RTX has 90 °C"}
		}), page.Waiting, "Ready for jobs without a GPU", "RTX has 90 °C"},
	} {
		v := view(c.st, now())
		if v.State != c.state || !strings.HasPrefix(v.Headline, c.line) || !strings.Contains(v.Detail, c.detail) || c.detail == "" && v.Detail != "" {
			t.Errorf("%s: %s, %q, %q", name, v.State, v.Headline, v.Detail)
		}
	}
}

// The terminal shows what is known, says what is not, and lets no job's name rule it.
func TestShowStatus(t *testing.T) {
	heat, use, used := 61.0, 97.0, 2*offpeak.GiB
	full := agent.Status{
		Running: true, PID: 7, Version: "v1", Connected: true, Node: "node_1", Name: "attic", Hubs: []string{"https://hub"},
		Leases:   []agent.LeaseStatus{{Job: "job_1", Attempt: 2, Phase: "running", Ran: 61_000, Account: "acct_them", Class: "verified", Since: now().Add(-time.Minute)}},
		Devices:  []books.Device{{Model: "RTX", Total: 24 * offpeak.GiB, Offered: 22 * offpeak.GiB, Used: &used, Foreign: offpeak.GiB, Temperature: &heat, Use: &use, Throttled: []string{"power_cap"}}, {Model: "Arc", Total: offpeak.GiB, Offered: offpeak.GiB}},
		Earnings: &books.Earnings{Earnings: &wire.Earnings{Today: offpeak.Credit, Week: 2 * offpeak.Credit, Total: 3 * offpeak.Credit}, Heard: now().Add(-90 * time.Second), Problem: "no answer"},
		Yields:   &books.Yields{Count: 3, P50: 123, P99: 4000},
		Ended:    []books.Ended{{Job: "job_0", Name: "\x1b]0;owned\a", Account: "acct_me", Class: books.ClassSelf, At: now(), Ran: 5000, Reason: offpeak.EndOwnerReturned, Detail: "key"}},
		Blocked:  []offpeak.AccountID{"acct_rude"},
	}
	show := func(st agent.Status) string {
		var out bytes.Buffer
		if err := ShowStatus(world.Env{Stdout: &out}, "table", st); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	text := show(full)
	for _, want := range []string{
		"ran 1m1s, for account acct_them (verified) since ", "RTX: 61 °C, in use 97 %, 22GiB of 24GiB offered, 1GiB held by others, slowed down by power cap",
		"Arc: not known, in use not known, 1GiB of 1GiB offered, not known held by others", "1.00 today, 2.00 in 7 days, 3.00 in all (as the hub said 1m30s ago; since then no answer)",
		"half within 120ms, 99 of 100 within 4s (3 times)", "acct_rude", "for your own account: The owner came back to the machine. (key)",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the status lacks %q:\n%s", want, text)
		}
	}
	if strings.ContainsAny(text, "\x1b\a") {
		t.Errorf("a job's name rules the terminal: %q", text)
	}
	for want, e := range map[string]*books.Earnings{"asking the hub": {}, "not known: no answer": {Problem: "no answer"}, "not known while no agent runs": nil} {
		st := full
		st.Earnings = e
		if text := show(st); !strings.Contains(text, want) {
			t.Errorf("with %+v it says %s", e, text)
		}
	}
}
