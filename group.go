package offpeak

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// GroupID names an array of jobs: "group_…". A member's id follows from it and
// the member's index, so that an array is told of without naming each member.
type GroupID string

// Bounds of arrays.
const (
	// MaxMembers is the most members of an array.
	MaxMembers = 100_000
	// MaxIndex is the highest index of a member.
	MaxIndex = 999_999
	// maxParameters and maxSweep bound a sweep: its parameters, and the bytes of
	// their names and values.
	maxParameters = 16
	maxSweep      = 256 << 10
	maxValue      = 1024
	// MinGang and MaxGang are the fewest and the most members of a gang.
	MinGang = 2
	MaxGang = 64
)

// idDigits are the digits of an id, 5 bits each; the last indexDigits of a member's
// are its index.
const (
	idDigits    = "0123456789abcdefghjkmnpqrstvwxyz"
	idLength    = 26
	indexDigits = 4
	groupPrefix = "group_"
	jobPrefix   = "job_"
)

// NewGroupID makes a group's id of an id whose last digits are of no account.
func NewGroupID(id string) GroupID {
	return GroupID(id[:len(id)-indexDigits] + strings.Repeat("0", indexDigits))
}

// Valid says that g has the form of a group's id.
func (g GroupID) Valid() bool {
	digits, ok := strings.CutPrefix(string(g), groupPrefix)
	return ok && isID(digits) && strings.HasSuffix(digits, strings.Repeat("0", indexDigits))
}

// Member is the id of a member.
func (g GroupID) Member(index int) JobID {
	b := []byte(jobPrefix + strings.TrimPrefix(string(g), groupPrefix))
	for i := range indexDigits {
		b[len(b)-1-i] = idDigits[index>>(5*i)&31]
	}
	return JobID(b)
}

// Member is the group and the index of a job, if it is a member of one: whether
// there is such a group the id does not say.
func (j JobID) Member() (g GroupID, index int, ok bool) {
	digits, ok := strings.CutPrefix(string(j), jobPrefix)
	if !ok || !isID(digits) {
		return "", 0, false
	}
	for _, c := range digits[idLength-indexDigits:] {
		index = index<<5 | strings.IndexRune(idDigits, c)
	}
	return NewGroupID(groupPrefix + digits), index, index <= MaxIndex
}

func isID(digits string) bool {
	return len(digits) == idLength && strings.Trim(digits, idDigits) == ""
}

// Indexes are indexes of members, each once and upward. Their text is "0-999" or
// "3,7,10-12".
type Indexes []IndexRange

// IndexRange is the indexes from First to Last.
type IndexRange struct{ First, Last int }

// ParseIndexes reads indexes; an error is a *ValueError.
func ParseIndexes(s string) (Indexes, error) {
	wrong := func(rule string) (Indexes, error) { return nil, &ValueError{Value: clip(s), Rule: rule} }
	var x Indexes
	n := 0
	for part := range strings.SplitSeq(s, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, okA := parseIndex(first)
		b, okB := parseIndex(last)
		switch {
		case !okA || !okB:
			return wrong(fmt.Sprintf("is whole numbers from 0 to %d and ranges of them, for example 0-999 or 3,7,10-12", MaxIndex))
		case a > b:
			return wrong("has ranges that run upward, for example 0-9")
		case len(x) > 0 && a <= x[len(x)-1].Last:
			return wrong("names each index once, upward")
		}
		if n += b - a + 1; n > MaxMembers {
			return wrong(fmt.Sprintf("names at most %d indexes", MaxMembers))
		}
		x = x.and(IndexRange{a, b})
	}
	return x, nil
}

func parseIndex(s string) (int, bool) {
	if s == "" || len(s) > 7 || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	return n, err == nil && n <= MaxIndex
}

// and adds a range behind the last.
func (x Indexes) and(r IndexRange) Indexes {
	if n := len(x); n > 0 && x[n-1].Last+1 == r.First {
		x[n-1].Last = r.Last
		return x
	}
	return append(x, r)
}

// IndexesOf are the indexes of a list that runs upward.
func IndexesOf(list []int) (x Indexes) {
	for _, i := range list {
		x = x.and(IndexRange{i, i})
	}
	return x
}

func (x Indexes) String() string {
	var b strings.Builder
	for i, r := range x {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(r.First))
		if r.Last > r.First {
			b.WriteString("-" + strconv.Itoa(r.Last))
		}
	}
	return b.String()
}

// MarshalText writes indexes as String does.
func (x Indexes) MarshalText() ([]byte, error) { return []byte(x.String()), nil }

// UnmarshalText reads indexes as ParseIndexes does.
func (x *Indexes) UnmarshalText(text []byte) (err error) {
	*x, err = ParseIndexes(string(text))
	return err
}

// Len counts the indexes.
func (x Indexes) Len() (n int) {
	for _, r := range x {
		n += r.Last - r.First + 1
	}
	return n
}

// All walks over the indexes.
func (x Indexes) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for _, r := range x {
			for i := r.First; i <= r.Last; i++ {
				if !yield(i) {
					return
				}
			}
		}
	}
}

// Part is at most n indexes after the first from.
func (x Indexes) Part(from, n int) (out Indexes) {
	for _, r := range x {
		if n <= 0 {
			break
		}
		size := r.Last - r.First + 1
		if from >= size {
			from -= size
			continue
		}
		r.First += from
		r.Last = min(r.Last, r.First+n-1)
		from, n = 0, n-(r.Last-r.First+1)
		out = append(out, r)
	}
	return out
}

// Place is how many indexes stand before i, if i is one of them.
func (x Indexes) Place(i int) (before int, ok bool) {
	for _, r := range x {
		if i >= r.First && i <= r.Last {
			return before + i - r.First, true
		}
		before += r.Last - r.First + 1
	}
	return 0, false
}

// Array says which members an array has: an index each, or each combination of a
// sweep's values.
type Array struct {
	Indexes Indexes `json:"indexes,omitempty" doc:"an index for each member, for example 0-999 or 3,7,10-12"`
	// Sweep is counted through with its last parameter fastest: the combinations
	// are numbered from 0.
	Sweep []Parameter `json:"sweep,omitempty" doc:"instead of indexes: a member for each combination of these values"`
	// AtOnce is how many members may hold leases at once; 0 is no limit.
	AtOnce int `json:"at_once,omitempty" doc:"how many members may run at once; absent: no limit"`
	// Gang is how many members start together, each on a node of its own: they are
	// numbered from 0. 0: each starts by itself.
	Gang int `json:"gang,omitempty" doc:"instead of indexes and a sweep: so many members that start together, each on a node of its own, or not at all"`
}

// Parameter is what a sweep varies.
type Parameter struct {
	Name   string   `json:"name" doc:"members find the value in OFFPEAK_PARAM_NAME, the name in capitals"`
	Values []string `json:"values"`
}

// Validate returns nil or every rule that an array breaks that is handed in, as
// *FieldError values joined into one error.
func (a Array) Validate() error {
	var v validator
	switch {
	case a.Gang != 0:
		a.validateGang(&v)
	case len(a.Indexes) > 0 && len(a.Sweep) > 0:
		v.add("array.sweep", "", "goes without indexes: a range is a parameter too, for example --sweep i=0..9")
	case len(a.Indexes) == 0 && len(a.Sweep) == 0:
		v.add("array.indexes", "", "names at least one index, for example 0-9")
	}
	v.within("array.at_once", int64(a.AtOnce), 0, MaxMembers)
	if len(a.Sweep) > maxParameters {
		v.add("array.sweep", "", fmt.Sprintf("has at most %d parameters", maxParameters))
	}
	size, combinations := 0, 1
	seen := map[string]bool{}
	for i, p := range a.Sweep {
		field := fmt.Sprintf("array.sweep[%d]", i)
		upper := strings.ToUpper(p.Name)
		switch {
		case !variable(p.Name):
			v.add(field+".name", clip(p.Name), "is a name of an environment variable: a letter or _, then letters, digits and _, at most 64")
		case seen[upper]:
			v.add(field+".name", p.Name, "is given once, capitals or not")
		}
		seen[upper] = true
		if len(p.Values) == 0 {
			v.add(field+".values", "", "has at least one value")
		}
		size += len(p.Name)
		given := make(map[string]bool, len(p.Values))
		for _, value := range p.Values {
			if given[value] {
				v.add(field+".values", clip(value), "is given once: two members would do the same")
				break
			}
			given[value] = true
			size += len(value)
			if rule := valueRule(value); rule != "" {
				v.add(field+".values", clip(value), rule)
				break
			}
		}
		if combinations *= max(len(p.Values), 1); combinations > MaxMembers {
			v.add("array.sweep", "", fmt.Sprintf("has at most %d combinations", MaxMembers))
			break
		}
	}
	if size > maxSweep {
		v.add("array.sweep", "", fmt.Sprintf("is at most %d bytes of names and values", maxSweep))
	}
	return errors.Join(v.errs...)
}

// validateGang: what all members of a gang have in common leaves nothing to choose.
func (a Array) validateGang(v *validator) {
	v.within("array.gang", int64(a.Gang), MinGang, MaxGang)
	for _, other := range []struct {
		field string
		given bool
	}{{"array.indexes", len(a.Indexes) > 0}, {"array.sweep", len(a.Sweep) > 0}, {"array.at_once", a.AtOnce > 0}} {
		if other.given {
			v.add(other.field, "", "goes without a gang, whose members are numbered from 0 and all run at once: leave one of the two out")
		}
	}
}

// variable says that a name is one of an environment variable everywhere.
func variable(name string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
	return name != "" && len(name) <= 64 && strings.ContainsRune(letters, rune(name[0])) && strings.Trim(name, letters+"0123456789") == ""
}

func valueRule(value string) string {
	f, err := strconv.ParseFloat(value, 64)
	switch {
	case value == "":
		return "is not empty"
	case len(value) > maxValue || !printable(value):
		return fmt.Sprintf("is at most %d bytes of printable UTF-8", maxValue)
	case err == nil && (math.IsNaN(f) || math.IsInf(f, 0)):
		return "is a finite number where it reads as one"
	}
	return ""
}

// Members are the indexes of all members.
func (a Array) Members() Indexes {
	if a.Gang > 0 && len(a.Indexes) == 0 {
		return Indexes{{0, a.Gang - 1}}
	}
	if len(a.Indexes) > 0 || len(a.Sweep) == 0 {
		return a.Indexes
	}
	n := 1
	for _, p := range a.Sweep {
		n *= len(p.Values)
	}
	return Indexes{{0, n - 1}}
}

// Params are the values of a sweep's member; nil without a sweep.
func (a Array) Params(index int) map[string]string {
	if len(a.Sweep) == 0 {
		return nil
	}
	out := make(map[string]string, len(a.Sweep))
	for _, p := range slices.Backward(a.Sweep) {
		out[p.Name] = p.Values[index%len(p.Values)]
		index /= len(p.Values)
	}
	return out
}

// Group is an array of jobs: one spec, and members that are ordinary jobs.
type Group struct {
	ID      GroupID   `json:"id"`
	Account AccountID `json:"account"`
	Spec    Spec      `json:"spec"`
	Array   Array     `json:"array"`
	// Size counts the members that were asked for first: a retry has fewer, with
	// the indexes and the size that they had.
	Size int `json:"size"`
	// Members counts those that it has.
	Members int `json:"members"`
	// State is what GroupState makes of Counts.
	State JobState `json:"state"`
	// Counts are its members by state.
	Counts map[JobState]int `json:"counts"`
	// RetryOf is the group of which this one repeats members.
	RetryOf     GroupID   `json:"retry_of,omitempty"`
	SubmittedBy MemberID  `json:"submitted_by,omitempty"`
	SubmittedAt time.Time `json:"submitted_at"`
	// Pipeline is that of which it is a step, Step which, from 0.
	Pipeline string `json:"pipeline,omitempty"`
	Step     int    `json:"step,omitempty"`
	// Detail says why members won't begin, or have ended with the gang that they are.
	Detail string `json:"detail,omitempty"`
	// Reason is gang_failed where a member failed or was cancelled, so that all end.
	Reason EndReason `json:"reason,omitempty"`
	// After are the jobs that it waits for, until all of which its members are blocked.
	After []Awaited `json:"after,omitempty"`
	// CancelledAt is when somebody asked to cancel the whole.
	CancelledAt *time.Time `json:"cancelled_at,omitempty"`
}

// AsStep is a group as a pipeline shows it among its jobs: with the group's id and the
// state of the whole.
func (g Group) AsStep() Job {
	j := Job{
		ID: JobID(g.ID), Account: g.Account, Group: g.Pipeline, Index: g.Step, Spec: g.Spec, State: g.State, After: g.After,
		RetryOf: JobID(g.RetryOf), SubmittedBy: g.SubmittedBy, SubmittedAt: g.SubmittedAt, Detail: g.Detail,
	}
	switch n := g.Counts[JobFailed]; {
	case g.State != JobFailed:
	case g.Reason != "":
		j.Reason = g.Reason
	case g.Detail != "" && g.CancelledAt == nil:
		j.Reason = EndDependencyFailed
	default:
		j.Detail = fmt.Sprintf("%d of its %d members have failed", n, g.Members)
	}
	return j
}

// GroupEnv is what a member finds in its environment.
func (a Array) GroupEnv(g GroupID, index, size int) map[string]string {
	env := map[string]string{
		"OFFPEAK_GROUP":       string(g),
		"OFFPEAK_ARRAY_INDEX": strconv.Itoa(index),
		"OFFPEAK_ARRAY_SIZE":  strconv.Itoa(size),
	}
	if a.Gang > 0 {
		env["OFFPEAK_GANG_RANK"], env["OFFPEAK_GANG_SIZE"] = strconv.Itoa(index), strconv.Itoa(size)
	}
	for name, value := range a.Params(index) {
		env["OFFPEAK_PARAM_"+strings.ToUpper(name)] = value
	}
	return env
}

// GroupState is the state of a whole. As long as members are open it is that of the
// one that is furthest, running where some have ended and others wait; then it is
// failed if any failed, else cancelled if any was cancelled, else succeeded.
func GroupState(counts map[JobState]int) JobState {
	open, ended := 0, 0
	for state, n := range counts {
		if state.Terminal() {
			ended += n
		} else {
			open += n
		}
	}
	has := func(s JobState) bool { return counts[s] > 0 }
	switch {
	case open == 0 && has(JobFailed):
		return JobFailed
	case open == 0 && has(JobCancelled):
		return JobCancelled
	case open == 0 && ended > 0:
		return JobSucceeded
	case has(JobRunning):
		return JobRunning
	case open > 0 && open == counts[JobCancelling]:
		return JobCancelling
	case ended > 0:
		return JobRunning
	case has(JobLeased), has(JobCancelling):
		return JobLeased
	case has(JobBlocked) && !has(JobQueued):
		return JobBlocked
	}
	return JobQueued
}

// GroupIndexes is the data of the events group.blocked, group.queued, group.cancelled
// and group.failed: the
// members that they are about.
type GroupIndexes struct {
	Group    GroupID `json:"group"`
	Indexes  Indexes `json:"indexes"`
	Spec     Hash    `json:"spec,omitempty"`
	Priority int     `json:"priority,omitempty"`
	AtOnce   int     `json:"at_once,omitempty"`
	Gang     int     `json:"gang,omitempty"`
	RetryOf  GroupID `json:"retry_of,omitempty"`
	// GroupAsks is said once, not with each batch of members.
	*GroupAsks
}

// GroupAsks is what members ask for, as the event job.queued says it of one job. It
// stands in an array's event group.blocked, and in its first group.queued.
type GroupAsks struct {
	Driver       string        `json:"driver,omitempty"`
	Requirements *Requirements `json:"requirements,omitempty"`
	Policy       Policy        `json:"policy,omitempty"`
	Limit        Duration      `json:"time_limit,omitempty"`
	Retry        *RetryPolicy  `json:"retry,omitempty"`
}
