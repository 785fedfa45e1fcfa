package api

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"offpeak"
	"offpeak/wire"
)

// What can't be an array is refused, with the field and the rule, and makes nothing.
func TestGroupsRefused(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{})
	for body, rule := range map[string]string{
		`{"spec":SPEC}`:                                                                                            "array.indexes",
		`{"spec":SPEC,"array":{}}`:                                                                                 "at least one index",
		`{"spec":SPEC,"array":{"indexes":""}}`:                                                                     "whole numbers",
		`{"spec":SPEC,"array":{"indexes":"9-0"}}`:                                                                  "run upward",
		`{"spec":SPEC,"array":{"indexes":"-1"}}`:                                                                   "whole numbers",
		`{"spec":SPEC,"array":{"indexes":7}}`:                                                                      "a string",
		`{"spec":SPEC,"array":{"indexes":"0-100000"}}`:                                                             "at most 100000",
		`{"spec":SPEC,"array":{"indexes":"0-9","at_once":-1}}`:                                                     "array.at_once",
		`{"spec":SPEC,"array":{"indexes":"0-9","at_once":NaN}}`:                                                    "one JSON value",
		`{"spec":SPEC,"array":{"gang":1}}`:                                                                         "array.gang",
		`{"spec":SPEC,"array":{"gang":2,"indexes":"0-1"}}`:                                                         "without a gang",
		`{"spec":SPEC,"array":{"gang":"2"}}`:                                                                       "whole number",
		`{"spec":SPEC,"array":{"indexes":"0-9","most":1}}`:                                                         "array.most",
		`{"spec":SPEC,"array":{"sweep":[{"name":"a","values":[]}]}}`:                                               "at least one value",
		`{"spec":SPEC,"array":{"sweep":[{"name":"a","values":["NaN"]}]}}`:                                          "finite",
		`{"spec":SPEC,"array":{"sweep":[{"name":"a","values":[1]}]}}`:                                              "a string",
		`{"spec":SPEC,"array":{"sweep":[{"name":"a=b","values":["1"]}]}}`:                                          "environment variable",
		`{"spec":{"task":{"driver":"x","command":["a"]},"requirements":{},"limits":{}},"array":{"indexes":"0-9"}}`: "task.driver",
	} {
		body = strings.Replace(body, "SPEC", `{"task":{"driver":"process","command":["true"],"checkpoint":{}},"requirements":{},"limits":{}}`, 1)
		req, err := http.NewRequestWithContext(g.ctx(), http.MethodPost, g.url+"/v1/groups", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+g.admin.Token)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set(wire.HeaderOperation, string(g.op()))
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var said strings.Builder
		_, _ = io.Copy(&said, resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusUnprocessableEntity && resp.StatusCode != http.StatusBadRequest || !strings.Contains(said.String(), rule) {
			t.Errorf("%s is answered %d %s, want the rule %q", body, resp.StatusCode, said.String(), rule)
		}
	}
	if list, err := g.admin.Groups(g.ctx(), nil); err != nil || len(list.Items) != 0 {
		t.Errorf("there are %d groups, %v", len(list.Items), err)
	}
	if _, err := g.admin.Group(g.ctx(), "group_none"); !errors.Is(err, offpeak.ErrNotFound) {
		t.Errorf("a group that is none: %v", err)
	}
}

// Submitted twice by one operation it is one; with another body it is a conflict.
func TestGroupsOnce(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{})
	in := wire.NewGroup{Spec: spec(), Array: offpeak.Array{Indexes: offpeak.Indexes{{First: 5, Last: 9}}, AtOnce: 2}}
	op := g.op()
	first, err := g.admin.SubmitGroup(g.ctx(), op, in)
	if err != nil {
		t.Fatal(err)
	}
	again, err := g.admin.SubmitGroup(g.ctx(), op, in)
	if err != nil || again.ID != first.ID || again.Array.Indexes.String() != "5-9" || again.Array.AtOnce != 2 {
		t.Errorf("the same operation = %+v, %v", again, err)
	}
	in.Array.AtOnce = 3
	if _, err := g.admin.SubmitGroup(g.ctx(), op, in); !errors.Is(err, offpeak.ErrOperationConflict) {
		t.Errorf("another body: %v", err)
	}
	if _, err := g.admin.RetryGroup(g.ctx(), g.op(), first.ID, wire.GroupRetry{Failed: true}); !errors.Is(err, offpeak.ErrConflict) {
		t.Errorf("retry of what failed where nothing has: %v", err)
	}
	cancelled, err := g.admin.CancelGroup(g.ctx(), g.op(), first.ID)
	if err != nil || cancelled.State != offpeak.JobCancelled || cancelled.Counts[offpeak.JobCancelled] != 5 {
		t.Errorf("cancelled = %+v, %v", cancelled, err)
	}
	if done, err := g.admin.WaitGroup(g.ctx(), first.ID, 1e9); err != nil || !done.State.Terminal() {
		t.Errorf("waited for = %+v, %v", done, err)
	}
	retried, err := g.admin.RetryGroup(g.ctx(), g.op(), first.ID, wire.GroupRetry{})
	if err != nil || retried.RetryOf != first.ID || retried.Members != 5 {
		t.Errorf("retried = %+v, %v", retried, err)
	}
	jobs, err := g.admin.Jobs(g.ctx(), map[string][]string{"group": {string(retried.ID)}})
	if err != nil || len(jobs.Items) != 5 || jobs.Items[4].RetryOf != first.ID.Member(5) {
		t.Errorf("its members = %+v, %v", jobs, err)
	}
	if jobs, err := g.admin.Jobs(g.ctx(), map[string][]string{"group": {"none"}}); err != nil || len(jobs.Items) != 0 {
		t.Errorf("jobs alone = %+v, %v", jobs, err)
	}
}
