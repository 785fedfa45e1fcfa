package trading

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"offpeak"
	"offpeak/cmd/offpeak/cli/manifest"
	"offpeak/cmd/offpeak/cli/people"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/market"
	"offpeak/wire"
)

func newMarket(env world.Env) *cobra.Command {
	c := people.NewClient(env)
	cmd := &cobra.Command{
		Use:   "market",
		Short: "Show what is offered, by class of GPU",
		Long: `Market prints the order book: for each model of GPU how many there are, how many
are free, and what is asked for the free ones; for machines as places for work
without a GPU the same. Then who waits, and the operator's rules for bids.`,
		Example: `  offpeak market
  offpeak market history --model 4090 --since 24h`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			hub, err := c.Dial()
			if err != nil {
				return err
			}
			m, err := read(cmd.Context(), hub, func(ctx context.Context, d *wire.Direct) (wire.Market, error) { return d.Market(ctx) })
			if err != nil {
				return err
			}
			names := make([]string, len(m.Classes))
			for i := range m.Classes {
				names[i] = class(m.Classes[i].Vendor, m.Classes[i].Model)
			}
			return c.Print(m, names, func(t *render.Table) { showMarket(t, m) })
		},
	}
	cmd.AddCommand(newPaid(env))
	return c.Command(cmd)
}

// class names a kind of device.
func class(vendor, model string) string {
	if name := strings.TrimSpace(vendor + " " + model); name != "" {
		return name
	}
	return "without GPU"
}

func showMarket(t *render.Table, m wire.Market) {
	if len(m.Classes) == 0 {
		t.Line("Nothing is offered: no node takes work now.")
	} else {
		priced := false
		t.Row("CLASS", "MEMORY", "DEVICES", "FREE", "LOWEST", "MEDIAN", "HIGHEST")
		for _, k := range m.Classes {
			memory := "-"
			if k.VRAM > 0 {
				memory = render.About(k.VRAM)
			}
			t.Row(class(k.Vendor, k.Model), memory, fmt.Sprint(k.Devices), fmt.Sprint(k.Free), priceText(k.Lowest), priceText(k.Median), priceText(k.Highest))
			// Without a free device it is not known what is asked.
			priced = priced || k.Highest == nil || *k.Highest > 0
		}
		if !priced {
			t.Line("")
			t.Line("Nobody asks anything: this grid is free.")
		}
	}
	t.Line("")
	waiting := "Nothing waits."
	if m.Queued > 0 {
		waiting = fmt.Sprintf("%s waiting, %d of them with a maximum price.", count(m.Queued, "job"), m.Bids)
	}
	t.Line(waiting)
	if m.Bids > 0 {
		r := m.Rules
		t.Line(fmt.Sprintf("A bid displaces one that it exceeds by %s, once that has run for %s, and pays at least %s more than it; a job that was displaced is left alone for %s. Who must not be displaced pays %s more.",
			market.BasisPoints(r.Margin), render.Span(r.MinRun.Std()), r.Step, render.Span(r.Respite.Std()), market.BasisPoints(r.Premium)))
	}
}

func priceText(p *offpeak.Price) string {
	if p == nil {
		return "-"
	}
	return p.String()
}

// atLeastOne refuses a limit of nothing.
func atLeastOne(flag string, n int) error {
	if n < 1 {
		return world.Refuse(&offpeak.FieldError{Field: flag, Value: fmt.Sprint(n), Rule: "is at least 1"})
	}
	return nil
}

// paid are the flags of market history.
type paid struct {
	vendor, model, region string
	vram                  manifest.Size
	plain, minute, hour   bool
	since                 offpeak.Duration
	from                  time.Time // what since means
	limit                 int
}

// query is what the flags ask for.
func (p *paid) query(now time.Time) (url.Values, error) {
	p.from = now.Add(-p.since.Std())
	q := url.Values{"resolution": {string(offpeak.Hours)}, "from": {p.from.UTC().Format(time.RFC3339)}}
	if p.minute {
		q.Set("resolution", string(offpeak.Minutes))
	}
	switch {
	case p.minute && p.hour:
		return nil, world.Refuse(&offpeak.FieldError{Field: "--minute, --hour", Rule: "exclude each other"})
	case p.plain && (p.vendor != "" || p.model != "" || p.vram > 0):
		return nil, world.Refuse(&offpeak.FieldError{Field: "--plain", Rule: "is work without GPUs: it has no --vendor, --model or --vram"})
	case p.since <= 0:
		return nil, world.Refuse(&offpeak.FieldError{Field: "--since", Value: p.since.String(), Rule: "is more than 0s"})
	}
	for name, value := range map[string]string{"vendor": p.vendor, "model": p.model, "region": p.region} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if p.vram > 0 {
		q.Set("vram", fmt.Sprintf("%dB", int64(p.vram)))
	}
	if p.plain {
		q.Set("plain", "true")
	}
	return q, atLeastOne("--limit", p.limit)
}

func newPaid(env world.Env) *cobra.Command {
	c := people.NewClient(env)
	p := paid{since: offpeak.Duration(24 * time.Hour)}
	cmd := &cobra.Command{
		Use:   "history",
		Short: "Show what was paid, by class of GPU, region and time",
		Long: `History prints, for each kind of GPU, region and hour (or minute), the first, the
highest, the lowest and the last price at which work began or was renewed, how
often that was, and how much time was had. Prices are of one GPU, or of the job
where it has none. Work that costs nothing leaves no trace.`,
		Example: `  offpeak market history --model 4090
  offpeak market history --plain --minute --since 2h -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := written(cmd, "vendor", "model", "region"); err != nil {
				return err
			}
			if cmd.Flags().Changed("vram") && p.vram == 0 {
				return world.Refuse(&offpeak.FieldError{Field: "--vram", Value: "0B", Rule: "is more than 0B: work without GPUs is --plain"})
			}
			q, err := p.query(time.Now())
			if err != nil {
				return err
			}
			if _, err := c.Dial(); err != nil {
				return err
			}
			list, err := people.Pages(cmd.Context(), c, q, p.limit, func(ctx context.Context, d *wire.Direct, q url.Values) (wire.List[offpeak.Candle], error) {
				return d.Candles(ctx, q)
			})
			if err != nil {
				return err
			}
			return c.Print(list, nil, func(t *render.Table) { p.show(t, list) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&p.vendor, "vendor", "", "only GPUs of this `vendor`")
	f.StringVar(&p.model, "model", "", "only GPUs with this in their `model` name")
	f.Var(&p.vram, "vram", "only GPUs with exactly this memory, for example 24GiB")
	f.StringVar(&p.region, "region", "", "only this `region`")
	f.BoolVar(&p.plain, "plain", false, "only work without GPUs")
	f.BoolVar(&p.hour, "hour", false, "one line an hour (default)")
	f.BoolVar(&p.minute, "minute", false, "one line a minute; kept for a shorter time than hours")
	f.Var((*manifest.Duration)(&p.since), "since", "how far back")
	f.IntVar(&p.limit, "limit", 1000, "at most `n` lines")
	return c.Command(cmd)
}

func (p *paid) show(t *render.Table, list wire.List[offpeak.Candle]) {
	if len(list.Items) == 0 {
		t.Line("Nothing was paid since " + stamp(&p.from) + " for what you ask about.")
		return
	}
	t.Row("BEGAN", "CLASS", "MEMORY", "REGION", "OPEN", "HIGH", "LOW", "CLOSE", "TRADES", "TIME")
	for _, k := range list.Items {
		memory := "-"
		if k.VRAM > 0 {
			memory = render.About(k.VRAM)
		}
		t.Row(stamp(&k.Start), class(k.Vendor, k.Model), memory, render.Dash(k.Region), k.Open.String(), k.High.String(), k.Low.String(), k.Close.String(),
			fmt.Sprint(k.Trades), render.Span(time.Duration(k.Metered)*time.Millisecond))
	}
	if list.Next != "" {
		t.Line("")
		t.Line("There is more: see --limit.")
	}
}
