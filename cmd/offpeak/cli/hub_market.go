package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"

	"github.com/spf13/pflag"

	"offpeak"
	"offpeak/cmd/offpeak/cli/manifest"
	"offpeak/hub/trade"
	"offpeak/ledger"
	"offpeak/market"
	"offpeak/store/sqlstore"
)

// marketOptions are the operator's rules of the market.
type marketOptions struct {
	margin, premium manifest.Percent
	fee             manifest.Part
	step            manifest.Price
	minRun, respite time.Duration
	term, interval  time.Duration
	demandFile      string
	// demand is what the file says, nil for the usual.
	demand []market.Factor
}

// maxTerm bounds the price term: a price that is locked for longer than a month is a
// slip of the pen.
const maxTerm = 30 * 24 * time.Hour

func (m *marketOptions) flags(f *pflag.FlagSet) {
	a, r := market.DefaultAuction(), ledger.DefaultRules()
	m.margin, m.premium, m.step, m.fee = manifest.Percent(a.Margin), manifest.Percent(a.Premium), manifest.Price(a.Step), manifest.Part(r.Fee)
	f.Var(&m.margin, "auction-margin", "by how much of a running job's bid a bid has to be higher to displace it, for example 10%")
	f.Var(&m.step, "auction-step", "what the job that displaces another pays above its bid at least, for example 0.001/h")
	f.DurationVar(&m.minRun, "auction-min-run", a.MinRun.Std(), "how long a job runs before a higher bid can displace it")
	f.DurationVar(&m.respite, "auction-respite", a.Respite.Std(), "how long a job that was displaced is not displaced again")
	f.Var(&m.premium, "non-interruptible-premium", "what a job that no bid displaces pays on top of the ask, for example 25%")
	f.DurationVar(&m.term, "price-term", r.Term, "for how long a job's price is locked: from 1s to 720h, a whole number of paid intervals")
	f.DurationVar(&m.interval, "paid-interval", r.Interval, "how much of a job's time is held for at once: from 1s to the price term")
	f.Var(&m.fee, "fee", "the operator's share of what jobs are charged, for example 2%")
	f.StringVar(&m.demandFile, "demand-factors", "", "JSON `file` of the factors by which suggested asks rise with demand, by region and model")
}

// auction are the rules of bids.
func (m *marketOptions) auction() market.Auction {
	return market.Auction{
		Margin: market.BasisPoints(m.margin), Step: offpeak.Price(m.step), Premium: market.BasisPoints(m.premium),
		MinRun: offpeak.Duration(m.minRun), Respite: offpeak.Duration(m.respite),
	}
}

// ledgerRules are the figures for holds. What is left when the next interval is
// held, and the least worth holding for, follow a short interval.
func (m *marketOptions) ledgerRules() ledger.Rules {
	r := ledger.DefaultRules()
	r.Term, r.Interval, r.Fee = m.term, m.interval, ledger.BasisPoints(m.fee)
	r.Lead, r.Least = min(r.Lead, r.Interval/2), min(r.Least, r.Interval/2)
	return r
}

// validate names the flag of the first rule that is out of bounds.
func (m *marketOptions) validate() error {
	a := m.auction()
	if field, ok := errors.AsType[*offpeak.FieldError](a.Validate()); ok {
		flag := map[string]string{
			"auction.margin_basis_points": "auction-margin", "auction.step": "auction-step", "auction.min_run": "auction-min-run",
			"auction.respite": "auction-respite", "auction.premium_basis_points": "non-interruptible-premium",
		}[field.Field]
		return badInput("--%s: %s: %s", flag, field.Value, field.Rule)
	}
	for _, d := range []struct {
		flag string
		v    time.Duration
	}{{"price-term", m.term}, {"paid-interval", m.interval}} {
		if d.v < time.Second || d.v > maxTerm {
			return badInput("--%s: %v: is from 1s to %s", d.flag, d.v, offpeak.Duration(maxTerm))
		}
	}
	if m.interval > m.term {
		return badInput("--paid-interval: %v: is at most --price-term (%v): nothing is paid beyond the term", m.interval, m.term)
	}
	if m.term%m.interval != 0 {
		return badInput("--price-term: %v: is a whole number of paid intervals (--paid-interval %v)", m.term, m.interval)
	}
	if err := m.ledgerRules().Validate(); err != nil {
		// Of the figures that have no bounds of their own above, only the fee is a
		// person's.
		return badInput("--fee: %s: is from 0%% to 100%%", &m.fee)
	}
	return nil
}

// read reads the file of factors, if one is named.
func (m *marketOptions) read() error {
	if m.demandFile == "" {
		return nil
	}
	data, err := os.ReadFile(m.demandFile)
	if err != nil {
		return badInput("--demand-factors: %w", err)
	}
	const form = `holds a list like [{"model": "RTX 4090", "region": "eu", "idle_basis_points": 10000, "full_basis_points": 15000}]`
	in := json.NewDecoder(bytes.NewReader(data))
	in.DisallowUnknownFields()
	err = in.Decode(&m.demand)
	if err == nil {
		if _, more := in.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("there is more than one value")
		}
	}
	if err == nil && m.demand == nil {
		err = errors.New("null is no list")
	}
	if err != nil {
		return badInput("--demand-factors: %s: %w: it %s", m.demandFile, err, form)
	}
	if err := (market.Demand{Factors: m.demand}).Validate(); err != nil {
		return badInput("--demand-factors: %s: %w", m.demandFile, err)
	}
	return nil
}

// trade are the rules as the trading floor takes them.
func (m *marketOptions) trade() trade.Config {
	c := trade.Config{Auction: m.auction(), Rules: market.DefaultRules()}
	for i, r := range c.Rules {
		if _, ok := r.(market.Demand); ok && m.demand != nil {
			c.Rules[i] = market.Demand{Factors: m.demand}
		}
	}
	return c
}

// money are the rules as the store takes them.
func (m *marketOptions) money() sqlstore.Money {
	a := m.auction()
	return sqlstore.Money{Rules: m.ledgerRules(), Price: func(ask offpeak.Ask, r *offpeak.Requirements) offpeak.Price {
		return a.Charged(ask.For(*r), r.NonInterruptible)
	}}
}
