package offpeak

// Ask is the pair of prices per hour that a node's owner asks at one moment.
type Ask struct {
	// GPU is the price of each device that a job takes. It pays for the CPU,
	// memory and disk that come with it.
	GPU Price `json:"gpu" doc:"micro-credits per device and hour"`
	// CPU is the price of a job that takes no device.
	CPU Price `json:"cpu" doc:"micro-credits per hour of a job without devices"`
}

// For returns the price per hour of a job with requirements r. It is above
// MaxPrice, and so fits nobody, where as many devices as asked for would be.
func (a Ask) For(r Requirements) Price {
	if len(r.GPUs) == 0 {
		return a.CPU
	}
	// In step, so that no count of devices can overflow.
	if a.GPU > 0 && len(r.GPUs) > int(MaxPrice/a.GPU) {
		return MaxPrice + 1
	}
	return a.GPU * Price(len(r.GPUs))
}

// Validate returns a *FieldError for a price that is negative or above MaxPrice.
func (a Ask) Validate() error {
	for _, p := range []struct {
		field string
		price Price
	}{{"ask.gpu", a.GPU}, {"ask.cpu", a.CPU}} {
		if p.price < 0 || p.price > MaxPrice {
			return &FieldError{Field: p.field, Value: p.price.String(), Rule: "is from 0/h to 1000000/h"}
		}
	}
	return nil
}
