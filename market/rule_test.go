package market_test

import (
	"errors"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"offpeak"
	"offpeak/market"
)

// known are facts of which every number is easy to reckon with.
func known() market.Facts {
	return market.Facts{
		Segment: offpeak.Segment{Kind: card, Region: "eu"}, Hour: 18, Watts: 350, Measured: true, Tariff: market.Flat(300_000),
		Cost: 1600 * offpeak.Credit, Life: 20_000 * hour, Devices: 10, Taken: 5,
		Recent: []offpeak.Candle{{Close: 350_000, Trades: 3, Metered: 1000}},
	}
}

// TestSuggestShowsItsSum is the sum as an owner sees it.
func TestSuggestShowsItsSum(t *testing.T) {
	f := known()
	f.Floor = 400_000
	s, err := market.Suggest(f, market.DefaultRules())
	if err != nil {
		t.Fatal(err)
	}
	want := strings.TrimPrefix(`
electricity   +0.105/h  350 W, measured, at 0.30 a kWh from 18:00
depreciation   +0.08/h  1600.00 over 20000h0m0s of work
demand      +0.04625/h  125% of the price, with 5 of 10 taken (RTX 4090 eu)
market      +0.11875/h  0.35/h is usually paid
floor         +0.05/h  never less
ask            0.40/h
`, "\n")
	if got := s.String(); strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") || s.Price != 400_000 {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	width := 0
	for i, line := range strings.Split(strings.TrimSpace(s.String()), "\n") {
		if at := strings.Index(line, "/h"); i == 0 {
			width = at
		} else if at != width {
			t.Errorf("the sums don't stand below one another:\n%s", s)
		}
	}
}

func TestRules(t *testing.T) {
	demand := market.Demand{Factors: []market.Factor{
		{Region: "eu", Model: "rtx 4090", Idle: 8000, Full: 20_000}, {Region: "eu", Idle: 10_000, Full: 5000}, {Model: "Arc", Idle: 0, Full: 0},
	}}
	for _, c := range []struct {
		name  string
		rule  market.Rule
		given offpeak.Price
		facts func(*market.Facts)
		want  offpeak.Price
		why   string
	}{
		{"electricity", market.Electricity{}, 7, nil, 105_007, "350 W, measured, at 0.30 a kWh from 18:00"},
		{"electricity, rounded up", market.Electricity{}, 0, func(f *market.Facts) { f.Watts, f.Measured, f.Tariff[18] = 1, false, 1 }, 1, "1 W, nominal, at 0.000001 a kWh from 18:00"},
		{"electricity at another hour", market.Electricity{}, 0, func(f *market.Facts) { f.Hour, f.Tariff[3] = 3, 100_000 }, 35_000, "350 W, measured, at 0.10 a kWh from 03:00"},
		{"the sun shines", market.Electricity{}, 7, func(f *market.Facts) { f.Tariff[18] = 0 }, 7, ""},
		{"watts unknown", market.Electricity{}, 7, func(f *market.Facts) { f.Watts = 0 }, 7, ""},
		{"most of all", market.Electricity{}, offpeak.MaxPrice, func(f *market.Facts) {
			f.Watts, f.Tariff = 100_000, market.Flat(offpeak.MicroCredits(offpeak.MaxPrice))
		}, 101 * offpeak.MaxPrice, "100000 W, measured, at 1000000.00 a kWh from 18:00"},
		{"depreciation", market.Depreciation{}, 7, nil, 80_007, "1600.00 over 20000h0m0s of work"},
		{"depreciation, rounded up", market.Depreciation{}, 0, func(f *market.Facts) { f.Cost, f.Life = 10, 3*hour }, 4, "0.00001 over 3h0m0s of work"},
		{"cost unknown", market.Depreciation{}, 7, func(f *market.Facts) { f.Cost = 0 }, 7, ""},
		{"life unknown", market.Depreciation{}, 7, func(f *market.Facts) { f.Life = 0 }, 7, ""},
		{"demand, half taken", demand, 100, nil, 140, "140% of the price, with 5 of 10 taken (RTX 4090 eu)"},
		{"demand, all idle", demand, 100, func(f *market.Facts) { f.Taken = 0 }, 80, "80% of the price, with 0 of 10 taken (RTX 4090 eu)"},
		{"demand, all taken", demand, 100, func(f *market.Facts) { f.Taken = 10 }, 200, "200% of the price, with 10 of 10 taken (RTX 4090 eu)"},
		{"demand that falls", demand, 100, func(f *market.Facts) { f.Model, f.Taken, f.Devices = "RTX 3060", 1, 3 }, 84, "83.33% of the price, with 1 of 3 taken (RTX 3060 eu)"},
		{"a factor of nothing", demand, 100, func(f *market.Facts) { f.Segment = offpeak.Segment{Kind: offpeak.Kind{Model: "arc"}} }, 0, "0% of the price, with 5 of 10 taken (arc)"},
		{"no factor for it", demand, 100, func(f *market.Facts) { f.Region = "us" }, 100, ""},
		{"nobody there", demand, 100, func(f *market.Facts) { f.Devices, f.Taken = 0, 0 }, 100, ""},
		{"market above", market.Clear{}, 100, nil, 350_000, "0.35/h is usually paid"},
		{"market below", market.Clear{}, 400_000, nil, 400_000, "0.35/h is usually paid: below what it costs"},
		{"market less a discount, rounded up", market.Clear{Discount: 3333}, 0, func(f *market.Facts) { f.Recent[0].Close = 100 }, 67, "0.0001/h is usually paid, less 33.33%"},
		{"no trade", market.Clear{}, 100, func(f *market.Facts) { f.Recent = nil }, 100, ""},
	} {
		f := known()
		if c.facts != nil {
			c.facts(&f)
		}
		if err := f.Validate(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if got, why := c.rule.Adjust(c.given, &f); got != c.want || why != c.why {
			t.Errorf("%s: %s, %q; want %s, %q", c.name, got, why, c.want, c.why)
		}
	}
}

// foreign is a rule of an operator's own.
type foreign struct {
	price offpeak.Price
	why   string
}

func (foreign) Name() string { return "foreign" }

func (r foreign) Adjust(offpeak.Price, *market.Facts) (offpeak.Price, string) { return r.price, r.why }

// TestSuggestAddsUp: whatever the facts and rules, the lines add up to the price,
// which is within the bounds and not below the floor; and of the known rules each
// adds what rational arithmetic adds, rounded up.
func TestSuggestAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := market.Facts{
			Segment: segments.Draw(t, "segment"), Hour: rapid.IntRange(0, 23).Draw(t, "hour"), Watts: rapid.Int64Range(0, 100_000).Draw(t, "watts"),
			Cost: offpeak.MicroCredits(drawPrice(t, "cost")), Life: offpeak.Duration(rapid.Int64Range(int64(hour), int64(offpeak.MaxDuration)).Draw(t, "life")),
			Devices: rapid.IntRange(0, 1000).Draw(t, "devices"), Floor: drawPrice(t, "floor"),
		}
		f.Taken = rapid.IntRange(0, f.Devices).Draw(t, "taken")
		f.Tariff = market.Flat(offpeak.MicroCredits(drawPrice(t, "tariff")))
		for range rapid.IntRange(0, 3).Draw(t, "candles") {
			f.Recent = append(f.Recent, offpeak.Candle{Close: drawPrice(t, "close"), Trades: 1})
		}
		rules := rapid.SliceOfN(rapid.OneOf(
			rapid.SampledFrom(market.DefaultRules()),
			rapid.Custom(func(t *rapid.T) market.Rule {
				return foreign{offpeak.Price(rapid.Int64().Draw(t, "foreign")), rapid.SampledFrom([]string{"", "so it is"}).Draw(t, "why")}
			}),
		), 0, 6).Draw(t, "rules")
		s, err := market.Suggest(f, rules)
		if err != nil {
			t.Fatal(err)
		}
		sum := offpeak.Price(0)
		for _, l := range s.Lines {
			before := sum
			if sum += l.Change; sum != l.Price || sum < 0 || sum > offpeak.MaxPrice || (l.Why == "" && l.Change != 0 && l.Rule != "foreign") {
				t.Fatalf("%+v does not add up to %s", l, sum)
			}
			var add *big.Rat
			switch l.Rule {
			case "electricity":
				add = new(big.Rat).Mul(big.NewRat(f.Watts, 1000), big.NewRat(int64(f.Tariff[f.Hour]), 1))
			case "depreciation":
				add = new(big.Rat).Mul(big.NewRat(int64(f.Cost), 1), big.NewRat(int64(hour), int64(f.Life)))
			default:
				continue
			}
			want := new(big.Rat).Add(add, new(big.Rat).SetInt64(int64(before)))
			if most := new(big.Rat).SetInt64(int64(offpeak.MaxPrice)); want.Cmp(most) > 0 {
				want = most
			}
			got := new(big.Rat).SetInt64(int64(l.Price))
			if d := new(big.Rat).Sub(got, want); d.Sign() < 0 || d.Cmp(big.NewRat(1, 1)) >= 0 {
				t.Fatalf("%+v after %s: want %s, rounded up", l, before, want)
			}
		}
		if sum != s.Price || s.Price < f.Floor || s.Price > offpeak.MaxPrice {
			t.Fatalf("%+v: sum %s, floor %s", s, sum, f.Floor)
		}
	})
}

// What a sum could not take in is told, with the fact that would bring it in.
func TestSuggestSaysWhatItLeftOut(t *testing.T) {
	all := market.Facts{
		Watts: 300, Tariff: market.Flat(300_000), Cost: 1600 * offpeak.Credit, Life: 20_000 * hour, Devices: 4, Taken: 1,
		Recent: []offpeak.Candle{{Close: 900_000, Trades: 1}},
	}
	all.Model = "Card Z"
	for name, c := range map[string]struct {
		change func(*market.Facts)
		rules  []market.Rule
		want   market.LeftOut
	}{
		"no tariff":           {func(f *market.Facts) { f.Tariff = market.Tariff{} }, nil, market.LeftOut{Rule: "electricity", Why: "it is not known what a kilowatt-hour costs", Needs: "kwh"}},
		"a card nobody knows": {func(f *market.Facts) { f.Watts = 0 }, nil, market.LeftOut{Rule: "electricity", Why: `what "Card Z" draws is not known`, Needs: "watts"}},
		"no card":             {func(f *market.Facts) { f.Watts, f.Model = 0, "" }, nil, market.LeftOut{Rule: "electricity", Why: "it has no GPU, and what the machine draws is not known", Needs: "watts"}},
		"free at night":       {func(f *market.Facts) { f.Tariff[0] = 0 }, nil, market.LeftOut{Rule: "electricity", Why: "power costs nothing from 00:00"}},
		"no cost":             {func(f *market.Facts) { f.Cost, f.Life = 0, 0 }, nil, market.LeftOut{Rule: "depreciation", Why: "it is not known what the hardware cost", Needs: "cost"}},
		"a life of nothing":   {func(f *market.Facts) { f.Cost = 0 }, nil, market.LeftOut{Rule: "depreciation", Why: "a life is named, and not what the hardware cost", Needs: "cost"}},
		"a cost for ever":     {func(f *market.Facts) { f.Life = 0 }, nil, market.LeftOut{Rule: "depreciation", Why: "it is not known for how long the hardware is good", Needs: "life"}},
		"none there":          {func(f *market.Facts) { f.Devices, f.Taken = 0, 0 }, nil, market.LeftOut{Rule: "demand", Why: "no such machine takes work now"}},
		"no factor":           {func(*market.Facts) {}, []market.Rule{market.Demand{}}, market.LeftOut{Rule: "demand", Why: "the grid's operator has no factor for such machines"}},
		"nothing paid":        {func(f *market.Facts) { f.Recent = nil }, nil, market.LeftOut{Rule: "market", Why: "nobody paid for such a machine of late"}},
	} {
		f, rules := all, c.rules
		c.change(&f)
		if rules == nil {
			rules = market.DefaultRules()
		}
		if s, err := market.Suggest(f, rules); err != nil || len(s.LeftOut) != 1 || s.LeftOut[0] != c.want {
			t.Errorf("%s: left out %+v, %v, want %+v", name, s.LeftOut, err, c.want)
		}
	}
	if s, err := market.Suggest(all, market.DefaultRules()); err != nil || len(s.LeftOut) != 0 || len(s.Lines) != 4 {
		t.Errorf("with all facts: %+v, %v", s, err)
	}
}

func TestSuggestBounds(t *testing.T) {
	for _, c := range []struct {
		rule  foreign
		price offpeak.Price
		why   string
	}{
		{foreign{math.MinInt64, "gone mad"}, 0, "gone mad; bounded to 0.00/h"},
		{foreign{math.MaxInt64, ""}, offpeak.MaxPrice, "bounded to 1000000.00/h"},
		{foreign{0, "for friends"}, 0, "for friends"},
	} {
		s, err := market.Suggest(market.Facts{}, []market.Rule{c.rule})
		if err != nil || s.Price != c.price || len(s.Lines) != 1 || s.Lines[0].Why != c.why {
			t.Errorf("%+v: %+v, %v", c.rule, s, err)
		}
	}
	if s, err := market.Suggest(market.Facts{}, market.DefaultRules()); err != nil || s.Price != 0 || len(s.Lines) != 0 || s.String() != "ask  0.00/h\n" {
		t.Errorf("nothing known: %q, %v", s, err)
	}
}

func TestSuggestRefuses(t *testing.T) {
	for name, change := range map[string]func(*market.Facts){
		"negative hour":     func(f *market.Facts) { f.Hour = -1 },
		"hour 24":           func(f *market.Facts) { f.Hour = 24 },
		"negative watts":    func(f *market.Facts) { f.Watts = -1 },
		"watts over-limit":  func(f *market.Facts) { f.Watts = 100_001 },
		"negative tariff":   func(f *market.Facts) { f.Tariff[5] = -1 },
		"tariff over-limit": func(f *market.Facts) { f.Tariff[5] = math.MaxInt64 },
		"negative cost":     func(f *market.Facts) { f.Cost = -1 },
		"cost over-limit":   func(f *market.Facts) { f.Cost = math.MaxInt64 },
		"negative life":     func(f *market.Facts) { f.Life = -1 },
		"life of a moment":  func(f *market.Facts) { f.Life = 1 },
		"life over-limit":   func(f *market.Facts) { f.Life = offpeak.MaxDuration + 1 },
		"more taken":        func(f *market.Facts) { f.Taken = f.Devices + 1 },
		"negative taken":    func(f *market.Facts) { f.Taken = -1 },
		"negative devices":  func(f *market.Facts) { f.Devices, f.Taken = -1, -1 },
		"negative floor":    func(f *market.Facts) { f.Floor = -1 },
		"floor over-limit":  func(f *market.Facts) { f.Floor = offpeak.MaxPrice + 1 },
	} {
		f := known()
		change(&f)
		if _, err := market.Suggest(f, market.DefaultRules()); !errors.Is(err, offpeak.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if f.Hour == known().Hour {
			if _, err := market.Schedule(f, market.DefaultRules()); !errors.Is(err, offpeak.ErrInvalid) {
				t.Errorf("schedule, %s: %v", name, err)
			}
		}
	}
	for _, r := range []market.Rule{
		market.Clear{Discount: -1}, market.Clear{Discount: market.Whole + 1},
		market.Demand{Factors: []market.Factor{{Idle: -1}}}, market.Demand{Factors: []market.Factor{{}, {Full: 100_001}}},
	} {
		if _, err := market.Suggest(known(), []market.Rule{r}); !errors.Is(err, offpeak.ErrInvalid) {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

// TestSchedule: a tariff with a cheap night becomes windows that a plan asks by.
func TestSchedule(t *testing.T) {
	f := known()
	for h := range 6 {
		f.Tariff[h] = 100_000
	}
	windows, err := market.Schedule(f, []market.Rule{market.Electricity{}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, w := range windows {
		got = append(got, w.String())
	}
	if want := "daily 00:00-06:00 0.035/h; daily 06:00-24:00 0.105/h"; strings.Join(got, "; ") != want {
		t.Errorf("%q, want %q", got, want)
	}
	p := market.Plan{Windows: windows, Zone: zone(t, "Europe/Berlin")}
	if err := p.Validate(); err != nil {
		t.Error(err)
	}
	// 04:30 and 07:30 in Berlin.
	for at, want := range map[time.Time]offpeak.Price{now.Add(-8*time.Hour - 30*time.Minute): 35_000, now.Add(-5*time.Hour - 30*time.Minute): 105_000} {
		if s := p.At(at); s.Ask.GPU != want || s.Ask.CPU != want {
			t.Errorf("at %s: %+v, want %s", at, s, want)
		}
	}
}

func TestAuto(t *testing.T) {
	paid := func(p offpeak.Price) []offpeak.Candle { return []offpeak.Candle{{Close: p, Trades: 1}} }
	for _, c := range []struct {
		name   string
		auto   market.Auto
		ask    offpeak.Price
		recent []offpeak.Candle
		want   offpeak.Price
	}{
		{"rises", market.Auto{}, 100, paid(200), 200},
		{"falls", market.Auto{}, 200, paid(100), 100},
		{"falls to the floor", market.Auto{Floor: 150}, 200, paid(100), 150},
		{"stays without trades", market.Auto{Floor: 150}, 200, nil, 200},
		{"is raised to the floor without trades", market.Auto{Floor: 150}, 100, nil, 150},
		{"is raised to the floor by less than the slack", market.Auto{Floor: 105, Slack: 1000}, 100, paid(0), 105},
		{"a discount, rounded up", market.Auto{Discount: 500}, 0, paid(101), 96},
		{"within the slack", market.Auto{Slack: 1000}, 100, paid(110), 100},
		{"beyond the slack", market.Auto{Slack: 1000}, 100, paid(111), 111},
		{"within the slack below", market.Auto{Slack: 1000}, 100, paid(90), 100},
		{"beyond the slack below", market.Auto{Slack: 1000}, 100, paid(89), 89},
		{"off nothing", market.Auto{Slack: 1000}, 0, paid(1), 1},
		{"an ask out of bounds", market.Auto{Floor: 5}, math.MinInt64, nil, 5},
		{"an ask above all", market.Auto{}, math.MaxInt64, nil, offpeak.MaxPrice},
	} {
		if got := c.auto.Next(c.ask, c.recent); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	for _, a := range []market.Auto{{Floor: -1}, {Floor: offpeak.MaxPrice + 1}, {Discount: -1}, {Discount: market.Whole + 1}, {Slack: -1}, {Slack: market.Whole + 1}} {
		if err := a.Validate(); !errors.Is(err, offpeak.ErrInvalid) {
			t.Errorf("%+v: %v", a, err)
		}
	}
	// While the market stands still, so does the ask: asked again nothing changes.
	rapid.Check(t, func(t *rapid.T) {
		a := market.Auto{Floor: drawPrice(t, "floor"), Discount: market.BasisPoints(rapid.Int64Range(0, 10_000).Draw(t, "discount")), Slack: market.BasisPoints(rapid.Int64Range(0, 10_000).Draw(t, "slack"))}
		recent := paid(drawPrice(t, "paid"))
		once := a.Next(drawPrice(t, "ask"), recent)
		if again := a.Next(once, recent); again != once || once < a.Floor || once > offpeak.MaxPrice {
			t.Fatalf("%+v: %s, then %s", a, once, again)
		}
	})
}
