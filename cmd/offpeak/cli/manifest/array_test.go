package manifest

import (
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"offpeak"
)

func TestArrayFlags(t *testing.T) {
	read := func(args string) (*offpeak.Array, error) {
		var a Array
		cmd := &cobra.Command{}
		a.Bind(cmd)
		if err := cmd.ParseFlags(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		return a.Read(cmd)
	}
	if a, err := read(""); a != nil || err != nil {
		t.Errorf("no flags = %+v, %v", a, err)
	}
	for args, want := range map[string]struct {
		members, atOnce int
		last            string
	}{
		"--array 0-999%50":                                 {1000, 50, ""},
		"--array 3,7 --at-once 1":                          {2, 1, ""},
		"--array 0-9%3 --at-once 3":                        {10, 3, ""},
		"--sweep lr=0.1,0.01 --sweep seed=1..3":            {6, 0, "3"},
		"--sweep seed=-2..2,9 --at-once 2":                 {6, 2, "9"},
		"--sweep path=../a,../b --sweep optimizer=adam":    {2, 0, "adam"},
		"--sweep x=1e-3,5e-4 --sweep note=a=b --at-once=1": {2, 1, "a=b"},
	} {
		a, err := read(args)
		if err != nil || a.Members().Len() != want.members || a.AtOnce != want.atOnce {
			t.Errorf("%s = %+v, %v", args, a, err)
			continue
		}
		if n := len(a.Sweep); n > 0 {
			values := a.Sweep[n-1].Values
			if got := values[len(values)-1]; got != want.last {
				t.Errorf("%s: the last value is %q, want %q", args, got, want.last)
			}
		}
	}
	if a, err := read("--gang 4"); err != nil || a.Gang != 4 || a.Members().Len() != 4 {
		t.Errorf("--gang 4 = %+v, %v", a, err)
	}
	for args, rule := range map[string]string{
		"--gang 1":                       "from 2 to 64",
		"--gang 65":                      "from 2 to 64",
		"--gang 4 --array 0-3":           "goes without --array",
		"--gang 4 --sweep a=1,2":         "goes without --array",
		"--gang 4 --at-once 2":           "goes without --array",
		"--array 0-9%":                   "a number from 1",
		"--array 0-9%-1":                 "a number from 1",
		"--array 0-9%NaN":                "a number from 1",
		"--array 0-9%2 --at-once 3":      "given once",
		"--array 0-9 --at-once 0":        "from 1 to",
		"--array 0-9 --at-once=-4":       "from 1 to",
		"--array 0..9":                   "whole numbers",
		"--sweep lr":                     "written name=values",
		"--sweep =1":                     "environment variable",
		"--sweep a=1,,2":                 "not empty",
		"--sweep a=1..2..3":              "ranges of whole numbers",
		"--sweep a=0.1..0.9":             "ranges of whole numbers",
		"--sweep a=0..100000":            "combinations",
		"--sweep a=0..99999999999999999": "ranges of whole numbers",
		"--sweep a=1 --array 0-3":        "goes without indexes",
		"--at-once 3":                    "goes with",
	} {
		if a, err := read(args); !errors.Is(err, offpeak.ErrInvalid) || !strings.Contains(err.Error(), rule) {
			t.Errorf("%s = %+v, %v; want the rule %q", args, a, err, rule)
		}
	}
}
