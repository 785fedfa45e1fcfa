package offpeak

import "time"

// Quote answers what a job would cost: the offers that fit, cheapest first, and
// what it would gain by asking for less.
type Quote struct {
	// For is how long the job is reckoned to run.
	For Duration `json:"for"`
	// Fits counts the offers that fit now; Offers are the cheapest of them.
	Fits   int           `json:"fits"`
	Offers []QuotedOffer `json:"offers"`
	// Start is when the job could begin: at once where an offer fits, else when
	// the first node that would do is free again at the latest. Nil: nobody knows.
	Start *time.Time `json:"start,omitempty"`
	// Instead are changes that would make it cheaper, or possible at all.
	Instead []Alternative `json:"instead,omitempty"`
}

// QuotedOffer is one offer with what the job would pay for it.
type QuotedOffer struct {
	Node   NodeID `json:"node"`
	Region string `json:"region,omitempty"`
	// Devices names the GPUs that the job would get; empty without any.
	Devices []string `json:"devices,omitempty"`
	Price   Price    `json:"price" doc:"of the whole job, micro-credits per hour"`
	// Total is the price for the time of the quote, rounded up.
	Total MicroCredits `json:"total" doc:"micro-credits"`
	// Note says where a device tells a little less memory than was asked for.
	Note string `json:"note,omitempty" doc:"where a GPU counts though it tells a little less memory than was asked for"`
}

// AlternativeKind is what an alternative changes.
type AlternativeKind string

// The kinds of alternatives.
const (
	// LessVRAM: a smaller class of devices has a cheaper offer.
	LessVRAM AlternativeKind = "less_vram"
	// AnotherHour: a node that fits asks less at another time.
	AnotherHour AlternativeKind = "another_hour"
	// HigherCeiling: more offers fit a higher maximum price.
	HigherCeiling AlternativeKind = "higher_ceiling"
)

// Alternative is one change to what was asked for and what it leads to.
type Alternative struct {
	Kind AlternativeKind `json:"kind"`
	// Price is the lowest price after the change, Total that for the time of the quote.
	Price Price        `json:"price"`
	Total MicroCredits `json:"total"`
	// VRAM is what to ask for with LessVRAM.
	VRAM Bytes `json:"vram_bytes,omitempty"`
	// At is when the price begins with AnotherHour.
	At *time.Time `json:"at,omitempty"`
	// More counts the further offers with HigherCeiling.
	More int `json:"more,omitempty"`
}

// GPUClass is one line of the order book: all offers of one model of device or,
// with no model, all machines as places for work without devices.
type GPUClass struct {
	Vendor string `json:"vendor"`
	Model  string `json:"model"`
	VRAM   Bytes  `json:"vram_bytes"`
	// Devices counts those of nodes that take work, Free those that no lease holds.
	Devices int `json:"devices"`
	Free    int `json:"free"`
	// Lowest, Median and Highest are asks for one free device; nil with none free.
	Lowest  *Price `json:"lowest,omitempty"`
	Median  *Price `json:"median,omitempty"`
	Highest *Price `json:"highest,omitempty"`
}
