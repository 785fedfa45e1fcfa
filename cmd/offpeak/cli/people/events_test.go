package people

import (
	"encoding/json"
	"testing"

	"offpeak"
)

func TestTradeText(t *testing.T) {
	for _, tt := range []struct {
		e    offpeak.Event
		want string
	}{
		{offpeak.Event{Type: "node.ask", Data: json.RawMessage(`{"ask":{"gpu":250000,"cpu":30000}}`)}, "asks 0.25/h cpu 0.03/h"},
		{offpeak.Event{Type: "node.ask", Data: json.RawMessage(`{"ask":null}`)}, "asks nothing of anybody: it is offered to nobody"},
		{offpeak.Event{Type: "ask.plan", Node: "node_1", Data: json.RawMessage(`{"plan":{"ask":{"gpu":1}}}`)}, "plan set"},
		{offpeak.Event{Type: "ask.plan", Data: json.RawMessage(`{"plan":null}`)}, "plan of the account taken back"},
		{offpeak.Event{Type: "lease.renewed", Data: json.RawMessage(`{"term":2,"price":400000}`)}, "term 2 at 0.40/h"},
		{offpeak.Event{Type: "lease.stopping", Reason: offpeak.EndOutbid, Data: json.RawMessage(`{"job":"job_2","price":440000}`)}, "gives way to job_2 at 0.44/h"},
		{offpeak.Event{Type: "lease.stopping", Reason: offpeak.EndDrained}, ""},
		{offpeak.Event{Type: "account.created", Data: json.RawMessage(`{"name":"a"}`)}, ""},
	} {
		if got := tradeText(tt.e); got != tt.want {
			t.Errorf("%s %s: %q, want %q", tt.e.Type, tt.e.Data, got, tt.want)
		}
	}
}
