package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

// A price or an amount that is none is refused wherever one can enter, with the
// door and the rule named: flags and files by their commands, JSON by the API. Not
// one row of the hub is different after.
func TestBadPricesAtEveryDoor(t *testing.T) {
	home := t.TempDir()
	h := startHub(t, home, "--heartbeat", "1m", "--timeout", "3m")
	l := localFile(t, home)
	if code, _, stderr := once(t, home, "agent", "join", "--data", filepath.Join(home, "node"), "--name", "tower"); code != 0 {
		t.Fatalf("join: %s", stderr)
	}
	db := filepath.Join(home, "hub", "offpeak.db")
	before := rows(t, db)

	// refuse runs a command line that has to be refused with what it names.
	refuse := func(t *testing.T, stdin string, names []string, args ...string) {
		t.Helper()
		var stdout, stderr bytes.Buffer
		vars := map[string]string{"OFFPEAK_HOME": home, "TZ": "Europe/Berlin"}
		code := Main(t.Context(), args, Env{Stdin: strings.NewReader(stdin), Stdout: &stdout, Stderr: &stderr, Getenv: func(k string) string { return vars[k] }})
		if code != world.ExitUsage || stdout.Len() > 0 {
			t.Errorf("%q: exit code %d, want 2; printed %q; said %q", args, code, stdout.String(), stderr.String())
		}
		for _, name := range names {
			if !strings.Contains(stderr.String(), name) {
				t.Errorf("%q: said %q, want it to name %q", args, stderr.String(), name)
			}
		}
	}
	common := []string{"", "-1", "NaN", "Inf", "Infinity", "1e400", "1e3", "0x10", "null", "1,5", ".5", "5."}
	prices := []string{"0.25", "0.25/d", "0.25 EUR/h", "$0.25/h", "€0.25/h", "1000000.000001/h", "0.0000001/h", "0.25/h/h", "9223372036854775808/h"}
	for _, bad := range common {
		prices = append(prices, bad, bad+"/h")
	}
	amounts := append([]string{"5/h", "5 EUR", "$5", "1000000000001", "0.0000001", "9223372036854775808"}, common...)

	const price, amount = "credits per hour", "credits"
	for _, bad := range prices {
		t.Run("price "+bad, func(t *testing.T) {
			refuse(t, "", []string{"--max-price", price}, "run", "--max-price="+bad, "--", "true")
			refuse(t, "", []string{"--max-price", price}, "submit", "--max-price="+bad, "--", "true")
			refuse(t, "", []string{"--max-price", price}, "quote", "--max-price="+bad)
			refuse(t, "task: {command: [x]}\nrequirements: {max_price: \""+strings.ReplaceAll(bad, `"`, "")+"\"}", []string{"requirements.max_price", "a price with its unit"}, "submit", "-f", "-")
			refuse(t, "", []string{"PRICE"}, "ask", "set", "--", bad)
			refuse(t, "", []string{"--cpu", price}, "ask", "set", "0.25/h", "--cpu="+bad)
			refuse(t, "", []string{"--floor"}, "ask", "set", "0.25/h", "--floor="+bad)
			refuse(t, "", []string{"--window"}, "ask", "set", "0.25/h", "--window=daily 00:00-24:00 "+bad)
			refuse(t, "", []string{"--floor"}, "ask", "auto", "--floor="+bad)
			refuse(t, "", []string{"--floor", price}, "ask", "suggest", "--floor="+bad)
			refuse(t, "", []string{"--auction-step", price}, "hub", "--data", filepath.Join(home, "other"), "--auction-step="+bad)
		})
	}
	for _, bad := range amounts {
		t.Run("amount "+bad, func(t *testing.T) {
			refuse(t, "", []string{"--budget", amount}, "run", "--budget="+bad, "--", "true")
			refuse(t, "task: {command: [x]}\nlimits: {budget: \""+bad+"\"}", []string{"limits.budget", "is an amount"}, "submit", "-f", "-")
			refuse(t, "", []string{"--kwh", amount}, "ask", "suggest", "--kwh="+bad)
			refuse(t, "", []string{"--cost", amount}, "ask", "suggest", "--cost="+bad)
			refuse(t, "", []string{"--hours"}, "quote", "--hours="+bad)
			refuse(t, "", []string{"--fee"}, "hub", "--data", filepath.Join(home, "other"), "--fee="+bad)
		})
	}
	for _, tt := range []struct {
		name, file string
		names      []string
		args       []string
	}{
		{"null in a file", "task: {command: [x]}\nrequirements: {max_price: null}", []string{"requirements.max_price"}, []string{"submit", "-f", "-"}},
		{"nothing in a file", "task: {command: [x]}\nlimits: {budget: }", []string{"limits.budget"}, []string{"submit", "-f", "-"}},
		{"not a number in a file", "task: {command: [x]}\nlimits: {budget: .nan}", []string{"limits.budget"}, []string{"submit", "-f", "-"}},
		{"without end in a file", "task: {command: [x]}\nlimits: {budget: .inf}", []string{"limits.budget"}, []string{"submit", "-f", "-"}},
		{"a list in a file", "task: {command: [x]}\nrequirements: {max_price: [1]}", []string{"requirements.max_price"}, []string{"submit", "-f", "-"}},
		{"a bare number in a file", "task: {command: [x]}\nrequirements: {max_price: 0.40}", []string{"requirements.max_price", "with its unit"}, []string{"submit", "-f", "-"}},
		{"no price", "", []string{"ask set --help"}, []string{"ask", "set"}},
		{"no floor", "", []string{"--floor"}, []string{"ask", "auto"}},
		{"unknown zone", "", []string{"--zone", "time zone"}, []string{"ask", "set", "1/h", "--window", "daily 00:00-12:00 1/h", "--zone", "Europe/Atlantis"}},
		{"a window without length", "", []string{"--window"}, []string{"ask", "set", "1/h", "--window", "daily 12:00-12:00 1/h"}},
		{"a window of no day", "", []string{"--window"}, []string{"ask", "set", "1/h", "--window", "holidays 10:00-12:00 1/h"}},
		{"a window past midnight", "", []string{"--window"}, []string{"ask", "set", "1/h", "--window", "daily 10:00-24:01 1/h"}},
		{"too many windows", "", []string{"--window", "at most 64"}, append([]string{"ask", "set", "1/h"}, many("--window=daily 10:00-12:00 1/h", 65)...)},
		{"ends before it begins", "", []string{"--until"}, []string{"ask", "set", "1/h", "--from", "2026-03-02", "--until", "2026-03-01"}},
		{"over already", "", []string{"--until", "a time to come"}, []string{"ask", "set", "1/h", "--until", "2026-03-01"}},
		{"an empty zone", "", []string{"--zone", "not empty"}, []string{"ask", "set", "1/h", "--zone", ""}},
		{"an empty zone of a suggestion", "", []string{"--zone", "not empty"}, []string{"ask", "suggest", "--kwh", "0.3", "--zone", ""}},
		{"an empty end", "", []string{"--until", "not empty"}, []string{"ask", "set", "1/h", "--until", ""}},
		{"a node twice", "", []string{"NODE", "named once"}, []string{"ask", "set", "1/h", "tower", "tower"}},
		{"a node twice, to clear", "", []string{"NODE", "named once"}, []string{"ask", "clear", "tower", "tower"}},
		{"a time that is none", "", []string{"--from"}, []string{"ask", "set", "1/h", "--from", "tomorrow"}},
		{"below the floor", "", []string{"PRICE", "not below the floor"}, []string{"ask", "set", "0.10/h", "tower", "--floor", "0.20/h"}},
		{"a discount of more than all", "", []string{"--discount", "at most 100%"}, []string{"ask", "auto", "tower", "--floor", "0.20/h", "--discount", "101%"}},
		{"no number of a discount", "", []string{"--discount", "at most 100%"}, []string{"ask", "auto", "--floor", "0.20/h", "--discount", "NaN%"}},
		{"no number of a fee", "", []string{"--fee", "at most 100%"}, []string{"hub", "--fee", "NaN%"}},
		{"a fee of more than all", "", []string{"--fee", "at most 100%"}, []string{"hub", "--fee", "100.01%"}},
		{"a share without its unit", "", []string{"--slack"}, []string{"ask", "auto", "--floor", "0.20/h", "--slack", "5"}},
		{"a node and an account", "", []string{"--account"}, []string{"ask", "set", "1/h", "tower", "--account"}},
		{"23 prices of a day", "", []string{"--kwh"}, []string{"ask", "suggest", "--kwh", strings.TrimSuffix(strings.Repeat("0.3,", 23), ",")}},
		{"a life of nothing", "", []string{"--life"}, []string{"ask", "suggest", "--life", "0s"}},
		{"measured, but how much", "", []string{"--watts"}, []string{"ask", "suggest", "--measured"}},
		{"a time backwards", "", []string{"--since"}, []string{"market", "history", "--since=-1h"}},
		{"both resolutions", "", []string{"--minute"}, []string{"market", "history", "--minute", "--hour"}},
		{"a kind of nothing", "", []string{"--plain"}, []string{"market", "history", "--plain", "--model", "4090"}},
	} {
		t.Run(tt.name, func(t *testing.T) { refuse(t, tt.file, tt.names, tt.args...) })
	}

	tower := nodeNamed(t, l, "tower")
	own := whoami(t, l).Account.ID
	const task = `"task":{"driver":"process","command":["true"]}`
	type door struct{ method, path, body, field string }
	// What a number breaks is one of these.
	rules := []string{"micro-credits", "is from ", "never null", "is one JSON value"}
	ask := func(body, field string) []door {
		return []door{{"PUT", "/v1/nodes/" + tower + "/ask", body, field}, {"PUT", "/v1/accounts/" + string(own) + "/ask", body, field}}
	}
	// %s in a body is the price.
	priced := []door{
		{"POST", "/v1/jobs", `{` + task + `,"requirements":{"max_price":%s}}`, "requirements.max_price"},
		{"POST", "/v1/quote", `{"requirements":{"max_price":%s}}`, "requirements.max_price"},
		{"POST", "/v1/nodes/" + tower + "/ask/suggest", `{"floor":%s}`, "floor"},
	}
	priced = append(priced, ask(`{"ask":{"gpu":%s}}`, "ask.gpu")...)
	priced = append(priced, ask(`{"ask":{"gpu":1,"cpu":%s}}`, "ask.cpu")...)
	priced = append(priced, ask(`{"ask":{"gpu":1},"floor":{"gpu":%s}}`, "floor.gpu")...)
	amounting := []door{
		{"POST", "/v1/jobs", `{` + task + `,"limits":{"budget":%s}}`, "limits.budget"},
		{"POST", "/v1/nodes/" + tower + "/ask/suggest", `{"cost":%s}`, "cost"},
		{"POST", "/v1/nodes/" + tower + "/ask/suggest", `{"kwh":[%s]}`, "kwh"},
	}
	numbers := []string{`-1`, `NaN`, `Infinity`, `-Infinity`, `1e400`, `1e3`, `0x10`, `null`, `0.25`, `"0.25/h"`, `"0.25"`, `"0.25 EUR/h"`, `""`, `[]`, `{}`, `true`, `9223372036854775808`}
	var doors []door
	for _, bad := range append(numbers, "1000000000001") {
		for _, d := range priced {
			d.body = fmt.Sprintf(d.body, bad)
			doors = append(doors, d)
		}
	}
	for _, bad := range append(numbers, "1000000000000000001") {
		for _, d := range amounting {
			d.body = fmt.Sprintf(d.body, bad)
			doors = append(doors, d)
		}
	}
	numeric := len(doors)
	for _, plan := range [][2]string{
		{`{}`, "ask"}, {`{"ask":null}`, "ask"}, {`{"ask":{}}`, "ask.gpu"}, {`{"ask":{"cpu":1}}`, "ask.gpu"}, {`{"ask":{"gpu":1},"floor":{}}`, "floor.gpu"},
		{`{"ask":{"gpu":1},"floor":{"gpu":2}}`, "ask"}, {`{"ask":{"gpu":1},"zone":"Europe/Atlantis"}`, "zone"}, {`{"ask":{"gpu":1},"zone":"Local"}`, "zone"}, {`{"ask":{"gpu":1},"zone":"../../etc/passwd"}`, "zone"},
		{`{"ask":{"gpu":1},"windows":["daily 10:00-10:00 1/h"]}`, "windows[0]"}, {`{"ask":{"gpu":1},"windows":["daily 10:00-11:00 1/h","daily 10:00-11:00 1"]}`, "windows[1]"},
		{`{"ask":{"gpu":1},"windows":[` + strings.TrimSuffix(strings.Repeat(`"daily 10:00-11:00 1/h",`, 65), ",") + `]}`, "windows"},
		{`{"ask":{"gpu":1},"from":"2026-03-02T00:00:00Z","until":"2026-03-01T00:00:00Z"}`, "until"}, {`{"ask":{"gpu":1},"from":"soon"}`, "from"},
		{`{"ask":{"gpu":1},"until":"2026-03-01T00:00:00Z"}`, "until"}, {`{"ask":{"gpu":1},"zone":""}`, "zone"},
		{`{"ask":{"gpu":1},"auto":{"discount_basis_points":10001}}`, "auto.discount_basis_points"}, {`{"ask":{"gpu":1},"auto":{"slack_basis_points":-1}}`, "auto.slack_basis_points"},
		{`{"ask":{"gpu":1},"price":1}`, "price"}, {``, "body"}, {`null`, ""},
	} {
		doors = append(doors, ask(plan[0], plan[1])...)
	}
	doors = append(doors,
		door{"POST", "/v1/nodes/" + tower + "/ask/suggest", `{"kwh":[1,2]}`, "kwh"}, door{"POST", "/v1/nodes/" + tower + "/ask/suggest", `{"watts":-1}`, "watts"},
		door{"POST", "/v1/nodes/" + tower + "/ask/suggest", `{"life":"1m"}`, "life"}, door{"POST", "/v1/nodes/" + tower + "/ask/suggest", `{"zone":"Mars"}`, "zone"}, door{"POST", "/v1/nodes/" + tower + "/ask/suggest", `{"zone":""}`, "zone"},
		door{"POST", "/v1/nodes/" + tower + "/ask/suggest", `{"measured":true}`, "measured"},
		door{"POST", "/v1/quote", `{"requirements":{},"limit":-1}`, "limit"}, door{"POST", "/v1/quote", `{"requirements":{},"limit":101}`, "limit"}, door{"POST", "/v1/quote", `{"requirements":{},"for":"-1h"}`, "for"},
		door{"POST", "/v1/quote", `{"requirements":{},"driver":"docker"}`, "driver"},
	)
	for _, query := range [][2]string{
		{"resolution=day", "resolution"}, {"vram=24", "vram"}, {"vram=-1GB", "vram"}, {"vram=NaN", "vram"}, {"vram=Infinity", "vram"}, {"vram=null", "vram"}, {"vram=1025TiB", "vram"}, {"vram=0.1B", "vram"}, {"vram=24EUR", "vram"}, {"from=yesterday", "from"}, {"until=2026-03-01", "until"}, {"from=2026-03-02T00:00:00Z&until=2026-03-02T00:00:00Z", "until"},
		{"plain=true&model=4090", "plain"}, {"plain=perhaps", "plain"}, {"limit=0", "limit"}, {"limit=NaN", "limit"}, {"colour=red", "colour"}, {"cursor=x", ""}, {"model=" + strings.Repeat("x", 200), "model"},
	} {
		doors = append(doors, door{"GET", "/v1/market/history?" + query[0], "", query[1]})
	}
	for i, d := range doors {
		status, p := call(t, l, d.method, d.path, d.body)
		named := d.field == ""
		for _, f := range p.Errors {
			named = named || strings.Contains(f.Location, d.field) && f.Message != ""
		}
		// A number that is no JSON has no field.
		named = named || len(p.Errors) == 1 && p.Errors[0].Location == "body"
		if status < 400 || status >= 500 || p.Next == "" || !named {
			t.Errorf("%s %s %.200s: %d %+v, want it refused by name of %s", d.method, d.path, d.body, status, p, d.field)
		}
		if i < numeric && !slices.ContainsFunc(rules, func(rule string) bool { return len(p.Errors) > 0 && strings.Contains(p.Errors[0].Message, rule) }) {
			t.Errorf("%s %s %.200s: %+v, want the rule", d.method, d.path, d.body, p.Errors)
		}
	}
	if after := rows(t, db); !maps.Equal(before, after) {
		t.Errorf("rows before %v, after %v", before, after)
	}
	h.stop()
}

func many(s string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = s
	}
	return out
}

// call makes a request as this user and returns the problem that it is answered with.
func call(t *testing.T, l wire.Local, method, path, body string) (int, wire.Problem) {
	t.Helper()
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, l.Hubs[0]+path, in)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+l.Token)
	req.Header.Set(wire.HeaderOperation, "op-doors")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var p wire.Problem
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil {
		t.Errorf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, p
}

func whoami(t *testing.T, l wire.Local) wire.Whoami {
	t.Helper()
	who, err := direct(l).Whoami(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return who
}

func nodeNamed(t *testing.T, l wire.Local, name string) string {
	t.Helper()
	list, err := direct(l).Nodes(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range list.Items {
		if n.Name == name {
			return string(n.ID)
		}
	}
	t.Fatalf("no node is named %s", name)
	return ""
}

// The operator's rules of the market are refused by the name of their flag, and
// one that stands in the file of settings by its place there.
func TestHubRefusesRulesOfTheMarket(t *testing.T) {
	dir := t.TempDir()
	factors := func(text string) string {
		path := filepath.Join(dir, fmt.Sprintf("factors-%d.json", len(text)))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return "--demand-factors=" + path
	}
	for _, tt := range []struct{ arg, say string }{
		{"--auction-margin=0%", "is from 1% to 1000%"}, {"--auction-margin=10", "share in per cent"}, {"--auction-margin=NaN%", "share in per cent"},
		{"--auction-step=0/h", "is from 0.000001/h"}, {"--auction-min-run=-1s", "is from 0s"}, {"--auction-respite=-1s", "is from 0s"},
		{"--non-interruptible-premium=1000.01%", "share in per cent"}, {"--fee=100.01%", "at most 100%"}, {"--fee=-1%", "share in per cent"},
		{"--price-term=0s", "is from 1s"}, {"--price-term=-1h", "is from 1s"}, {"--price-term=720h1s", "to 720h0m0s"}, {"--price-term=87600h", "to 720h0m0s"}, {"--price-term=65m", "a whole number of paid intervals"},
		{"--paid-interval=999ms", "is from 1s"}, {"--paid-interval=-10m", "is from 1s"}, {"--paid-interval=0", "is from 1s"}, {"--paid-interval=2h", "is at most --price-term"}, {"--paid-interval=Inf", "length of time"},
		{"--demand-factors=" + filepath.Join(dir, "none"), "no such file"}, {factors(`null`), "holds a list"}, {factors(`{"a":1}`), "holds a list"},
		{factors(`[{"colour":"x"}]`), "colour"}, {factors(`[] []`), "more than one value"}, {factors(`[{"idle_basis_points":-1}]`), "idle_basis_points"},
	} {
		var stderr bytes.Buffer
		code := Main(t.Context(), []string{"hub", "--data", filepath.Join(dir, "hub"), tt.arg}, Env{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: &stderr, Getenv: func(k string) string { return map[string]string{"OFFPEAK_HOME": dir}[k] }})
		flag, _, _ := strings.Cut(tt.arg, "=")
		if said := stderr.String(); code != world.ExitUsage || !strings.Contains(said, flag) || !strings.Contains(said, tt.say) {
			t.Errorf("%s: exit code %d, said %q, want %s and %q", tt.arg, code, said, flag, tt.say)
		}
	}
}
