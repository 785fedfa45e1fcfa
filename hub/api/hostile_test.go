package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"offpeak"
	"offpeak/blob"
	"offpeak/wire"
)

// raw makes one request by hand and returns its status and the problem in it.
func (g *grid) raw(method, path, token string, header http.Header, body io.Reader) (int, wire.Problem) {
	g.t.Helper()
	req, err := http.NewRequestWithContext(g.ctx(), method, g.url+path, body)
	if err != nil {
		g.t.Fatal(err)
	}
	for name, v := range header {
		req.Header[name] = v
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	c := wire.Client("")
	defer c.CloseIdleConnections()
	resp, err := c.Do(req)
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, _ := io.ReadAll(resp.Body)
	var p wire.Problem
	if resp.StatusCode >= 400 {
		if ct := resp.Header.Get("Content-Type"); ct != "application/problem+json" {
			g.t.Errorf("%s %s: %d as %s: %s", method, path, resp.StatusCode, ct, data)
		}
		if err := json.Unmarshal(data, &p); err != nil || p.Status != resp.StatusCode {
			g.t.Errorf("%s %s: %d with %s: %v", method, path, resp.StatusCode, data, err)
		}
		if (resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable) && resp.Header.Get("Retry-After") == "" {
			g.t.Errorf("%s %s: %d without Retry-After", method, path, resp.StatusCode)
		}
	}
	return resp.StatusCode, p
}

func operation(op offpeak.OpID) http.Header { return http.Header{wire.HeaderOperation: {string(op)}} }

// What makes no sense is refused with its field and its rule, and changes nothing.
func TestHostileManifests(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{})
	const task = `"task":{"driver":"process","command":["true"]}`
	for _, tc := range []struct {
		name, body string
		status     int
		code       string
		field      string
		rule       string
	}{
		{"unknown field", `{` + task + `,"requirments":{}}`, 422, "invalid", "requirments", "is not known here"},
		{"a unit that is none", `{` + task + `,"requirements":{"gpus":[{"vram_bytes":"24GBB"}]}}`, 422, "invalid", "requirements.gpus[0].vram_bytes", "24GB"},
		{"negative size", `{` + task + `,"requirements":{"memory_bytes":-5}}`, 422, "invalid", "requirements.memory_bytes", "from 0"},
		{"negative word", `{` + task + `,"requirements":{"memory_bytes":"-5GB"}}`, 422, "invalid", "requirements.memory_bytes", "a size"},
		{"NaN", `{` + task + `,"requirements":{"cpu_milli":NaN}}`, 422, "invalid", "body", "byte"},
		{"over limits", `{` + task + `,"requirements":{"cpu_milli":99999999999}}`, 422, "invalid", "requirements.cpu_milli", "is from"},
		{"null", `null`, 422, "invalid", "task.driver", ""},
		{"null task", `{"task":null}`, 422, "invalid", "task.driver", ""},
		{"null size", `{` + task + `,"requirements":{"disk_bytes":null}}`, 422, "invalid", "requirements.disk_bytes", "a size"},
		{"a name of control bytes", `{` + task + `,"name":"\u0007\u001b[2J"}`, 422, "invalid", "name", "printable"},
		{"a name that turns around", `{` + task + `,"name":"a\u202eb"}`, 422, "invalid", "name", "printable"},
		{"unknown driver", `{"task":{"driver":"magic","command":["true"]}}`, 422, "invalid", "task.driver", ""},
		{"no command", `{"task":{"driver":"process","command":[]}}`, 422, "invalid", "task.command", ""},
		{"checkpoints outside", `{"task":{"driver":"process","command":["true"],"checkpoint":{"dir":"../../etc"}}}`, 422, "invalid", "task.checkpoint.dir", "inside the job's folder"},
		{"checkpoints at the root", `{"task":{"driver":"process","command":["true"],"checkpoint":{"dir":"/etc"}}}`, 422, "invalid", "task.checkpoint.dir", "inside"},
		{"outputs outside", `{"task":{"driver":"process","command":["true"],"outputs":["../x"]}}`, 422, "invalid", "task.outputs[0]", "inside"},
		{"negative time", `{` + task + `,"limits":{"time":"-1s"}}`, 422, "invalid", "limits.time", "a duration"},
		{"2 MiB", `{` + task + `,"name":"` + strings.Repeat("x", 2<<20) + `"}`, 413, "too_large", "", ""},
		{"deep", strings.Repeat(`{"task":`, 20000), 422, "invalid", "body", ""},
		{"nothing", ``, 422, "invalid", "body", "is missing"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, p := g.raw("POST", "/v1/jobs", g.admin.Token, operation(g.op()), strings.NewReader(tc.body))
			if status != tc.status || p.Code != tc.code || p.Next == "" || p.Detail == "" {
				t.Fatalf("%d %+v, want %d %s", status, p, tc.status, tc.code)
			}
			if tc.field == "" {
				return
			}
			for _, f := range p.Errors {
				if f.Location == tc.field && strings.Contains(f.Message, tc.rule) {
					return
				}
			}
			t.Errorf("faults %+v, want one of %s that says %q", p.Errors, tc.field, tc.rule)
		})
	}
	if jobs, err := g.admin.Jobs(g.ctx(), nil); err != nil || len(jobs.Items) != 0 {
		t.Errorf("something was submitted: %v, %v", jobs, err)
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{})
	node := g.enrol(g.admin, "n1")
	hash := strings.Repeat("0", 64)
	endless := func(n int64) io.Reader { // of a length that is not told before
		return io.LimitReader(zeroes{}, n)
	}
	for _, tc := range []struct {
		name, method, path, token string
		body                      io.Reader
		status                    int
	}{
		{"JSON of untold length", "POST", "/v1/jobs", g.admin.Token, endless(2 << 20), 413},
		{"a blob", "PUT", "/v1/blobs/" + hash, g.admin.Token, bytes.NewReader(make([]byte, blob.MaxBlob+1)), 413},
		{"a blob of untold length", "PUT", "/v1/blobs/" + hash, g.admin.Token, endless(int64(blob.MaxBlob) + 1), 413},
		{"a blob with another hash", "PUT", "/v1/blobs/" + hash, g.admin.Token, strings.NewReader("x"), 422},
		{"a hash that is none", "PUT", "/v1/blobs/..%2fetc", g.admin.Token, strings.NewReader("x"), 422},
		{"a piece of log", "POST", "/v1/node/leases/lease_x/logs?attempt=1&stream=stdout&offset=0", node.Token, bytes.NewReader(make([]byte, wire.MaxInlineLog+1)), 413},
		{"a log without its place", "POST", "/v1/node/leases/lease_x/logs?stream=stdout", node.Token, strings.NewReader("x"), 422},
		{"a stream that is none", "POST", "/v1/node/leases/lease_x/logs?attempt=1&stream=stdlog", node.Token, strings.NewReader("x"), 422},
		{"too many reports", "POST", "/v1/node/reports", node.Token, strings.NewReader(`{"reports":[` + strings.Repeat(`{},`, wire.MaxReports) + `{}]}`), 413},
		{"a beat with another field", "POST", "/v1/node/heartbeat", node.Token, strings.NewReader(`{"incarnation":"x","colour":"red"}`), 422},
		{"a header", "GET", "/v1/whoami?" + strings.Repeat("x", 64<<10), g.admin.Token, nil, 431},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.status == 431 { // net/http answers this itself, in plain text
				resp, err := http.Get(g.url + tc.path)
				if err != nil || resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
					t.Errorf("%v, %v", resp, err)
				}
				return
			}
			if status, p := g.raw(tc.method, tc.path, tc.token, operation(g.op()), tc.body); status != tc.status {
				t.Errorf("%d %+v, want %d", status, p, tc.status)
			}
		})
	}
}

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

func TestOperationIDs(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{})
	body := `{"task":{"driver":"process","command":["true"]}}`
	for _, id := range []string{"", "with space", strings.Repeat("x", 65)} {
		status, p := g.raw("POST", "/v1/jobs", g.admin.Token, operation(offpeak.OpID(id)), strings.NewReader(body))
		if status != 422 || len(p.Errors) != 1 || p.Errors[0].Location != "header."+wire.HeaderOperation {
			t.Errorf("operation %q: %d %+v", id, status, p)
		}
	}
	first, err := g.admin.Submit(g.ctx(), "op-x", spec())
	if err != nil {
		t.Fatal(err)
	}
	again, err := g.admin.Submit(g.ctx(), "op-x", spec())
	if err != nil || again.ID != first.ID {
		t.Errorf("a repeated request: %v, %v; want job %s", again.ID, err, first.ID)
	}
	if status, p := g.raw("POST", "/v1/jobs", g.admin.Token, operation("op-x"), strings.NewReader(body+" ")); status != 409 || p.Code != "operation_conflict" {
		t.Errorf("another request under the same operation: %d %+v", status, p)
	}
}

func TestProtocolVersions(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{})
	for version, want := range map[string]int{"": 200, "0": 200, "1": 200, "2": 400, "-1": 400, "one": 400} {
		h := http.Header{}
		if version != "" {
			h.Set(wire.HeaderProtocol, version)
		}
		status, p := g.raw("GET", "/v1/whoami", g.admin.Token, h, nil)
		if status != want || (want == 400 && (p.Code != "protocol" || p.Next == "")) {
			t.Errorf("protocol %q: %d %+v, want %d", version, status, p, want)
		}
	}
}

// limits are checked against a clock that stands still, so nothing refills.
func still() func() time.Time {
	now := time.Now()
	return func() time.Time { return now }
}

func TestRateOfOneToken(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{Rate: 1, Burst: 20, Now: still()})
	_, m := g.account("acme")
	viewer, submitter := m[offpeak.RoleViewer], m[offpeak.RoleSubmitter]
	limited := 0
	for range 25 {
		if status, p := g.raw("GET", "/v1/whoami", viewer.Token, nil, nil); status == 429 {
			limited++
			if p.Code != "rate_limited" || p.Next == "" {
				t.Errorf("problem %+v", p)
			}
		}
	}
	if limited != 5 {
		t.Errorf("%d of 25 requests were refused with a burst of 20, want 5", limited)
	}
	if _, err := submitter.Whoami(g.ctx()); err != nil {
		t.Errorf("another token of the same account: %v", err)
	}
}

func TestRateOfFailures(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{FailureRate: 0.001, FailureBurst: 5, Now: still()})
	for i := range 8 {
		want := 401
		if i >= 5 {
			want = 429
		}
		if status, p := g.raw("GET", "/v1/whoami", "wrong", nil, nil); status != want {
			t.Errorf("failure %d: %d %+v, want %d", i, status, p, want)
		}
	}
	if status, _ := g.raw("GET", "/v1/health", "", nil, nil); status != 200 {
		t.Errorf("health: %d", status)
	}
}

// A client that never finishes its body holds nobody up and is let go.
func TestABodyThatIsCutShort(t *testing.T) {
	t.Parallel()
	g := newGrid(t, Options{})
	conn, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", strings.TrimPrefix(g.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = io.WriteString(conn, "POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+g.admin.Token+"\r\nIdempotency-Key: a\r\nContent-Length: 100\r\n\r\n{\"task\":")
	if err == nil {
		err = conn.(*net.TCPConn).CloseWrite()
	}
	if err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.Contains(string(answer), "did not arrive whole") {
		t.Errorf("answer %q, %v", answer, err)
	}
	if jobs, err := g.admin.Jobs(g.ctx(), nil); err != nil || len(jobs.Items) != 0 {
		t.Errorf("half a job was submitted: %v, %v", jobs, err)
	}
}
