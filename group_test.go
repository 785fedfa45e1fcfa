package offpeak

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestMemberIDs(t *testing.T) {
	g := NewGroupID("group_01jd8zk3x9f0wr4c2m7qv5t6ae")
	if !g.Valid() || g != "group_01jd8zk3x9f0wr4c2m7qv50000" {
		t.Fatalf("NewGroupID = %s", g)
	}
	for _, index := range []int{0, 1, 31, 32, 1023, 99_999, MaxIndex} {
		id := g.Member(index)
		if of, i, ok := id.Member(); !ok || of != g || i != index || len(id) != len("job_")+26 {
			t.Errorf("member %d is %s, which is read as %s, %d, %v", index, id, of, i, ok)
		}
	}
	if g.Member(9) >= g.Member(10) || g.Member(99) >= g.Member(1000) {
		t.Error("ids of members do not sort by index")
	}
	for _, id := range []GroupID{"", "group_", "group_01jd8zk3x9f0wr4c2m7qv5t6ae", "job_01jd8zk3x9f0wr4c2m7qv50000", "group_01jd8zk3x9f0wr4c2m7qvU0000"} {
		if id.Valid() {
			t.Errorf("%q is taken for a group's id", id)
		}
	}
	for _, id := range []JobID{"", "job_1", "group_01jd8zk3x9f0wr4c2m7qv50000", "job_01jd8zk3x9f0wr4c2m7qv5ilou"} {
		if _, _, ok := id.Member(); ok {
			t.Errorf("%q is taken for a member's id", id)
		}
	}
}

func TestIndexes(t *testing.T) {
	for text, want := range map[string]struct {
		canonical string
		n         int
	}{
		"0": {"0", 1}, "0-999": {"0-999", 1000}, "3,7,10-12": {"3,7,10-12", 5}, "1,2,3": {"1-3", 3}, "0-3,4-5,7": {"0-5,7", 7}, "007": {"7", 1}, "999999": {"999999", 1},
	} {
		x, err := ParseIndexes(text)
		if err != nil || x.String() != want.canonical || x.Len() != want.n {
			t.Errorf("ParseIndexes(%q) = %s (%d), %v; want %s (%d)", text, x, x.Len(), err, want.canonical, want.n)
		}
	}
	for text, rule := range map[string]string{
		"": "whole numbers", "-": "whole numbers", "a": "whole numbers", "1-": "whole numbers", "-1": "whole numbers", "1.5": "whole numbers", "NaN": "whole numbers", "1 - 2": "whole numbers", "1,,2": "whole numbers",
		"+1": "whole numbers", "1000000": "whole numbers", "99999999999999999999": "whole numbers", "9-0": "run upward", "5,5": "each index once", "5,3": "each index once", "0-5,5": "each index once",
		"0-100000": "at most 100000", "0-50000,60000-120000": "at most 100000",
	} {
		if x, err := ParseIndexes(text); err == nil || !strings.Contains(err.Error(), rule) {
			t.Errorf("ParseIndexes(%q) = %s, %v; want the rule %q", text, x, err, rule)
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		set := map[int]bool{}
		for range 1 + rng.IntN(60) {
			set[rng.IntN(90)] = true
		}
		var list []int
		for i := range 90 {
			if set[i] {
				list = append(list, i)
			}
		}
		x := IndexesOf(list)
		again, err := ParseIndexes(x.String())
		if err != nil || !slices.Equal(again, x) || !slices.Equal(slices.Collect(x.All()), list) || x.Len() != len(list) {
			t.Fatalf("%v is written %s and read %v, %v", list, x, again, err)
		}
		from, n := rng.IntN(len(list)+2), rng.IntN(len(list)+2)
		if got, want := slices.Collect(x.Part(from, n).All()), list[min(from, len(list)):min(from+n, len(list))]; !slices.Equal(got, want) {
			t.Fatalf("%s.Part(%d, %d) = %v, want %v", x, from, n, got, want)
		}
		for place, i := range list {
			if got, ok := x.Place(i); !ok || got != place {
				t.Fatalf("%s.Place(%d) = %d, %v, want %d", x, i, got, ok, place)
			}
		}
		if _, ok := x.Place(90); ok {
			t.Fatalf("%s has 90", x)
		}
	}
}

func TestSweep(t *testing.T) {
	a := Array{Sweep: []Parameter{{"lr", []string{"0.1", "0.01"}}, {"seed", []string{"1", "2", "3"}}}}
	if err := a.Validate(); err != nil || a.Members().String() != "0-5" {
		t.Fatalf("Validate = %v, members %s", err, a.Members())
	}
	seen := map[string]bool{}
	for i := range a.Members().All() {
		p := a.Params(i)
		seen[p["lr"]+" "+p["seed"]] = true
	}
	if p := a.Params(4); len(seen) != 6 || p["lr"] != "0.01" || p["seed"] != "2" {
		t.Errorf("combinations %v, the fifth %v", seen, p)
	}
	many := make([]string, 1000)
	for i := range many {
		many[i] = "v"
	}
	for what, c := range map[string]struct {
		array Array
		rule  string
	}{
		"nothing":         {Array{}, "at least one index"},
		"both":            {Array{Indexes: Indexes{{0, 1}}, Sweep: a.Sweep}, "goes without indexes"},
		"no values":       {Array{Sweep: []Parameter{{"a", nil}}}, "at least one value"},
		"an empty value":  {Array{Sweep: []Parameter{{"a", []string{""}}}}, "not empty"},
		"NaN":             {Array{Sweep: []Parameter{{"a", []string{"nan"}}}}, "finite"},
		"infinity":        {Array{Sweep: []Parameter{{"a", []string{"-Inf"}}}}, "finite"},
		"a NUL":           {Array{Sweep: []Parameter{{"a", []string{"a\x00"}}}}, "printable"},
		"no name":         {Array{Sweep: []Parameter{{"", []string{"1"}}}}, "environment variable"},
		"a digit first":   {Array{Sweep: []Parameter{{"1a", []string{"1"}}}}, "environment variable"},
		"a dash":          {Array{Sweep: []Parameter{{"a-b", []string{"1"}}}}, "environment variable"},
		"a letter afar":   {Array{Sweep: []Parameter{{"ä", []string{"1"}}}}, "environment variable"},
		"twice":           {Array{Sweep: []Parameter{{"a", []string{"1"}}, {"A", []string{"1"}}}}, "given once"},
		"too many":        {Array{Sweep: []Parameter{{"a", many}, {"b", many}}}, "at most 100000 combinations"},
		"a negative most": {Array{Indexes: Indexes{{0, 1}}, AtOnce: -1}, "from 0 to"},
		"too large":       {Array{Sweep: []Parameter{{"a", []string{strings.Repeat("x", 2000)}}}}, "at most 1024 bytes"},
		"17 parameters":   {Array{Sweep: slices.Repeat([]Parameter{{"a", []string{"1"}}}, 17)}, "at most 16"},
	} {
		if err := c.array.Validate(); err == nil || !strings.Contains(err.Error(), c.rule) {
			t.Errorf("%s: %v, want the rule %q", what, err, c.rule)
		}
	}
	var read Array
	if err := json.Unmarshal([]byte(`{"indexes":"0-9,20","at_once":3}`), &read); err != nil || read.Members().Len() != 11 || read.AtOnce != 3 {
		t.Errorf("read %+v, %v", read, err)
	}
	if text, err := json.Marshal(read); err != nil || string(text) != `{"indexes":"0-9,20","at_once":3}` {
		t.Errorf("written %s, %v", text, err)
	}
}

func TestGroupState(t *testing.T) {
	type counts = map[JobState]int
	for _, c := range []struct {
		counts counts
		want   JobState
	}{
		{counts{JobQueued: 3}, JobQueued},
		{counts{JobBlocked: 3}, JobBlocked},
		{counts{JobBlocked: 3, JobQueued: 1}, JobQueued},
		{counts{JobQueued: 3, JobLeased: 1}, JobLeased},
		{counts{JobQueued: 3, JobRunning: 1, JobFailed: 1}, JobRunning},
		{counts{JobQueued: 3, JobSucceeded: 1}, JobRunning},
		{counts{JobCancelling: 1, JobCancelled: 7}, JobCancelling},
		{counts{JobSucceeded: 3}, JobSucceeded},
		{counts{JobSucceeded: 3, JobCancelled: 1}, JobCancelled},
		{counts{JobSucceeded: 3, JobCancelled: 1, JobFailed: 1}, JobFailed},
	} {
		if got := GroupState(c.counts); got != c.want {
			t.Errorf("GroupState(%v) = %s, want %s", c.counts, got, c.want)
		}
	}
}

// A gang has nothing that an array chooses, and members from 0.
func TestGangArray(t *testing.T) {
	a := Array{Gang: 3}
	if err := a.Validate(); err != nil || a.Members().String() != "0-2" {
		t.Errorf("a gang of 3 has the members %s, %v", a.Members(), err)
	}
	for _, c := range []struct {
		array Array
		rule  string
	}{
		{Array{Gang: 1}, "array.gang"}, {Array{Gang: -2}, "array.gang"}, {Array{Gang: MaxGang + 1}, "array.gang"},
		{Array{Gang: 2, Indexes: Indexes{{0, 1}}}, "array.indexes: goes without a gang"},
		{Array{Gang: 2, AtOnce: 1}, "array.at_once: goes without a gang"},
		{Array{Gang: 2, Sweep: []Parameter{{Name: "a", Values: []string{"1", "2"}}}}, "array.sweep: goes without a gang"},
	} {
		if err := c.array.Validate(); err == nil || !strings.Contains(err.Error(), c.rule) {
			t.Errorf("%+v: %v, want the rule %q", c.array, err, c.rule)
		}
	}
	env := a.GroupEnv("group_x", 2, 3)
	if env["OFFPEAK_GANG_RANK"] != "2" || env["OFFPEAK_GANG_SIZE"] != "3" || env["OFFPEAK_ARRAY_INDEX"] != "2" {
		t.Errorf("a member finds %v", env)
	}
	if _, is := (Array{Indexes: Indexes{{0, 2}}}).GroupEnv("group_x", 2, 3)["OFFPEAK_GANG_RANK"]; is {
		t.Error("a member of an array has a rank")
	}
	// What is repeated of a gang keeps its ranks.
	if again := (Array{Gang: 3, Indexes: Indexes{{1, 2}}}); again.Members().String() != "1-2" {
		t.Errorf("the repeated members are %s", again.Members())
	}
	g := Group{Array: a, State: JobFailed, Reason: EndGangFailed, Detail: "member 1 was cancelled", Members: 3, Counts: map[JobState]int{JobFailed: 2, JobCancelled: 1}}
	if j := g.AsStep(); j.Reason != EndGangFailed || j.Detail != g.Detail {
		t.Errorf("as a step it is %+v", j)
	}
}
