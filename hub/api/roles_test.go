package api

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"offpeak"
	"offpeak/hub/access"
	"offpeak/wire"
)

// Every route of the table, asked with every role and without a token: who is
// admitted is exactly who the table says.
func TestRolesMatrix(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{})
	_, members := g.account("acme")
	node := g.enrol(members[offpeak.RoleOwner], "n1")
	join, err := g.admin.CreateToken(g.ctx(), g.op(), wire.NewToken{Role: offpeak.RoleJoin})
	if err != nil {
		t.Fatal(err)
	}
	joined, err := wire.DecodeJoinToken(join.Secret)
	if err != nil {
		t.Fatal(err)
	}
	tokens := map[offpeak.Role]string{
		"":                    "",
		offpeak.RoleAdmin:     g.admin.Token,
		offpeak.RoleOwner:     members[offpeak.RoleOwner].Token,
		offpeak.RoleSubmitter: members[offpeak.RoleSubmitter].Token,
		offpeak.RoleViewer:    members[offpeak.RoleViewer].Token,
		offpeak.RoleNode:      node.Token,
		offpeak.RoleJoin:      joined.Token,
	}
	routes := g.api.routes()
	// A node that left can ask no more.
	slices.SortStableFunc(routes, func(a, b route) int {
		return strings.Compare(a.path[strings.LastIndex(a.path, "/"):], b.path[strings.LastIndex(b.path, "/"):])
	})
	slices.SortStableFunc(routes, func(a, b route) int {
		last := func(r route) int {
			if r.path == "/v1/node/leave" {
				return 1
			}
			return 0
		}
		return last(a) - last(b)
	})
	public := map[string]bool{
		"GET /v1/health": true, "GET /v1/openapi.json": true, "GET /v1/openapi.yaml": true,
		"POST /v1/node/challenge": true, "POST /v1/node/session": true,
	}
	client := wire.Client("")
	defer client.CloseIdleConnections()
	for _, rt := range routes {
		name := rt.method + " " + rt.path
		if (rt.roles == nil) != public[name] {
			t.Errorf("%s: public is %v", name, rt.roles == nil)
		}
		for role, token := range tokens {
			path := strings.NewReplacer("{hash}", strings.Repeat("a", 64), "{", "x", "}", "x").Replace(rt.path)
			var body io.Reader
			if rt.method != http.MethodGet {
				body = strings.NewReader("{}")
			}
			req, err := http.NewRequestWithContext(g.ctx(), rt.method, g.url+path, body)
			if err != nil {
				t.Fatal(err)
			}
			if token != "" {
				req.Header.Set("Authorization", "Bearer "+token)
			}
			req.Header.Set(wire.HeaderOperation, string(g.op()))
			resp, err := client.Do(req)
			if err != nil {
				t.Fatalf("%s as %q: %v", name, role, err)
			}
			resp.Body.Close()
			want := "admitted"
			switch {
			case rt.roles != nil && role == "":
				want = "401"
			case rt.roles != nil && !slices.Contains(rt.roles, role):
				want = "403"
			}
			got := "admitted"
			if resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden {
				got = resp.Status[:3]
			}
			// A session's route is public, and what it is sent here is signed by nobody.
			if rt.signed && got == "401" {
				got = "admitted"
			}
			if got != want {
				t.Errorf("%s as %q: %s (%s), want %s", name, role, got, resp.Status, want)
			}
			if resp.StatusCode >= 500 && resp.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("%s as %q: %s", name, role, resp.Status)
			}
			if resp.Header.Get("X-Content-Type-Options") != "nosniff" || resp.Header.Get("Cache-Control") != "no-store" {
				t.Errorf("%s as %q: headers %v", name, role, resp.Header)
			}
		}
	}
}

func TestUnknownRoutes(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{})
	for _, tc := range []struct {
		method, path, token string
		status              int
		code                string
	}{
		{"GET", "/v1/nothing", "", 401, "unauthenticated"},
		{"GET", "/v1/nothing", g.admin.Token, 404, "not_found"},
		{"GET", "/", g.admin.Token, 404, "not_found"},
		{"PATCH", "/v1/jobs", g.admin.Token, 405, "method_not_allowed"},
		{"DELETE", "/v1/node/heartbeat", g.admin.Token, 405, "method_not_allowed"},
		{"GET", "/v1/jobs?colour=red", g.admin.Token, 422, "invalid"},
		{"GET", "/v1/jobs?limit=0", g.admin.Token, 422, "invalid"},
		{"GET", "/v1/jobs?limit=1001", g.admin.Token, 422, "invalid"},
		{"GET", "/v1/jobs?state=asleep", g.admin.Token, 422, "invalid"},
		{"GET", "/v1/events?after=x", g.admin.Token, 422, "invalid"},
	} {
		status, p := g.raw(tc.method, tc.path, tc.token, nil, nil)
		if status != tc.status || p.Code != tc.code || p.Next == "" && tc.code != "not_found" {
			t.Errorf("%s %s: %d %+v, want %d %s", tc.method, tc.path, status, p, tc.status, tc.code)
		}
	}
}

// A token of one account learns nothing of another account's objects, not even
// that they are there.
func TestAccountsAreApart(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{})
	ctx := g.ctx()
	acme, ours := g.account("acme")
	_, theirs := g.account("rival")
	job, err := ours[offpeak.RoleSubmitter].Submit(ctx, g.op(), spec())
	if err != nil {
		t.Fatal(err)
	}
	group, err := ours[offpeak.RoleSubmitter].SubmitGroup(ctx, g.op(), wire.NewGroup{Spec: spec(), Array: offpeak.Array{Indexes: offpeak.Indexes{{First: 0, Last: 199}}}})
	if err != nil {
		t.Fatal(err)
	}
	node := g.enrol(ours[offpeak.RoleOwner], "n1")
	pipe, err := ours[offpeak.RoleSubmitter].SubmitPipeline(ctx, g.op(), offpeak.Pipeline{Steps: []offpeak.Step{{Spec: offpeak.Spec{Name: "a", Task: spec().Task}}}})
	if err != nil {
		t.Fatal(err)
	}
	spy := theirs[offpeak.RoleSubmitter]
	spyOwner := theirs[offpeak.RoleOwner]
	ourTokens, err := ours[offpeak.RoleViewer].Tokens(ctx, nil)
	if err != nil || len(ourTokens.Items) == 0 {
		t.Fatal(ourTokens, err)
	}
	does := func(_ any, err error) error { return err }
	closes := func(b io.ReadCloser, err error) error {
		if err == nil {
			b.Close()
		}
		return err
	}
	for name, err := range map[string]error{
		"job":         does(spy.Job(ctx, job.ID)),
		"attempts":    does(spy.Attempts(ctx, job.ID)),
		"checkpoints": does(spy.Checkpoints(ctx, job.ID)),
		"explain":     does(spy.Explain(ctx, job.ID)),
		"wait":        does(spy.WaitJob(ctx, job.ID, 1)),
		"cancel":      does(spy.Cancel(ctx, g.op(), job.ID)),
		"retry":       does(spy.Retry(ctx, g.op(), job.ID)),
		"group":       does(spy.Group(ctx, group.ID)),
		"wait group":  does(spy.WaitGroup(ctx, group.ID, 1)),
		"cancel all":  does(spy.CancelGroup(ctx, g.op(), group.ID)),
		"retry all":   does(spy.RetryGroup(ctx, g.op(), group.ID, wire.GroupRetry{})),
		"members of":  does(spy.Jobs(ctx, map[string][]string{"group": {string(group.ID)}})),
		"a member":    does(spy.Job(ctx, group.ID.Member(199))),
		"cancel one":  does(spy.Cancel(ctx, g.op(), group.ID.Member(199))),
		"pipeline":    does(spy.Pipeline(ctx, pipe.ID)),
		"cancel pipe": does(spy.CancelPipeline(ctx, g.op(), pipe.ID)),
		"retry pipe":  does(spy.RetryPipeline(ctx, g.op(), pipe.ID)),
		"logs":        closes(spy.Logs(ctx, job.ID, 0, "stdout", 0, true)),
		"log":         closes(spy.FollowLog(ctx, job.ID, "", true)),
		"events":      closes(spy.Events(ctx, "0", job.ID)),
		"node":        does(spy.Node(ctx, node.node)),
		"intent":      does(spyOwner.SetIntent(ctx, g.op(), node.node, wire.IntentChange{Intent: offpeak.NodeDraining})),
		"remove":      spyOwner.RemoveNode(ctx, g.op(), node.node),
		"revoke":      spyOwner.RevokeToken(ctx, g.op(), ourTokens.Items[0].ID),
		"members":     does(spy.Members(ctx, acme)),
	} {
		if !errors.Is(err, offpeak.ErrNotFound) {
			t.Errorf("%s of another account: %v, want not found", name, err)
		}
	}
	if jobs, err := spy.Jobs(ctx, nil); err != nil || len(jobs.Items) != 0 {
		t.Errorf("jobs of another account are listed: %v, %v", jobs, err)
	}
	if groups, err := spy.Groups(ctx, nil); err != nil || len(groups.Items) != 0 {
		t.Errorf("groups of another account are listed: %v, %v", groups, err)
	}
	if _, err := spy.Submit(ctx, g.op(), spec(), offpeak.After{Job: job.ID}); !errors.Is(err, offpeak.ErrInvalid) || !strings.Contains(err.Error(), string(job.ID)) {
		t.Errorf("a job after another account's: %v, want it refused by name", err)
	}
	if _, err := spy.Foretell(ctx, spec(), offpeak.After{Job: job.ID}); !errors.Is(err, offpeak.ErrInvalid) || !strings.Contains(err.Error(), string(job.ID)) {
		t.Errorf("a job foretold after another account's: %v, want it refused by name", err)
	}
	if e, err := spy.Foretell(ctx, spec()); err != nil || len(e.Nodes) != 1 || e.Nodes[0].Name != "" {
		t.Errorf("a job foretold names another account's node: %+v, %v", e, err)
	}
	if _, err := ours[offpeak.RoleViewer].Foretell(ctx, spec()); !errors.Is(err, offpeak.ErrForbidden) {
		t.Errorf("a viewer foretells: %v", err)
	}
	if nodes, err := spy.Nodes(ctx, nil); err != nil || len(nodes.Items) != 0 {
		t.Errorf("nodes of another account are listed: %v, %v", nodes, err)
	}
	if _, err := spy.Jobs(ctx, map[string][]string{"account": {string(acme)}}); !errors.Is(err, offpeak.ErrForbidden) {
		t.Errorf("another account was chosen: %v", err)
	}
	if _, err := g.admin.Job(ctx, job.ID); err != nil {
		t.Errorf("an admin: %v", err)
	}
	if jobs, err := g.admin.Jobs(ctx, map[string][]string{"account": {string(acme)}}); err != nil || len(jobs.Items) < 2 {
		t.Errorf("an admin's list of one account: %v, %v", jobs, err)
	}
	if got, err := ours[offpeak.RoleViewer].Job(ctx, job.ID); err != nil || got.State != offpeak.JobQueued {
		t.Errorf("the job was touched: %v, %v", got.State, err)
	}
}

// Nobody makes a token that may do more than their own.
func TestTokensDoNotGrow(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{})
	_, m := g.account("acme")
	for by, d := range m {
		for _, role := range []offpeak.Role{offpeak.RoleAdmin, offpeak.RoleOwner, offpeak.RoleSubmitter, offpeak.RoleViewer, offpeak.RoleJoin} {
			_, err := d.CreateToken(g.ctx(), g.op(), wire.NewToken{Role: role})
			if may := slices.Contains(access.Grants(by), role); may != (err == nil) {
				t.Errorf("%s makes %s: %v", by, role, err)
			} else if !may && !errors.Is(err, offpeak.ErrForbidden) {
				t.Errorf("%s makes %s: %v, want forbidden", by, role, err)
			}
		}
	}
	if _, err := m[offpeak.RoleOwner].CreateToken(g.ctx(), g.op(), wire.NewToken{Role: offpeak.RoleOwner, Account: g.home}); !errors.Is(err, offpeak.ErrForbidden) {
		t.Errorf("a token of another account: %v", err)
	}
	if _, err := g.admin.CreateToken(g.ctx(), g.op(), wire.NewToken{Role: offpeak.RoleNode}); !errors.Is(err, offpeak.ErrInvalid) {
		t.Errorf("a node's session by hand: %v", err)
	}
}

// An account that is not there is no empty list: an admin mistyped it.
func TestUnknownAccountIsNotFound(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{})
	ctx := g.ctx()
	if _, err := g.admin.Jobs(ctx, url.Values{"account": {"acct_none"}}); !errors.Is(err, offpeak.ErrNotFound) {
		t.Errorf("jobs of an unknown account: %v", err)
	}
	if body, err := g.admin.Events(ctx, "0", ""); err != nil {
		t.Errorf("events of all accounts: %v", err)
	} else {
		body.Close()
	}
	who, err := g.admin.Whoami(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.admin.Jobs(ctx, url.Values{"account": {string(who.Account.ID)}}); err != nil {
		t.Errorf("jobs of one's own account: %v", err)
	}
}
