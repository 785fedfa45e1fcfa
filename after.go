package offpeak

import (
	"errors"
	"fmt"
	"path"
	"strings"
)

// MaxAfter is the most jobs that one job may wait for.
const MaxAfter = 64

// MaxParts is the most members of an array whose outputs one job takes.
const MaxParts = 1000

// After is a job that another one waits for, or an array as a whole: it has ended
// when all its members have, and succeeded when each of them has.
type After struct {
	Job JobID `json:"job" doc:"a job of the same account, or an array as a whole, by its id"`
	// Any: its end counts, however it ended. Otherwise it must succeed.
	Any bool `json:"any,omitempty" doc:"its end counts, however it ended; otherwise it must succeed"`
	// Into is the folder in which its outputs are laid out, "" where they are not.
	Into string `json:"into,omitempty" doc:"folder in the job's folder where its outputs are laid out"`
}

// Awaited is a job that another one waits for, and how it fares.
type Awaited struct {
	Job  JobID  `json:"job"`
	Name string `json:"name,omitempty"`
	Any  bool   `json:"any,omitempty"`
	Into string `json:"into,omitempty"`
	// State is how it ended, once the one that waits was told; until then how it
	// stands. "" once it was pruned.
	State JobState `json:"state,omitempty"`
}

// ValidateAfter returns nil or every rule that a list of jobs to wait for breaks.
func ValidateAfter(list []After) error {
	var v validator
	if len(list) > MaxAfter {
		v.add("after", fmt.Sprint(len(list)), fmt.Sprintf("names at most %d jobs", MaxAfter))
		return errors.Join(v.errs...)
	}
	seen := make(map[JobID]bool, len(list))
	for i, a := range list {
		field := fmt.Sprintf("after[%d]", i)
		switch {
		case a.Job == "" || len(a.Job) > maxLabel || !printable(string(a.Job)):
			v.add(field+".job", string(a.Job), "names a job")
		case seen[a.Job]:
			v.add(field+".job", string(a.Job), "is named once")
		}
		seen[a.Job] = true
		if a.Into == "" {
			continue
		}
		// The agent keeps its own in .offpeak.
		if !local(a.Into) || a.Into == "." || len(a.Into) > maxPath || !printable(a.Into) || inside(a.Into, ".offpeak") {
			v.add(field+".into", a.Into, "is a folder inside the job's folder, without .., and not in .offpeak")
		}
		for _, o := range list[:i] {
			if o.Into != "" && (inside(a.Into, o.Into) || inside(o.Into, a.Into)) {
				v.add(field+".into", a.Into, "is a folder of its own, not in another one's nor around it")
			}
		}
	}
	return errors.Join(v.errs...)
}

// inside says that a path is a folder or lies in it.
func inside(p, folder string) bool {
	return p == folder || strings.HasPrefix(p, path.Clean(folder)+"/")
}
