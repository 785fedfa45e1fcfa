package follow

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"offpeak"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

// A job that ends between the question for its attempts and that for itself is
// told in order all the same: the end comes last.
func TestTheEndIsToldLast(t *testing.T) {
	now := time.Now()
	lease := offpeak.Lease{ID: "lease_1", Attempt: 1, Node: "node_1", State: offpeak.LeasePreparing}
	ended := false
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/jobs/job_1/attempts", func(w http.ResponseWriter, _ *http.Request) {
		l := lease
		if ended {
			l.State, l.StartedAt, l.Reason = offpeak.LeaseSucceeded, &now, offpeak.EndCompleted
		}
		_ = json.NewEncoder(w).Encode(wire.List[offpeak.Lease]{Items: []offpeak.Lease{l}})
	})
	mux.HandleFunc("GET /v1/jobs/job_1", func(w http.ResponseWriter, _ *http.Request) {
		ended = true
		_ = json.NewEncoder(w).Encode(offpeak.Job{ID: "job_1", State: offpeak.JobSucceeded, Attempt: 1, Reason: offpeak.EndCompleted})
	})
	mux.HandleFunc("GET /v1/nodes/node_1", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(offpeak.Node{ID: "node_1", Name: "tower"})
	})
	hub := httptest.NewServer(mux)
	defer hub.Close()
	h, err := remote.New(remote.Config{Target: remote.Target{Hubs: []string{hub.URL}, Token: "x"}})
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	var out bytes.Buffer
	f := New(Config{Env: world.Env{Stdout: &out, Stderr: &out}, Hub: h, Job: "job_1", Note: func(line string) { said = append(said, line) }})
	seen, err := f.look(context.Background(), false)
	if err != nil {
		t.Fatal(err)
	}
	f.tell(context.Background(), picture{}, seen)
	want := "attempt 1: leased on tower\nattempt 1: running on tower\nsucceeded: The job exited with code 0 and its outputs are stored."
	if got := strings.Join(said, "\n"); got != want {
		t.Errorf("said\n%s\nwant\n%s", got, want)
	}
}
