package people

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"offpeak"
	"offpeak/cmd/offpeak/cli/render"
)

// Whatever ends a job, show says the stable code, a sentence and, unless the job
// succeeded, a next step that can be pasted.
func TestShowSaysWhyAndWhatNext(t *testing.T) {
	const id = offpeak.JobID("job_01jd8zk3x9f0wr4c2m7qv5t6ae")
	for _, end := range offpeak.Ends() {
		state := offpeak.JobFailed
		switch end.Reason {
		case offpeak.EndCompleted:
			state = offpeak.JobSucceeded
		case offpeak.EndCancelled:
			state = offpeak.JobCancelled
		}
		var b bytes.Buffer
		table := render.NewTable(&b)
		v := shown{Job: offpeak.Job{ID: id, State: state, Reason: end.Reason}}
		v.table(table, time.Now(), func(n offpeak.NodeID) string { return string(n) })
		if err := table.Flush(); err != nil {
			t.Fatal(err)
		}
		fields := map[string]string{}
		for line := range strings.SplitSeq(b.String(), "\n") {
			name, value, _ := strings.Cut(line, "  ")
			fields[name] = strings.TrimSpace(value)
		}
		if fields["Why"] != end.Sentence || fields["Reason"] != string(end.Reason) {
			t.Errorf("%s: %q for reason %q", end.Reason, fields["Why"], fields["Reason"])
		}
		next := fields["Next"]
		if (next == "") != (state == offpeak.JobSucceeded) || strings.Contains(next, " JOB`") {
			t.Errorf("%s: next step %q", end.Reason, next)
		}
	}
}
