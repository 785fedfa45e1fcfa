package api

import (
	"context"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"offpeak"
	"offpeak/wire"
)

// route is one row of the table: what is asked, who may ask, what is read.
type route struct {
	method, path string
	// roles are who is admitted; nil: everyone, without a token.
	roles []offpeak.Role
	// signed says that a public route checks a signature instead of a token, so
	// that its failures count against the address.
	signed bool
	// mutates says that the route needs an operation id.
	mutates bool
	// limit bounds a body that the gate reads; 0: the route has none, or its
	// handler reads it.
	limit int64
	// stream says that the answer has no end of its own.
	stream bool

	summary, detail string
	// status is what success answers. Default 200, 204 without an answer.
	status int
	// body is the type of a JSON body, raw says that it is bytes.
	body reflect.Type
	raw  bool
	// query, answer and content describe a plain route.
	query   []param
	answer  reflect.Type
	content string

	// mount registers a typed route, serve is the handler of a plain one.
	mount func(a *api, api huma.API, op huma.Operation)
	serve handler

	seen *routeMetrics
}

type param struct{ name, doc string }

// The sets of roles that routes admit.
func everyone() []offpeak.Role {
	return append(people(), offpeak.RoleNode, offpeak.RoleJoin)
}
func people() []offpeak.Role {
	return []offpeak.Role{offpeak.RoleAdmin, offpeak.RoleOwner, offpeak.RoleSubmitter, offpeak.RoleViewer}
}
func submitters() []offpeak.Role { return []offpeak.Role{offpeak.RoleAdmin, offpeak.RoleSubmitter} }
func owners() []offpeak.Role     { return []offpeak.Role{offpeak.RoleAdmin, offpeak.RoleOwner} }
func granters() []offpeak.Role {
	return []offpeak.Role{offpeak.RoleAdmin, offpeak.RoleOwner, offpeak.RoleSubmitter}
}
func admins() []offpeak.Role { return []offpeak.Role{offpeak.RoleAdmin} }
func nodes() []offpeak.Role  { return []offpeak.Role{offpeak.RoleNode} }

// routes is the table of everything that can be asked of a hub.
func (a *api) routes() []route {
	const get, post, put, del = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete
	json := int64(wire.MaxBody)
	table := []route{
		{method: get, path: "/v1/health", summary: "Is the hub well", mount: answers((*api).health)},
		{method: get, path: "/v1/openapi.json", summary: "This document as JSON", serve: a.documentJSON, content: "application/vnd.oai.openapi+json"},
		{method: get, path: "/v1/openapi.yaml", summary: "This document as YAML", serve: a.documentYAML, content: "application/vnd.oai.openapi+yaml"},
		{method: get, path: "/v1/whoami", roles: append(people(), offpeak.RoleNode), summary: "Whose token this is", mount: answers((*api).whoami)},
		{method: get, path: "/v1/metrics", roles: admins(), summary: "Metrics in the format of Prometheus", serve: a.metrics.serve, content: "text/plain"},
		{method: get, path: "/v1/check", roles: admins(), summary: "Run the invariants on the live store", mount: answers((*api).check)},
		{method: get, path: "/v1/hubs", roles: people(), summary: "The hubs of the grid that were at work in the last day", mount: answers((*api).listHubs)},
		{method: post, path: "/v1/backup", roles: admins(), mutates: true, limit: json, body: typeOf[wire.NewBackup](), summary: "Write a backup on the hub's machine", mount: does((*api).backup)},

		{method: post, path: "/v1/jobs", roles: submitters(), mutates: true, limit: json, body: typeOf[wire.NewJob](), status: http.StatusCreated, summary: "Submit a job", mount: answers((*api).submit)},
		{method: post, path: "/v1/pipelines", roles: submitters(), mutates: true, limit: json, body: typeOf[offpeak.Pipeline](), status: http.StatusCreated, summary: "Submit jobs that wait for each other, all or none", mount: answers((*api).submitPipeline)},
		{method: get, path: "/v1/pipelines/{pipeline}", roles: people(), summary: "The jobs of a pipeline, in the order of its steps", mount: answers((*api).pipeline)},
		{method: post, path: "/v1/pipelines/{pipeline}/cancel", roles: submitters(), mutates: true, summary: "Cancel the jobs of a pipeline that have not ended", mount: answers((*api).cancelPipeline)},
		{method: post, path: "/v1/pipelines/{pipeline}/retry", roles: submitters(), mutates: true, status: http.StatusCreated, summary: "Submit the steps of an ended pipeline again that did not succeed, as a pipeline of their own", mount: answers((*api).retryPipeline)},
		{method: get, path: "/v1/jobs", roles: people(), summary: "List jobs, newest first", mount: answers((*api).jobs)},
		{method: get, path: "/v1/jobs/{job}", roles: people(), summary: "One job; with wait, once it has ended", mount: answers((*api).job)},
		{method: get, path: "/v1/jobs/{job}/attempts", roles: people(), summary: "A job's leases, oldest first", mount: answers((*api).attempts)},
		{method: get, path: "/v1/jobs/{job}/checkpoints", roles: people(), summary: "A job's stored checkpoints, newest first", mount: answers((*api).checkpoints)},
		{method: get, path: "/v1/jobs/{job}/explain", roles: people(), summary: "Why a job waits, or where it runs", mount: answers((*api).explain)},
		{method: post, path: "/v1/explain", roles: submitters(), limit: json, body: typeOf[wire.NewJob](), summary: "What would become of a job if it were submitted now; nothing is stored", mount: answers((*api).foretell)},
		{method: post, path: "/v1/jobs/{job}/cancel", roles: submitters(), mutates: true, summary: "Cancel a job", mount: answers((*api).cancel)},
		{method: post, path: "/v1/jobs/{job}/retry", roles: submitters(), mutates: true, status: http.StatusCreated, summary: "Submit an ended job again", mount: answers((*api).retry)},
		{method: get, path: "/v1/jobs/{job}/logs", roles: people(), stream: true, summary: "The bytes of one stream of one attempt",
			query:   []param{{"attempt", "0 or absent: the newest"}, {"stream", "stdout (default) or stderr"}, {"offset", "where to begin"}, {"follow", "true: go on until the attempt has ended"}},
			content: "application/octet-stream", serve: a.logs},
		{method: get, path: "/v1/jobs/{job}/log", roles: people(), stream: true, summary: "The log of all attempts and both streams, one JSON record a line",
			query:   []param{{"after", "attempt.n of the last record that was read"}, {"follow", "true: go on until the job has ended"}},
			content: "application/x-ndjson", answer: typeOf[wire.LogRecord](), serve: a.records},
		{method: post, path: "/v1/groups", roles: submitters(), mutates: true, limit: json, body: typeOf[wire.NewGroup](), status: http.StatusCreated, summary: "Submit an array of jobs", mount: answers((*api).submitGroup)},
		{method: get, path: "/v1/groups", roles: people(), summary: "List arrays of jobs, newest first", mount: answers((*api).groups)},
		{method: get, path: "/v1/groups/{group}", roles: people(), summary: "One array of jobs with its members counted; with wait, once they have ended", mount: answers((*api).group)},
		{method: post, path: "/v1/groups/{group}/cancel", roles: submitters(), mutates: true, summary: "Cancel the members that have not ended", mount: answers((*api).cancelGroup)},
		{method: post, path: "/v1/groups/{group}/retry", roles: submitters(), mutates: true, limit: json, body: typeOf[wire.GroupRetry](), status: http.StatusCreated, summary: "Submit members again, as a new group with their indexes", mount: answers((*api).retryGroup)},
		{method: get, path: "/v1/events", roles: people(), stream: true, summary: "The stream of events",
			detail:  "Server-sent events. Without a place to go on from, only new ones. The id of each is where to go on: send it as Last-Event-ID or as after. An event named resync says that events were lost to retention: read anew what you show.",
			query:   []param{{"after", "the cursor to go on from; 0 is the oldest kept"}, {"job", "only this job's"}, {"account", "admins only: one account's"}},
			content: "text/event-stream", answer: typeOf[offpeak.Event](), serve: a.events},

		{method: post, path: "/v1/blobs/missing", roles: submitters(), limit: json, body: typeOf[wire.Hashes](), summary: "Which of these blobs the account does not have", mount: answers((*api).missing)},
		{method: put, path: "/v1/blobs/{hash}", roles: submitters(), raw: true, status: http.StatusNoContent, summary: "Store a blob of at most 8 MiB", serve: a.putBlob},
		{method: get, path: "/v1/blobs/{hash}", roles: people(), summary: "The bytes of a blob", content: "application/octet-stream", serve: a.getBlob},
		{method: post, path: "/v1/trees", roles: submitters(), limit: json, body: typeOf[wire.Tree](), summary: "Declare a stored blob to be a tree", mount: does((*api).commit)},

		{method: get, path: "/v1/nodes", roles: people(), summary: "List nodes", mount: answers((*api).listNodes)},
		{method: get, path: "/v1/nodes/{node}", roles: people(), summary: "One node", mount: answers((*api).node)},
		{method: post, path: "/v1/nodes/{node}/intent", roles: owners(), mutates: true, limit: json, body: typeOf[wire.IntentChange](), summary: "Order a node open, draining or closed", mount: answers((*api).setIntent)},
		{method: post, path: "/v1/nodes/{node}/trust", roles: admins(), mutates: true, summary: "End a node's quarantine", detail: "What is held against the node is forgotten: it takes all work at once. For who knows that it was mended.", mount: answers((*api).trustNode)},
		{method: del, path: "/v1/nodes/{node}", roles: owners(), mutates: true, summary: "Forget a node", mount: does((*api).removeNode)},

		{method: get, path: "/v1/nodes/{node}/ask", roles: people(), summary: "What a node asks now, and by which plan", mount: answers((*api).nodeAsk)},
		{method: put, path: "/v1/nodes/{node}/ask", roles: owners(), mutates: true, limit: json, body: typeOf[wire.AskPlan](), summary: "Set what is asked for a node", mount: answers((*api).setNodeAsk)},
		{method: del, path: "/v1/nodes/{node}/ask", roles: owners(), mutates: true, summary: "Take a node's own plan back: it goes by its account's, or costs nothing", mount: answers((*api).clearNodeAsk)},
		{method: get, path: "/v1/nodes/{node}/ask/history", roles: people(), summary: "What a node asked, newest first", mount: answers((*api).askHistory)},
		{method: post, path: "/v1/nodes/{node}/ask/suggest", roles: owners(), limit: json, body: typeOf[wire.SuggestRequest](), summary: "Propose an ask and show its sum", mount: answers((*api).suggestAsk)},
		{method: get, path: "/v1/market", roles: people(), summary: "The order book by class of device", mount: answers((*api).market)},
		{method: get, path: "/v1/market/history", roles: people(), summary: "What was paid, by segment and time", mount: answers((*api).candles)},
		{method: post, path: "/v1/quote", roles: people(), limit: json, body: typeOf[wire.QuoteRequest](), summary: "What a job would cost now, and what would be cheaper", mount: answers((*api).quote)},

		{method: get, path: "/v1/weights", roles: people(), summary: "What placement weighs now", mount: answers((*api).weights)},
		{method: put, path: "/v1/weights", roles: admins(), mutates: true, limit: json, body: typeOf[wire.NewWeights](), summary: "Change what placement weighs, at once and in every hub", mount: answers((*api).setWeights)},
		{method: get, path: "/v1/weights/history", roles: people(), summary: "The versions of the weights, newest first", mount: answers((*api).weightsHistory)},

		{method: post, path: "/v1/tokens", roles: granters(), mutates: true, limit: json, body: typeOf[wire.NewToken](), status: http.StatusCreated, summary: "Make a token; its secret is shown once", mount: answers((*api).createToken)},
		{method: get, path: "/v1/tokens", roles: people(), summary: "List tokens, without their secrets", mount: answers((*api).listTokens)},
		{method: del, path: "/v1/tokens/{token}", roles: granters(), mutates: true, summary: "End a token at once", mount: does((*api).revokeToken)},
		{method: post, path: "/v1/accounts", roles: admins(), mutates: true, limit: json, body: typeOf[wire.NewAccount](), status: http.StatusCreated, summary: "Make an account", mount: answers((*api).createAccount)},
		{method: get, path: "/v1/accounts", roles: admins(), summary: "List accounts", mount: answers((*api).listAccounts)},
		{method: put, path: "/v1/accounts/{account}/quota", roles: admins(), mutates: true, limit: json, body: typeOf[offpeak.Quota](), summary: "Bound what an account may use", mount: answers((*api).setQuota)},
		{method: post, path: "/v1/accounts/{account}/members", roles: admins(), mutates: true, limit: json, body: typeOf[wire.NewMember](), status: http.StatusCreated, summary: "Add a member; their token is shown once", mount: answers((*api).invite)},
		{method: get, path: "/v1/accounts/{account}/members", roles: people(), summary: "List an account's members", mount: answers((*api).members)},
		{method: del, path: "/v1/accounts/{account}/members/{member}", roles: admins(), mutates: true, summary: "Remove a member and revoke their tokens", mount: does((*api).removeMember)},
		{method: get, path: "/v1/accounts/{account}/ask", roles: people(), summary: "What is asked for an account's nodes that have no plan of their own", mount: answers((*api).accountAsk)},
		{method: put, path: "/v1/accounts/{account}/ask", roles: owners(), mutates: true, limit: json, body: typeOf[wire.AskPlan](), summary: "Set what is asked for an account's nodes that have no plan of their own", mount: answers((*api).setAccountAsk)},
		{method: del, path: "/v1/accounts/{account}/ask", roles: owners(), mutates: true, summary: "Take an account's plan back", mount: answers((*api).clearAccountAsk)},

		{method: get, path: "/v1/balance", roles: people(), summary: "What an account has available, and what is held for its leases", mount: answers((*api).balance)},
		{method: get, path: "/v1/balance/grid", roles: admins(), summary: "The sums of the ledger: what came in, went out, is there, was earned", mount: answers((*api).gridBalance)},
		{method: get, path: "/v1/jobs/{job}/receipt", roles: people(), summary: "What a job's settled attempts cost, a line for each attempt and price term",
			detail: "An account sees the lines that it paid or was paid by. Total is their sum.", mount: answers((*api).receipt)},
		{method: get, path: "/v1/statement", roles: people(), summary: "What changed an account's balances, the oldest first, one JSON object a line",
			detail:  "With format=csv or Accept: text/csv it is CSV, with amounts in credits.",
			query:   []param{{"account", "admins only: one account's"}, {"from", "RFC 3339: from this moment on"}, {"until", "RFC 3339: before this moment"}, {"format", "json (default) or csv"}},
			content: "application/x-ndjson", answer: typeOf[wire.StatementLine](), serve: a.statement},
		{method: post, path: "/v1/deposits", roles: admins(), mutates: true, limit: json, body: typeOf[wire.NewMovement](), status: http.StatusCreated, summary: "Put money into an account; the same reference counts once", mount: answers((*api).deposit)},
		{method: post, path: "/v1/deposits/batch", roles: admins(), mutates: true, limit: wire.MaxBatch, raw: true, summary: "Post the deposits of a signed batch", mount: answers((*api).importDeposits)},
		{method: post, path: "/v1/payouts", roles: admins(), mutates: true, limit: json, body: typeOf[wire.NewMovement](), status: http.StatusCreated, summary: "Take money out of an account", mount: answers((*api).payout)},
		{method: post, path: "/v1/payouts/batch", roles: admins(), mutates: true, limit: json, body: typeOf[wire.NewPayouts](), summary: "Post payouts and get them as a signed batch; the same name and options give the same bytes, with the header Offpeak-Again", content: "text/csv", serve: a.exportPayouts},
		{method: post, path: "/v1/payouts/grid", roles: admins(), mutates: true, limit: json, body: typeOf[wire.NewGridPayout](), status: http.StatusCreated, summary: "Take out what the operator earned, or what rounding left", mount: answers((*api).gridPayout)},
		{method: post, path: "/v1/payouts/returned", roles: admins(), mutates: true, limit: json, body: typeOf[wire.NewReturn](), status: http.StatusCreated, summary: "Give back a payout that did not arrive", mount: answers((*api).returnPayout)},

		{method: post, path: "/v1/node/enrol", roles: []offpeak.Role{offpeak.RoleJoin}, limit: json, body: typeOf[wire.Enrol](), status: http.StatusCreated, summary: "Turn a join token into a node", mount: answers((*api).enrol)},
		{method: post, path: "/v1/node/challenge", signed: true, summary: "Something to sign", mount: answers((*api).challenge)},
		{method: post, path: "/v1/node/session", signed: true, limit: json, body: typeOf[wire.OpenSession](), summary: "Open a node's session, by signature", mount: answers((*api).openSession)},
		{method: post, path: "/v1/node/heartbeat", roles: nodes(), limit: json, body: typeOf[wire.Heartbeat](), answer: typeOf[wire.Sync](), summary: "Report what a node holds, learn what it should hold", serve: a.heartbeat},
		{method: get, path: "/v1/node/stream", roles: nodes(), stream: true, summary: "What the node should hold, whenever it changes", content: "application/x-ndjson", answer: typeOf[wire.Sync](), serve: a.stream},
		{method: post, path: "/v1/node/reports", roles: nodes(), limit: json, body: typeOf[wire.Reports](), answer: typeOf[wire.ReportResults](), summary: "Report how leases fare", serve: a.reports},
		{method: put, path: "/v1/node/inventory", roles: nodes(), limit: json, body: typeOf[offpeak.Inventory](), summary: "Say what the node has", mount: does((*api).setInventory)},
		{method: put, path: "/v1/node/readings", roles: nodes(), limit: json, body: typeOf[wire.Readings](), summary: "Say what the node's devices do now", mount: does((*api).setReadings)},
		{method: get, path: "/v1/node/earnings", roles: nodes(), summary: "What the node that asks brought its owner", mount: answers((*api).earned)},
		{method: post, path: "/v1/node/leave", roles: nodes(), summary: "Remove the node that asks", mount: does((*api).leave)},
		{method: get, path: "/v1/node/leases/{lease}", roles: nodes(), summary: "A lease with what is needed to run it", mount: answers((*api).work)},
		{method: post, path: "/v1/node/leases/{lease}/logs", roles: nodes(), limit: int64(wire.MaxInlineLog), raw: true, answer: typeOf[wire.LogEnd](), summary: "Append to a lease's log",
			query: []param{{"attempt", "the lease's attempt"}, {"stream", "stdout or stderr"}, {"offset", "where the piece begins"}}, serve: a.appendLog},
		{method: post, path: "/v1/node/leases/{lease}/checkpoints", roles: nodes(), limit: json, body: typeOf[wire.NewCheckpoint](), status: http.StatusCreated, summary: "Declare a stored tree to be a checkpoint", mount: answers((*api).addCheckpoint)},
		{method: post, path: "/v1/node/leases/{lease}/blobs/missing", roles: nodes(), limit: json, body: typeOf[wire.Hashes](), summary: "Which of these blobs the job's account does not have", mount: answers((*api).leaseMissing)},
		{method: put, path: "/v1/node/leases/{lease}/blobs/{hash}", roles: nodes(), raw: true, status: http.StatusNoContent, summary: "Store a blob for the job's account", serve: a.putLeaseBlob},
		{method: get, path: "/v1/node/leases/{lease}/blobs/{hash}", roles: nodes(), summary: "The bytes of a blob that the lease may read", content: "application/octet-stream", serve: a.getLeaseBlob},
		{method: post, path: "/v1/node/leases/{lease}/trees", roles: nodes(), limit: json, body: typeOf[wire.Tree](), summary: "Declare a stored blob to be a tree of the job's account", mount: does((*api).leaseCommit)},
	}
	for i := range table {
		if table[i].status == 0 && table[i].serve != nil {
			table[i].status = http.StatusOK
		}
	}
	return table
}

// none is the input of a route without parameters.
type none struct{}

// answer is how huma wants an answer with a body.
type answer[O any] struct{ Body O }

// answers makes a typed route of a method that answers something.
func answers[I, O any](do func(a *api, ctx context.Context, c *caller, in *I) (O, error)) func(*api, huma.API, huma.Operation) {
	return func(a *api, api huma.API, op huma.Operation) {
		huma.Register(api, op, func(ctx context.Context, in *I) (*answer[O], error) {
			c := callerOf(ctx)
			out, err := do(a, ctx, c, in)
			if err != nil {
				return nil, statusError{a.problem(c.Header(), op.Path, err)}
			}
			return &answer[O]{out}, nil
		})
	}
}

// does makes a typed route of a method that answers nothing.
func does[I any](do func(a *api, ctx context.Context, c *caller, in *I) error) func(*api, huma.API, huma.Operation) {
	return func(a *api, api huma.API, op huma.Operation) {
		huma.Register(api, op, func(ctx context.Context, in *I) (*none, error) {
			c := callerOf(ctx)
			if err := do(a, ctx, c, in); err != nil {
				return nil, statusError{a.problem(c.Header(), op.Path, err)}
			}
			return nil, nil
		})
	}
}
