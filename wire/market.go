package wire

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"offpeak"
)

// Prices is an ask as it is given: a price that is missing is no price.
type Prices struct {
	// GPU is the price of each device that a job takes.
	GPU *offpeak.Price `json:"gpu" doc:"micro-credits per device and hour"`
	// CPU is the price of a job that takes no device. Default: the same.
	CPU *offpeak.Price `json:"cpu,omitempty" doc:"micro-credits per hour of a job without devices; default: as gpu"`
}

// AskPlan is what an owner asks, at any time: PUT /v1/nodes/{node}/ask, and for
// all nodes of an account that have no plan of their own PUT /v1/accounts/{account}/ask.
type AskPlan struct {
	// Ask holds where no window is open.
	Ask *Prices `json:"ask"`
	// Floor is the least that is asked, whatever a window or the market says.
	Floor *Prices `json:"floor,omitempty" doc:"the least that is asked, whatever a window or the market says"`
	// Windows are asks for some hours; the first that is open holds.
	Windows []string `json:"windows,omitempty" doc:"days, times and a price, for example mon-fri 22:00-07:00 0.10/h or sat,sun 00:00-24:00 0.10/h cpu 0.02/h; the first that is open holds; at most 64"`
	// Zone is where the clock hangs that the windows mean.
	Zone Zone `json:"zone,omitempty" doc:"IANA name of the windows' time zone, for example Europe/Berlin; default UTC"`
	// From and Until bound the plan; outside of them the node is offered to nobody.
	From  *time.Time `json:"from,omitempty" doc:"before it the node is offered to nobody"`
	Until *time.Time `json:"until,omitempty" doc:"from then on the node is offered to nobody"`
	// Auto has the ask follow what is usually paid.
	Auto *AutoAsk `json:"auto,omitempty"`
}

// Zone is the name of a time zone. Left out it is UTC; empty it is a slip of whoever
// looked one up, and must not be read as that.
type Zone string

// UnmarshalText refuses an empty name.
func (z *Zone) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return &offpeak.ValueError{Rule: "is the name of a time zone, for example Europe/Berlin: leave it out for UTC"}
	}
	*z = Zone(text)
	return nil
}

// AutoAsk has an ask follow the market, never below the plan's floor.
type AutoAsk struct {
	Discount int64 `json:"discount_basis_points,omitempty" doc:"how much to stay below what is usually paid; 500 is 5 %; 0 to 10000"`
	Slack    int64 `json:"slack_basis_points,omitempty" doc:"how far off the ask has to be before it is changed; 0 to 10000"`
}

// NodeAsk is what a node asks now and why: GET /v1/nodes/{node}/ask.
type NodeAsk struct {
	Node offpeak.NodeID `json:"node"`
	// Ask is null where the node is offered to nobody now.
	Ask *offpeak.Ask `json:"ask"`
	// Next is when it is looked at again: a window opens or closes, the market is
	// asked anew.
	Next *time.Time `json:"next,omitempty"`
	// Plan holds for the node; absent: it has none and costs nothing. Of says whose it is.
	Plan *AskPlan `json:"plan,omitempty"`
	Of   string   `json:"of,omitempty" doc:"whose plan it is: node or account"`
}

// QuoteRequest asks what a job would cost: POST /v1/quote.
type QuoteRequest struct {
	Requirements offpeak.Requirements `json:"requirements"`
	Driver       string               `json:"driver,omitempty" doc:"process (default) or wasm"`
	// For is how long the job is reckoned to run.
	For offpeak.Duration `json:"for,omitempty" doc:"how long the job is reckoned to run; default 1h"`
	// Limit is how many offers to name.
	Limit int `json:"limit,omitempty" doc:"how many offers to name, 1 to 100; default 10"`
}

// Market is the order book: GET /v1/market.
type Market struct {
	// Classes are the offers by model of device, those with the most memory first;
	// work without devices comes last and has no model.
	Classes []offpeak.GPUClass `json:"classes"`
	// Queued counts jobs that wait for a node, Bids those of them that name a
	// maximum price.
	Queued int `json:"queued"`
	Bids   int `json:"bids"`
	// Rules are what bids and non-interruptible jobs are held to.
	Rules AuctionRules `json:"rules"`
	At    time.Time    `json:"at"`
}

// AuctionRules are the operator's rules for scarce machines.
type AuctionRules struct {
	Margin  int64            `json:"margin_basis_points" doc:"by how much of the displaced bid a bid has to be higher"`
	Step    offpeak.Price    `json:"step" doc:"what the winner pays above the displaced bid at least"`
	MinRun  offpeak.Duration `json:"min_run" doc:"how long a job runs before it can be displaced"`
	Respite offpeak.Duration `json:"respite" doc:"how long a displaced job isn't displaced again"`
	Premium int64            `json:"premium_basis_points" doc:"what a non-interruptible job pays on top of the ask"`
}

// SuggestRequest asks for an ask: POST /v1/nodes/{node}/ask/suggest. Amounts are of
// one device, or of the machine where it has none.
type SuggestRequest struct {
	// KWh is what a kilowatt-hour costs: one price, or 24 for the hours of the day.
	KWh []offpeak.MicroCredits `json:"kwh,omitempty" doc:"what a kilowatt-hour costs, micro-credits: one, or 24 for the hours of the day"`
	// Watts is what it draws under load. Default: what its maker says, where that is known.
	Watts    int64                 `json:"watts,omitempty" doc:"what it draws under load; default: what its maker says, where that is known"`
	Measured bool                  `json:"measured,omitempty" doc:"the watts were measured"`
	Cost     *offpeak.MicroCredits `json:"cost,omitempty" doc:"what the hardware costs"`
	Life     offpeak.Duration      `json:"life,omitempty" doc:"for how much work the hardware is good"`
	Floor    *offpeak.Price        `json:"floor,omitempty"`
	Zone     Zone                  `json:"zone,omitempty" doc:"IANA name of the owner's time zone; default UTC"`
}

// Suggested answers it.
type Suggested struct {
	Price offpeak.Price `json:"price"`
	// Lines are the sum that leads to it: their changes add up to the price.
	Lines []SuggestedLine `json:"lines"`
	// Windows are the same by hour of the day, for a plan; absent where all hours
	// are alike.
	Windows []string `json:"windows,omitempty"`
	// LeftOut is what is not in the sum, and why; absent where nothing is missing.
	LeftOut []SuggestedLeftOut `json:"left_out,omitempty" doc:"what is not in the sum, and why"`
}

// SuggestedLeftOut is a rule, or a part of the machine, that is not in the sum.
type SuggestedLeftOut struct {
	Rule  string `json:"rule"`
	Why   string `json:"why"`
	Needs string `json:"needs,omitempty" doc:"the field of the request that would bring it in"`
}

// SuggestedLine is what one rule did.
type SuggestedLine struct {
	Rule   string        `json:"rule"`
	Change offpeak.Price `json:"change"`
	Price  offpeak.Price `json:"price"`
	Why    string        `json:"why"`
}

// AskChange is what a node asked from some moment on: a row of
// GET /v1/nodes/{node}/ask/history.
type AskChange struct {
	From time.Time    `json:"from"`
	Ask  *offpeak.Ask `json:"ask" doc:"null: nothing was asked, so the node was offered to nobody"`
}

func askOf(id offpeak.NodeID) string { return "/nodes/" + url.PathEscape(string(id)) + "/ask" }

func accountAskOf(id offpeak.AccountID) string {
	return "/accounts/" + url.PathEscape(string(id)) + "/ask"
}

// Ask says what a node asks now and why.
func (d *Direct) Ask(ctx context.Context, id offpeak.NodeID) (out NodeAsk, err error) {
	err = d.Do(ctx, http.MethodGet, askOf(id), "", nil, &out)
	return out, err
}

// SetAsk sets what is asked for a node.
func (d *Direct) SetAsk(ctx context.Context, op offpeak.OpID, id offpeak.NodeID, in AskPlan) (out NodeAsk, err error) {
	err = d.Do(ctx, http.MethodPut, askOf(id), op, in, &out)
	return out, err
}

// ClearAsk takes a node's own plan back.
func (d *Direct) ClearAsk(ctx context.Context, op offpeak.OpID, id offpeak.NodeID) (out NodeAsk, err error) {
	err = d.Do(ctx, http.MethodDelete, askOf(id), op, nil, &out)
	return out, err
}

// AskHistory lists what a node asked, newest first. Query parameters: limit, cursor.
func (d *Direct) AskHistory(ctx context.Context, id offpeak.NodeID, q url.Values) (out List[AskChange], err error) {
	err = d.Do(ctx, http.MethodGet, askOf(id)+"/history?"+q.Encode(), "", nil, &out)
	return out, err
}

// Suggest proposes what to ask for a node.
func (d *Direct) Suggest(ctx context.Context, id offpeak.NodeID, in SuggestRequest) (out Suggested, err error) {
	err = d.Do(ctx, http.MethodPost, askOf(id)+"/suggest", "", in, &out)
	return out, err
}

// AccountAsk returns the plan of an account. ErrNotFound: there is none.
func (d *Direct) AccountAsk(ctx context.Context, id offpeak.AccountID) (out AskPlan, err error) {
	err = d.Do(ctx, http.MethodGet, accountAskOf(id), "", nil, &out)
	return out, err
}

// SetAccountAsk sets what is asked for an account's nodes that have no plan of their
// own, and returns what these ask now.
func (d *Direct) SetAccountAsk(ctx context.Context, op offpeak.OpID, id offpeak.AccountID, in AskPlan) (out List[NodeAsk], err error) {
	err = d.Do(ctx, http.MethodPut, accountAskOf(id), op, in, &out)
	return out, err
}

// ClearAccountAsk takes an account's plan back.
func (d *Direct) ClearAccountAsk(ctx context.Context, op offpeak.OpID, id offpeak.AccountID) (out List[NodeAsk], err error) {
	err = d.Do(ctx, http.MethodDelete, accountAskOf(id), op, nil, &out)
	return out, err
}

// Quote says what a job would cost.
func (d *Direct) Quote(ctx context.Context, in QuoteRequest) (out offpeak.Quote, err error) {
	err = d.Do(ctx, http.MethodPost, "/quote", "", in, &out)
	return out, err
}

// Market returns the order book.
func (d *Direct) Market(ctx context.Context) (out Market, err error) {
	err = d.Do(ctx, http.MethodGet, "/market", "", nil, &out)
	return out, err
}

// Candles lists what was paid. Query parameters: resolution (minute, hour), vendor,
// model, vram, region, plain, from, until, limit, cursor.
func (d *Direct) Candles(ctx context.Context, q url.Values) (out List[offpeak.Candle], err error) {
	err = d.Do(ctx, http.MethodGet, "/market/history?"+q.Encode(), "", nil, &out)
	return out, err
}
