package replay

import (
	"encoding/json"
	"fmt"
	"iter"

	"offpeak"
)

// Events yields events of a file with one on each line, as `offpeak events -o json`
// prints them.
func Events(lines iter.Seq2[[]byte, error]) iter.Seq2[offpeak.Event, error] {
	return func(yield func(offpeak.Event, error) bool) {
		n := 0
		for line, err := range lines {
			n++
			var e offpeak.Event
			if err == nil {
				err = json.Unmarshal(line, &e)
			}
			if err == nil && (e.Type == "" || e.At.IsZero()) {
				err = fmt.Errorf("an event has a type and a time")
			}
			if err != nil {
				yield(e, fmt.Errorf("line %d: %w", n, err))
				return
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}
