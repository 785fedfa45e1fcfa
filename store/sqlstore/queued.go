package sqlstore

import (
	"encoding/json"

	"offpeak"
)

// queuedData is what the event of a submission says: all that a replay needs, also
// once the job and its spec are pruned.
func queuedData(sub submission) json.RawMessage {
	n := sub.job
	return data(struct {
		Spec         offpeak.Hash         `json:"spec"`
		Priority     int                  `json:"priority,omitempty"`
		RetryOf      offpeak.JobID        `json:"retry_of,omitempty"`
		Driver       string               `json:"driver"`
		Requirements json.RawMessage      `json:"requirements"`
		Policy       offpeak.Policy       `json:"policy,omitempty"`
		Limit        offpeak.Duration     `json:"time_limit,omitempty"`
		Retry        *offpeak.RetryPolicy `json:"retry,omitempty"`
		After        []offpeak.After      `json:"after,omitempty"`
	}{sub.hash, n.Spec.Priority, n.RetryOf, n.Spec.Task.Driver, json.RawMessage(sub.requirements), n.Spec.Policy, n.Spec.Limits.Time, n.Spec.Retry, sub.after})
}
