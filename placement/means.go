package placement

import "offpeak"

// Means are what a job needs beside a node: of its account, or of its own budget. nil
// is nothing that could lack.
type Means struct {
	// Full says that its account has all the running jobs that its quota allows.
	Full bool
	// GPUs is how many GPUs it may have now, MostGPUs how many ever; negative is any.
	GPUs, MostGPUs int
	// Budget, where it has one, and Balance are what can be held for it.
	Budget  *offpeak.MicroCredits
	Balance offpeak.MicroCredits
	// Need is what is held for it at first where so much is asked.
	Need func(ask offpeak.Price) offpeak.MicroCredits
}

// grace is what is taken to be otherwise than it is now: the nodes' hours, the quota,
// and at least so much money.
type grace struct {
	later, quota    bool
	budget, balance offpeak.MicroCredits
}

func (g grace) and(h grace) grace {
	return grace{g.later || h.later, g.quota || h.quota, max(g.budget, h.budget), max(g.balance, h.balance)}
}

// refused says what keeps a job from an offer that its requirements fit.
func (m *Means) refused(r *offpeak.Requirements, o *offpeak.Offer, g grace) offpeak.FitCode {
	if m == nil {
		return offpeak.FitOK
	}
	n := len(r.GPUs)
	if n > 0 && m.MostGPUs >= 0 && n > m.MostGPUs {
		return offpeak.FitQuota
	}
	if !g.quota && (m.Full || n > 0 && m.GPUs >= 0 && n > m.GPUs) {
		return offpeak.FitQuota
	}
	need := m.Need(o.Ask.For(*r))
	switch {
	case m.Budget != nil && need > max(*m.Budget, g.budget):
		return offpeak.FitBudget
	case need > max(m.Balance, g.balance):
		return offpeak.FitBalance
	}
	return offpeak.FitOK
}

// settled is a grace with no more money than an offer takes.
func (m *Means) settled(g grace, r *offpeak.Requirements, o *offpeak.Offer) grace {
	if g.budget > 0 {
		g.budget = m.Need(o.Ask.For(*r))
	}
	if g.balance > 0 {
		g.balance = m.Need(o.Ask.For(*r))
	}
	return g
}

// levers are what can be changed of means.
func (m *Means) levers() (out []lever) {
	if m == nil {
		return nil
	}
	same := lever{drop: func(*offpeak.Requirements) {}, take: func(_, _ *offpeak.Requirements) {}}
	if m.Full || m.GPUs >= 0 {
		l := same
		l.lifts, l.grace = []offpeak.FitCode{offpeak.FitQuota}, grace{quota: true}
		out = append(out, l)
	}
	if m.Budget != nil {
		l := same
		l.lifts, l.flag, l.grace = []offpeak.FitCode{offpeak.FitBudget}, "--budget", grace{budget: offpeak.MaxAmount}
		l.money = func(g grace) (from, to offpeak.MicroCredits) { return *m.Budget, g.budget }
		out = append(out, l)
	}
	l := same
	l.lifts, l.grace = []offpeak.FitCode{offpeak.FitBalance}, grace{balance: offpeak.MaxAmount}
	l.money = func(g grace) (from, to offpeak.MicroCredits) { return m.Balance, g.balance }
	return append(out, l)
}
