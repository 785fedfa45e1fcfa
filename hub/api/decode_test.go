package api

import (
	"errors"
	"strings"
	"testing"

	"offpeak"
	"offpeak/wire"
)

func TestDecodeNamesEveryFault(t *testing.T) {
	const good = `"task":{"driver":"process","command":["true"]}`
	for _, tc := range []struct {
		name, body string
		// want maps fields to a part of their rule.
		want map[string]string
	}{
		{"nothing", ``, map[string]string{"body": "is missing"}},
		{"no JSON", `{"task":`, map[string]string{"body": "at byte 8"}},
		{"NaN", `{` + good + `,"priority":NaN}`, map[string]string{"body": "'N'"}},
		{"two values", `{` + good + `} {}`, map[string]string{"body": "one JSON value"}},
		{"a list", `[]`, map[string]string{"body": "is an object"}},
		{"unknown field", `{` + good + `,"nmae":"x"}`, map[string]string{"nmae": "is not known here; there is after, labels, limits, name"}},
		{"unknown field below", `{"task":{"driver":"process","command":["true"],"image":"x"}}`, map[string]string{"task.image": "is not known here"}},
		{"a unit that is none", `{` + good + `,"requirements":{"memory_bytes":"24GBB"}}`, map[string]string{"requirements.memory_bytes": "24GB"}},
		{"negative size", `{` + good + `,"requirements":{"memory_bytes":-1}}`, map[string]string{"requirements.memory_bytes": "from 0"}},
		{"size that is null", `{` + good + `,"requirements":{"memory_bytes":null}}`, map[string]string{"requirements.memory_bytes": "a size is"}},
		{"price that is null", `{` + good + `,"requirements":{"max_price":null}}`, map[string]string{"requirements.max_price": "never null"}},
		{"budget that is null", `{` + good + `,"limits":{"budget":null}}`, map[string]string{"limits.budget": "never null"}},
		{"budget that is text", `{` + good + `,"limits":{"budget":"5.00"}}`, map[string]string{"limits.budget": "whole number of micro-credits, from 0 to"}},
		{"price that is text", `{` + good + `,"requirements":{"max_price":"0.40/h"}}`, map[string]string{"requirements.max_price": "whole number of micro-credits per hour, from 0 to 1000000000000 (1000000.00/h)"}},
		{"price with a fraction", `{` + good + `,"requirements":{"max_price":0.4}}`, map[string]string{"requirements.max_price": "whole number of micro-credits per hour, from 0 to 1000000000000 (1000000.00/h)"}},
		{"price without end", `{` + good + `,"requirements":{"max_price":1e400}}`, map[string]string{"requirements.max_price": "whole number of micro-credits per hour, from 0 to 1000000000000 (1000000.00/h)"}},
		{"negative duration", `{` + good + `,"limits":{"time":"-1h"}}`, map[string]string{"limits.time": "a duration is"}},
		{"number for a duration", `{` + good + `,"limits":{"time":60}}`, map[string]string{"limits.time": "is a string"}},
		{"fraction for a count", `{` + good + `,"requirements":{"cpu_milli":1.5}}`, map[string]string{"requirements.cpu_milli": "whole number"}},
		{"over 63 bits", `{` + good + `,"requirements":{"cpu_milli":9223372036854775808}}`, map[string]string{"requirements.cpu_milli": "whole number"}},
		{"word for a list", `{"task":{"driver":"process","command":"true"}}`, map[string]string{"task.command": "is a list"}},
		{"number in a list", `{"task":{"driver":"process","command":["a",2]}}`, map[string]string{"task.command[1]": "is a string"}},
		{"number in a map", `{` + good + `,"labels":{"a":"b","c":3}}`, map[string]string{"labels.c": "is a string"}},
		{"in the second device", `{` + good + `,"requirements":{"gpus":[{"vram_bytes":"8GB"},{"vram_bytes":"8G"}]}}`, map[string]string{"requirements.gpus[1].vram_bytes": "a size is"}},
		{"a word of the inventory", `{` + good + `,"requirements":{"gpus":[{"vram":"8GB"}]}}`, map[string]string{"requirements.gpus[0].vram": "is not known here; there is compute, driver, kind, model, vendor, vram_bytes"}},
		{"number for a version", `{` + good + `,"requirements":{"gpus":[{"compute":8.6,"driver":535}]}}`, map[string]string{"requirements.gpus[0].compute": "is a string", "requirements.gpus[0].driver": "is a string"}},
		{"text for conditions", `{` + good + `,"requirements":{"match":"!metered","nodes":{"a":1}}}`, map[string]string{"requirements.match": "is a list", "requirements.nodes": "is a list"}},
		{"a field twice", `{` + good + `,"name":"a","name":"b"}`, map[string]string{"name": "given once"}},
		{"a field twice below", `{"task":{"driver":"process","driver":"wasm","command":["true"]}}`, map[string]string{"task.driver": "given once"}},
		{"a key of a map twice", `{` + good + `,"labels":{"a":"1","a":"2"}}`, map[string]string{"labels.a": "given once"}},
		{"a field in another case", `{` + good + `,"NAME":"a"}`, map[string]string{"NAME": "is not known here"}},
		{"broken UTF-8", `{` + good + ",\"name\":\"a\xff\"}", map[string]string{"name": "UTF-8"}},
		{"half a surrogate pair", `{` + good + `,"name":"a\ud800b"}`, map[string]string{"name": "UTF-8"}},
		{"broken UTF-8 in a command", `{"task":{"driver":"process","command":["true","` + "\xff" + `"]}}`, map[string]string{"task.command.1": "UTF-8"}},
		{"many at once", `{` + good + `,"x":1,"priority":"high","requirements":{"disk_bytes":"1"}}`,
			map[string]string{"x": "not known", "priority": "whole number", "requirements.disk_bytes": "a size is"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := decode[wire.NewJob]([]byte(tc.body))
			if !errors.Is(err, offpeak.ErrInvalid) {
				t.Fatalf("decode: %v, want ErrInvalid", err)
			}
			got := map[string]string{}
			for _, f := range wire.ProblemOf(err).Errors {
				got[f.Location] = f.Message
			}
			if len(got) != len(tc.want) {
				t.Errorf("faults %v, want %v", got, tc.want)
			}
			for field, part := range tc.want {
				if !strings.Contains(got[field], part) {
					t.Errorf("%s: %q, want it to say %q", field, got[field], part)
				}
			}
		})
	}
}

func TestDecodeReadsWhatIsWellFormed(t *testing.T) {
	s, err := decode[wire.NewJob]([]byte(` {"task":{"driver":"wasm","command":["a.wasm"],"checkpoint":{"every":"2m"}},
		"requirements":{"memory_bytes":"24GB","disk_bytes":7,"max_price":400000},"retry":null,"labels":null} ` + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	if s.Requirements.Memory != 24*offpeak.GB || s.Requirements.Disk != 7 || s.Task.Checkpoint.Every.Std().Minutes() != 2 {
		t.Errorf("decoded %+v", s)
	}
}

func TestDecodePipeline(t *testing.T) {
	p, err := decode[offpeak.Pipeline]([]byte(`{"steps":[{"name":"a","task":{"driver":"process","command":["true"]},"from":["b"],"requirements":{"max_price":7}}]}`))
	if err != nil || p.Steps[0].Name != "a" || p.Steps[0].From[0] != "b" || *p.Steps[0].Requirements.MaxPrice != 7 {
		t.Errorf("decoded %+v, %v", p, err)
	}
	_, err = decode[offpeak.Pipeline]([]byte(`{"steps":[{"name":"a","task":{"driver":"process","command":["true"]}},{"nmae":"b","limits":{"budget":null}}]}`))
	got := map[string]string{}
	for _, f := range wire.ProblemOf(err).Errors {
		got[f.Location] = f.Message
	}
	if len(got) != 2 || !strings.Contains(got["steps[1].nmae"], "there is after, after_any, array, from, labels") || !strings.Contains(got["steps[1].limits.budget"], "never null") {
		t.Errorf("faults %v", got)
	}
}

func TestDecodeBoundsWhatItSays(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"a":0`)
	for i := range 1000 {
		b.WriteString(`,"` + strings.Repeat("k", i+1) + `":0`)
	}
	b.WriteString("}")
	_, err := decode[wire.NewJob]([]byte(b.String()))
	if n := len(wire.ProblemOf(err).Errors); n > maxFaults {
		t.Errorf("%d faults told, want at most %d", n, maxFaults)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"task":{"driver":"process","command":["true"]}}`))
	f.Add([]byte(`{"task":{"command":[null]},"retry":{"user":-1}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		// Whatever is refused is refused as invalid, with a field.
		if _, err := decode[wire.NewJob](body); err != nil {
			if p := wire.ProblemOf(err); p.Code != "invalid" || len(p.Errors) == 0 {
				t.Errorf("problem %+v", p)
			}
		}
	})
}
