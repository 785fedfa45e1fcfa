package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"offpeak"
)

// Direct makes calls to a hub, one request each: it neither retries nor fails
// over. Errors of the hub come back as *Problem, so errors.Is works on them;
// when no answer came, the error wraps ErrUnavailable and the outcome is
// unknown; a hub that is not the pinned one is an *UntrustedError. It is a value: copy it to use another token or hub, never change one
// that is in use.
type Direct struct {
	// Client makes the requests; its Transport pins the hub's key where needed.
	Client *http.Client
	// Base is the hub's address, "http://127.0.0.1:7070".
	Base string
	// Token is the bearer token, "" for public calls.
	Token string
	// Agent is sent as User-Agent.
	Agent string
}

// Do makes one call: method and path below /v1, a JSON body unless in is nil,
// and a JSON answer into out unless it is nil. op is sent as the operation id
// unless it is "".
func (d *Direct) Do(ctx context.Context, method, path string, op offpeak.OpID, in, out any) error {
	var body io.Reader
	if in != nil {
		var err error
		if body, err = encode(in); err != nil {
			return err
		}
	}
	resp, err := d.Raw(ctx, method, path, op, body, "application/json")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, int64(MaxBody)))
		return nil
	}
	if err := answered(resp.Body, out); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}

func encode(in any) (io.Reader, error) {
	data, err := json.Marshal(in)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	return bytes.NewReader(data), nil
}

func answered(body io.Reader, out any) error {
	if err := json.NewDecoder(body).Decode(out); err != nil {
		return fmt.Errorf("read answer: %w", errors.Join(offpeak.ErrUnavailable, err))
	}
	return nil
}

// Raw makes one call and returns the answer with its body open, if its status
// is below 400; otherwise the error it stands for.
func (d *Direct) Raw(ctx context.Context, method, path string, op offpeak.OpID, body io.Reader, contentType string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(d.Base, "/")+"/v1"+path, body)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	if body != nil {
		req.Header.Set("Content-Type", contentType)
	}
	req.Header.Set(HeaderProtocol, strconv.Itoa(Protocol))
	req.Header.Set("User-Agent", d.Agent)
	if d.Token != "" {
		req.Header.Set("Authorization", "Bearer "+d.Token)
	}
	if op != "" {
		req.Header.Set(HeaderOperation, string(op))
	}
	resp, err := d.Client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err := untrusted(d.Base, err); err != nil {
			return nil, err
		}
		if asked, ok := errors.AsType[*url.Error](err); ok {
			err = asked.Err // without the address and its parameters, twice
		}
		return nil, fmt.Errorf("no answer from %s: %w: %w", d.Base, offpeak.ErrUnavailable, err)
	}
	if resp.StatusCode < 400 {
		return resp, nil
	}
	defer resp.Body.Close()
	p := &Problem{}
	data, _ := io.ReadAll(io.LimitReader(resp.Body, int64(MaxBody)))
	_ = json.Unmarshal(data, p)
	p.Status = resp.StatusCode
	if p.Title == "" {
		p.Title, p.Detail, p.Next = resp.Status, d.Base+" answers as no hub does: "+resp.Status, "See that the address is a hub's, with https:// where the hub serves TLS: it prints its address when it starts."
	}
	return nil, p
}

// Enrol turns the join token in d.Token into a node.
func (d *Direct) Enrol(ctx context.Context, in Enrol) (out Enrolled, err error) {
	err = d.Do(ctx, http.MethodPost, "/node/enrol", "", in, &out)
	return out, err
}

// Challenge asks for something to sign.
func (d *Direct) Challenge(ctx context.Context) (out Challenge, err error) {
	err = d.Do(ctx, http.MethodPost, "/node/challenge", "", nil, &out)
	return out, err
}

// OpenSession opens a node's session.
func (d *Direct) OpenSession(ctx context.Context, in OpenSession) (out Session, err error) {
	err = d.Do(ctx, http.MethodPost, "/node/session", "", in, &out)
	return out, err
}

// Heartbeat reports what a node holds and returns what it should hold.
func (d *Direct) Heartbeat(ctx context.Context, in Heartbeat) (out Sync, err error) {
	err = d.Do(ctx, http.MethodPost, "/node/heartbeat", "", in, &out)
	return out, err
}

// Stream opens the node's stream: newline-delimited JSON Sync messages, with
// an empty line at least every 15 s. The caller closes the body.
func (d *Direct) Stream(ctx context.Context) (io.ReadCloser, error) {
	resp, err := d.Raw(ctx, http.MethodGet, "/node/stream", "", nil, "")
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// Work fetches what a node needs to run a lease it should hold.
func (d *Direct) Work(ctx context.Context, lease offpeak.LeaseID) (out Desired, err error) {
	err = d.Do(ctx, http.MethodGet, "/node/leases/"+url.PathEscape(string(lease)), "", nil, &out)
	return out, err
}

// Report sends reports; the results are one for one.
func (d *Direct) Report(ctx context.Context, in []Report) ([]ReportResult, error) {
	var out ReportResults
	if err := d.Do(ctx, http.MethodPost, "/node/reports", "", Reports{in}, &out); err != nil {
		return nil, err
	}
	if len(out.Results) != len(in) {
		return nil, fmt.Errorf("report: %d results for %d reports: %w", len(out.Results), len(in), offpeak.ErrUnavailable)
	}
	return out.Results, nil
}

// SetInventory says what a node has.
func (d *Direct) SetInventory(ctx context.Context, inv offpeak.Inventory) error {
	return d.Do(ctx, http.MethodPut, "/node/inventory", "", inv, nil)
}

// SetReadings says what a node's devices do now.
func (d *Direct) SetReadings(ctx context.Context, readings []offpeak.Reading) error {
	return d.Do(ctx, http.MethodPut, "/node/readings", "", Readings{Readings: readings}, nil)
}

// Earned asks what the node that holds the session brought its owner; today is when
// the owner's day began.
func (d *Direct) Earned(ctx context.Context, today time.Time) (out Earnings, err error) {
	err = d.Do(ctx, http.MethodGet, "/node/earnings?"+url.Values{"today": {today.UTC().Format(time.RFC3339)}}.Encode(), "", nil, &out)
	return out, err
}

// Leave removes the node that holds the session.
func (d *Direct) Leave(ctx context.Context) error {
	return d.Do(ctx, http.MethodPost, "/node/leave", "", nil, nil)
}

// AppendLog stores a piece of a lease's log and returns where the log ends.
// A gap is a *offpeak.LogGapError.
func (d *Direct) AppendLog(ctx context.Context, lease offpeak.LeaseID, attempt offpeak.Attempt, stream string, offset int64, data []byte) (int64, error) {
	q := url.Values{"attempt": {strconv.Itoa(int(attempt))}, "stream": {stream}, "offset": {strconv.FormatInt(offset, 10)}}
	resp, err := d.Raw(ctx, http.MethodPost, "/node/leases/"+url.PathEscape(string(lease))+"/logs?"+q.Encode(), "", bytes.NewReader(data), "application/octet-stream")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var out LogEnd
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		return 0, fmt.Errorf("append log: read answer: %w", errors.Join(offpeak.ErrUnavailable, err))
	}
	return out.End, nil
}

// AddCheckpoint declares a stored tree to be a checkpoint of a lease.
func (d *Direct) AddCheckpoint(ctx context.Context, lease offpeak.LeaseID, in NewCheckpoint) (out offpeak.Checkpoint, err error) {
	err = d.Do(ctx, http.MethodPost, "/node/leases/"+url.PathEscape(string(lease))+"/checkpoints", "", in, &out)
	return out, err
}

// Blobs is a blob.Remote over the blobs of the token's account (lease "") or of
// the account of a lease that the node holds.
type Blobs struct {
	Direct *Direct
	Lease  offpeak.LeaseID
}

func (b Blobs) path(rest string) string {
	if b.Lease == "" {
		return rest
	}
	return "/node/leases/" + url.PathEscape(string(b.Lease)) + rest
}

// Missing implements blob.Remote.
func (b Blobs) Missing(ctx context.Context, hashes []offpeak.Hash) ([]offpeak.Hash, error) {
	var out Hashes
	err := b.Direct.Do(ctx, http.MethodPost, b.path("/blobs/missing"), "", Hashes{hashes}, &out)
	return out.Hashes, err
}

// Upload implements blob.Remote.
func (b Blobs) Upload(ctx context.Context, hash offpeak.Hash, data []byte) error {
	resp, err := b.Direct.Raw(ctx, http.MethodPut, b.path("/blobs/"+string(hash)), "", bytes.NewReader(data), "application/octet-stream")
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// Commit implements blob.Remote.
func (b Blobs) Commit(ctx context.Context, tree offpeak.Hash) error {
	return b.Direct.Do(ctx, http.MethodPost, b.path("/trees"), "", Tree{tree}, nil)
}

// Download implements blob.Remote.
func (b Blobs) Download(ctx context.Context, hash offpeak.Hash) ([]byte, error) {
	resp, err := b.Direct.Raw(ctx, http.MethodGet, b.path("/blobs/"+string(hash)), "", nil, "")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err != nil {
		return nil, fmt.Errorf("download %s: %w", hash, errors.Join(offpeak.ErrUnavailable, err))
	}
	return data, nil
}

// The calls of people and their programs follow.

// NewJob is the body of POST /v1/jobs: a spec, and the jobs that it waits for.
type NewJob struct {
	offpeak.Spec
	After []offpeak.After `json:"after,omitempty" doc:"jobs of the account that must end first; up to 64"`
}

// Submit submits a job, which waits for others.
func (d *Direct) Submit(ctx context.Context, op offpeak.OpID, spec offpeak.Spec, after ...offpeak.After) (out offpeak.Job, err error) {
	err = d.Do(ctx, http.MethodPost, "/jobs", op, NewJob{spec, after}, &out)
	return out, err
}

// PipelineJobs is jobs that were submitted together, in the order of their steps.
type PipelineJobs struct {
	ID   string        `json:"id"`
	Name string        `json:"name,omitempty"`
	Jobs []offpeak.Job `json:"jobs"`
}

// SubmitPipeline submits jobs that wait for each other, all or none.
func (d *Direct) SubmitPipeline(ctx context.Context, op offpeak.OpID, p offpeak.Pipeline) (out PipelineJobs, err error) {
	err = d.Do(ctx, http.MethodPost, "/pipelines", op, p, &out)
	return out, err
}

// Pipeline returns a pipeline.
func (d *Direct) Pipeline(ctx context.Context, id string) (out PipelineJobs, err error) {
	err = d.Do(ctx, http.MethodGet, "/pipelines/"+url.PathEscape(id), "", nil, &out)
	return out, err
}

// CancelPipeline cancels what of a pipeline has not ended.
func (d *Direct) CancelPipeline(ctx context.Context, op offpeak.OpID, id string) (out PipelineJobs, err error) {
	err = d.Do(ctx, http.MethodPost, "/pipelines/"+url.PathEscape(id)+"/cancel", op, nil, &out)
	return out, err
}

// RetryPipeline submits what of an ended pipeline did not succeed again, as a pipeline
// of its own.
func (d *Direct) RetryPipeline(ctx context.Context, op offpeak.OpID, id string) (out PipelineJobs, err error) {
	err = d.Do(ctx, http.MethodPost, "/pipelines/"+url.PathEscape(id)+"/retry", op, nil, &out)
	return out, err
}

// List is a page of a list.
type List[T any] struct {
	Items []T `json:"items"`
	// Next is the cursor of the next page, "" at the end.
	Next string `json:"next,omitempty"`
}

// Jobs lists jobs, newest first. Query parameters: state (repeatable), name,
// label (k=v, repeatable), node, account (admins), limit, cursor.
func (d *Direct) Jobs(ctx context.Context, q url.Values) (out List[offpeak.Job], err error) {
	err = d.Do(ctx, http.MethodGet, "/jobs?"+q.Encode(), "", nil, &out)
	return out, err
}

// Job returns one job.
func (d *Direct) Job(ctx context.Context, id offpeak.JobID) (out offpeak.Job, err error) {
	err = d.Do(ctx, http.MethodGet, "/jobs/"+url.PathEscape(string(id)), "", nil, &out)
	return out, err
}

// WaitJob returns the job once it has ended, or as it is when wait is over
// (at most 1m a call).
func (d *Direct) WaitJob(ctx context.Context, id offpeak.JobID, wait time.Duration) (out offpeak.Job, err error) {
	err = d.Do(ctx, http.MethodGet, "/jobs/"+url.PathEscape(string(id))+"?wait="+wait.String(), "", nil, &out)
	return out, err
}

// Attempts lists a job's leases, oldest first.
func (d *Direct) Attempts(ctx context.Context, id offpeak.JobID) (out List[offpeak.Lease], err error) {
	err = d.Do(ctx, http.MethodGet, "/jobs/"+url.PathEscape(string(id))+"/attempts", "", nil, &out)
	return out, err
}

// Checkpoints lists a job's stored checkpoints, newest first.
func (d *Direct) Checkpoints(ctx context.Context, id offpeak.JobID) (out List[offpeak.Checkpoint], err error) {
	err = d.Do(ctx, http.MethodGet, "/jobs/"+url.PathEscape(string(id))+"/checkpoints", "", nil, &out)
	return out, err
}

// Cancel cancels a job.
func (d *Direct) Cancel(ctx context.Context, op offpeak.OpID, id offpeak.JobID) (out offpeak.Job, err error) {
	err = d.Do(ctx, http.MethodPost, "/jobs/"+url.PathEscape(string(id))+"/cancel", op, nil, &out)
	return out, err
}

// Retry submits an ended job's spec again, as a new job. The new job resumes
// from the newest checkpoint of the old one, if it has any.
func (d *Direct) Retry(ctx context.Context, op offpeak.OpID, id offpeak.JobID) (out offpeak.Job, err error) {
	err = d.Do(ctx, http.MethodPost, "/jobs/"+url.PathEscape(string(id))+"/retry", op, nil, &out)
	return out, err
}

// Explain says why a job waits or where it runs.
func (d *Direct) Explain(ctx context.Context, id offpeak.JobID) (out Explanation, err error) {
	err = d.Do(ctx, http.MethodGet, "/jobs/"+url.PathEscape(string(id))+"/explain", "", nil, &out)
	return out, err
}

// Foretell says what would become of a job; nothing is stored.
func (d *Direct) Foretell(ctx context.Context, spec offpeak.Spec, after ...offpeak.After) (out Explanation, err error) {
	err = d.Do(ctx, http.MethodPost, "/explain", "", NewJob{Spec: spec, After: after}, &out)
	return out, err
}

// Logs opens a job's log: raw bytes of one stream ("stdout", "stderr") from
// offset. attempt 0 is the newest. With follow it goes on until the attempt
// has ended. The caller closes it.
func (d *Direct) Logs(ctx context.Context, id offpeak.JobID, attempt offpeak.Attempt, stream string, offset int64, follow bool) (io.ReadCloser, error) {
	q := url.Values{"attempt": {strconv.Itoa(int(attempt))}, "stream": {stream}, "offset": {strconv.FormatInt(offset, 10)}, "follow": {strconv.FormatBool(follow)}}
	resp, err := d.Raw(ctx, http.MethodGet, "/jobs/"+url.PathEscape(string(id))+"/logs?"+q.Encode(), "", nil, "")
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// LogRecord is one line of the followed log of all attempts and both streams,
// in the order of arrival: GET /v1/jobs/{job}/log (newline-delimited JSON).
type LogRecord struct {
	Attempt offpeak.Attempt `json:"attempt"`
	// N is the segment's number within the attempt; Attempt and N together
	// are where to go on: ?after=attempt.n.
	N      int64  `json:"n"`
	Stream string `json:"stream"`
	Offset int64  `json:"offset"`
	Data   []byte `json:"data"`
}

// FollowLog opens the log of all attempts from after ("" for the start,
// "attempt.n" to go on). With follow it goes on until the job has ended.
func (d *Direct) FollowLog(ctx context.Context, id offpeak.JobID, after string, follow bool) (io.ReadCloser, error) {
	q := url.Values{"after": {after}, "follow": {strconv.FormatBool(follow)}}
	resp, err := d.Raw(ctx, http.MethodGet, "/jobs/"+url.PathEscape(string(id))+"/log?"+q.Encode(), "", nil, "")
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// Nodes lists nodes.
func (d *Direct) Nodes(ctx context.Context, q url.Values) (out List[offpeak.Node], err error) {
	err = d.Do(ctx, http.MethodGet, "/nodes?"+q.Encode(), "", nil, &out)
	return out, err
}

// Node returns one node.
func (d *Direct) Node(ctx context.Context, id offpeak.NodeID) (out offpeak.Node, err error) {
	err = d.Do(ctx, http.MethodGet, "/nodes/"+url.PathEscape(string(id)), "", nil, &out)
	return out, err
}

// SetIntent orders a node open, draining or closed.
func (d *Direct) SetIntent(ctx context.Context, op offpeak.OpID, id offpeak.NodeID, in IntentChange) (out offpeak.Node, err error) {
	err = d.Do(ctx, http.MethodPost, "/nodes/"+url.PathEscape(string(id))+"/intent", op, in, &out)
	return out, err
}

// TrustNode ends a node's quarantine.
func (d *Direct) TrustNode(ctx context.Context, op offpeak.OpID, id offpeak.NodeID) (out offpeak.Node, err error) {
	err = d.Do(ctx, http.MethodPost, "/nodes/"+url.PathEscape(string(id))+"/trust", op, nil, &out)
	return out, err
}

// RemoveNode forgets a node.
func (d *Direct) RemoveNode(ctx context.Context, op offpeak.OpID, id offpeak.NodeID) error {
	return d.Do(ctx, http.MethodDelete, "/nodes/"+url.PathEscape(string(id)), op, nil, nil)
}

// NewToken asks for a token: POST /v1/tokens.
type NewToken struct {
	Name string       `json:"name,omitempty"`
	Role offpeak.Role `json:"role" doc:"admin, owner, submitter, viewer or join"`
	// Account is another account than the caller's; admins only.
	Account offpeak.AccountID `json:"account,omitempty"`
	// Expires is how long it lives. Default 90 days, 1 hour for join tokens.
	Expires offpeak.Duration `json:"expires,omitempty"`
	// Uses is how many nodes a join token enrols. Default 1.
	Uses int `json:"uses,omitempty"`
}

// CreatedToken shows a token's secret, once.
type CreatedToken struct {
	Token offpeak.Token `json:"token"`
	// Secret is what to present. For a join token it is the text to give to
	// `offpeak agent join`: it holds the hub's addresses and key as well.
	Secret string `json:"secret"`
}

// CreateToken makes a token.
func (d *Direct) CreateToken(ctx context.Context, op offpeak.OpID, in NewToken) (out CreatedToken, err error) {
	err = d.Do(ctx, http.MethodPost, "/tokens", op, in, &out)
	return out, err
}

// Tokens lists tokens.
func (d *Direct) Tokens(ctx context.Context, q url.Values) (out List[offpeak.Token], err error) {
	err = d.Do(ctx, http.MethodGet, "/tokens?"+q.Encode(), "", nil, &out)
	return out, err
}

// RevokeToken ends a token at once.
func (d *Direct) RevokeToken(ctx context.Context, op offpeak.OpID, id offpeak.TokenID) error {
	return d.Do(ctx, http.MethodDelete, "/tokens/"+url.PathEscape(string(id)), op, nil, nil)
}

// Whoami answers GET /v1/whoami.
type Whoami struct {
	Account offpeak.Account  `json:"account"`
	Role    offpeak.Role     `json:"role"`
	Member  offpeak.MemberID `json:"member,omitempty"`
	Node    offpeak.NodeID   `json:"node,omitempty"`
	Token   offpeak.TokenID  `json:"token"`
	Expires time.Time        `json:"expires_at"`
	Version string           `json:"hub_version"`
}

// Whoami says whose token it is.
func (d *Direct) Whoami(ctx context.Context) (out Whoami, err error) {
	err = d.Do(ctx, http.MethodGet, "/whoami", "", nil, &out)
	return out, err
}

// NewAccount asks for an account.
type NewAccount struct {
	Name  string        `json:"name"`
	Quota offpeak.Quota `json:"quota"`
}

// CreateAccount makes an account.
func (d *Direct) CreateAccount(ctx context.Context, op offpeak.OpID, in NewAccount) (out offpeak.Account, err error) {
	err = d.Do(ctx, http.MethodPost, "/accounts", op, in, &out)
	return out, err
}

// Hubs lists the hubs of the grid that were at work in the last day.
func (d *Direct) Hubs(ctx context.Context) (out List[offpeak.Hub], err error) {
	err = d.Do(ctx, http.MethodGet, "/hubs", "", nil, &out)
	return out, err
}

// Accounts lists accounts.
func (d *Direct) Accounts(ctx context.Context, q url.Values) (out List[offpeak.Account], err error) {
	err = d.Do(ctx, http.MethodGet, "/accounts?"+q.Encode(), "", nil, &out)
	return out, err
}

// SetQuota bounds what an account may use.
func (d *Direct) SetQuota(ctx context.Context, op offpeak.OpID, id offpeak.AccountID, q offpeak.Quota) (out offpeak.Account, err error) {
	err = d.Do(ctx, http.MethodPut, "/accounts/"+url.PathEscape(string(id))+"/quota", op, q, &out)
	return out, err
}

// NewMember invites somebody to an account.
type NewMember struct {
	Name string       `json:"name"`
	Role offpeak.Role `json:"role" doc:"admin, owner, submitter or viewer"`
	// Expires is how long their first token lives. Default 90 days.
	Expires offpeak.Duration `json:"expires,omitempty"`
}

// Invited shows a new member and their token, once.
type Invited struct {
	Member offpeak.Member `json:"member"`
	Secret string         `json:"secret"`
}

// Invite adds a member to an account.
func (d *Direct) Invite(ctx context.Context, op offpeak.OpID, id offpeak.AccountID, in NewMember) (out Invited, err error) {
	err = d.Do(ctx, http.MethodPost, "/accounts/"+url.PathEscape(string(id))+"/members", op, in, &out)
	return out, err
}

// Members lists an account's members.
func (d *Direct) Members(ctx context.Context, id offpeak.AccountID) (out List[offpeak.Member], err error) {
	err = d.Do(ctx, http.MethodGet, "/accounts/"+url.PathEscape(string(id))+"/members", "", nil, &out)
	return out, err
}

// RemoveMember removes a member and revokes their tokens.
func (d *Direct) RemoveMember(ctx context.Context, op offpeak.OpID, id offpeak.AccountID, m offpeak.MemberID) error {
	return d.Do(ctx, http.MethodDelete, "/accounts/"+url.PathEscape(string(id))+"/members/"+url.PathEscape(string(m)), op, nil, nil)
}

// Events opens the event stream (text/event-stream): the newest only, or from
// after the cursor lastID. Query parameter job restricts it. The caller closes it.
func (d *Direct) Events(ctx context.Context, lastID string, job offpeak.JobID) (io.ReadCloser, error) {
	q := url.Values{}
	if lastID != "" {
		q.Set("after", lastID)
	}
	if job != "" {
		q.Set("job", string(job))
	}
	resp, err := d.Raw(ctx, http.MethodGet, "/events?"+q.Encode(), "", nil, "")
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// Checked answers GET /v1/check.
type Checked struct {
	OK         bool        `json:"ok"`
	Violations []Violation `json:"violations"`
	Warnings   []string    `json:"warnings,omitempty"`
}

// Violation is one row that breaks an invariant.
type Violation struct {
	Invariant string `json:"invariant"`
	Object    string `json:"object"`
	Detail    string `json:"detail"`
}

// Check runs the invariants on the live store.
func (d *Direct) Check(ctx context.Context) (out Checked, err error) {
	err = d.Do(ctx, http.MethodGet, "/check", "", nil, &out)
	return out, err
}

// NewBackup asks the hub to write a backup to a new folder on its own machine.
type NewBackup struct {
	Path string `json:"path"`
}

// Backup writes a backup on the hub's machine.
func (d *Direct) Backup(ctx context.Context, op offpeak.OpID, path string) error {
	return d.Do(ctx, http.MethodPost, "/backup", op, NewBackup{path}, nil)
}
