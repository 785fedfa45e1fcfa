package wire

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"offpeak"
)

// NewGroup asks for an array of jobs: POST /v1/groups.
type NewGroup struct {
	Spec  offpeak.Spec  `json:"spec"`
	Array offpeak.Array `json:"array"`
	// After is what it waits for: no member begins before.
	After []offpeak.After `json:"after,omitempty" doc:"jobs of the account, or arrays, that must end before a member begins; up to 64"`
}

// GroupRetry says what of a group is submitted again: POST /v1/groups/{group}/retry.
type GroupRetry struct {
	// Failed: only the members that have failed. Else all, once they have ended.
	Failed bool `json:"failed,omitempty" doc:"only the members that have failed by now"`
}

// SubmitGroup submits an array of jobs.
func (d *Direct) SubmitGroup(ctx context.Context, op offpeak.OpID, in NewGroup) (out offpeak.Group, err error) {
	err = d.Do(ctx, http.MethodPost, "/groups", op, in, &out)
	return out, err
}

// Groups lists groups, newest first. Query parameters: state (repeatable), account
// (admins), limit, cursor.
func (d *Direct) Groups(ctx context.Context, q url.Values) (out List[offpeak.Group], err error) {
	err = d.Do(ctx, http.MethodGet, "/groups?"+q.Encode(), "", nil, &out)
	return out, err
}

// Group returns one group.
func (d *Direct) Group(ctx context.Context, id offpeak.GroupID) (out offpeak.Group, err error) {
	err = d.Do(ctx, http.MethodGet, "/groups/"+url.PathEscape(string(id)), "", nil, &out)
	return out, err
}

// WaitGroup returns the group once all its members have ended, or as it is when
// wait is over (at most 1m a call).
func (d *Direct) WaitGroup(ctx context.Context, id offpeak.GroupID, wait time.Duration) (out offpeak.Group, err error) {
	err = d.Do(ctx, http.MethodGet, "/groups/"+url.PathEscape(string(id))+"?wait="+wait.String(), "", nil, &out)
	return out, err
}

// CancelGroup cancels all members of a group that have not ended.
func (d *Direct) CancelGroup(ctx context.Context, op offpeak.OpID, id offpeak.GroupID) (out offpeak.Group, err error) {
	err = d.Do(ctx, http.MethodPost, "/groups/"+url.PathEscape(string(id))+"/cancel", op, nil, &out)
	return out, err
}

// RetryGroup submits members of a group again, as a new group.
func (d *Direct) RetryGroup(ctx context.Context, op offpeak.OpID, id offpeak.GroupID, in GroupRetry) (out offpeak.Group, err error) {
	err = d.Do(ctx, http.MethodPost, "/groups/"+url.PathEscape(string(id))+"/retry", op, in, &out)
	return out, err
}
