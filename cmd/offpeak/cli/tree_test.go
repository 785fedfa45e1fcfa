package cli

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"offpeak/cmd/offpeak/cli/world"
)

// tree calls f for every command that people are shown.
func tree(cmd *cobra.Command, f func(*cobra.Command)) {
	if cmd.Hidden || cmd.Name() == "help" || cmd.Name() == "completion" {
		return
	}
	f(cmd)
	for _, sub := range cmd.Commands() {
		tree(sub, f)
	}
}

func newTree() *cobra.Command {
	return New(Env{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard, Getenv: func(string) string { return "" }})
}

// Every command that prints tables prints JSON too: each is run with -o json
// against a hub, and a command that is new is missed here.
func TestEveryCommandPrintsJSON(t *testing.T) {
	home := t.TempDir()
	h := startHub(t, home)
	id := func(args ...string) string {
		t.Helper()
		code, stdout, stderr := once(t, home, args...)
		if code != 0 {
			t.Fatalf("offpeak %s: exit code %d: %s", strings.Join(args, " "), code, stderr)
		}
		return strings.TrimSpace(stdout)
	}
	data := filepath.Join(home, "node")
	id("agent", "join", "--data", data, "--name", "tower")
	first := id("submit", "-l", "a=b", "--", "true")
	token := id("token", "create", "--name", "spare", "-o", "name")
	id("account", "create", "lab")
	id("account", "invite", "lab", "ada")
	steps := filepath.Join(home, "steps.yaml")
	if err := os.WriteFile(steps, []byte("steps:\n  - {name: a, task: {command: [\"true\"]}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cancelled := id("submit", "--", "true")
	id("cancel", cancelled)
	// A command line for each command, "" for one that prints no tables, in the
	// order in which they can be run.
	lines := [][2]string{
		{"version", "version"}, {"whoami", "whoami"}, {"check", "check"},
		{"ps", "ps --all"}, {"show", "show " + first}, {"explain", "explain " + first}, {"logs", "logs " + first},
		{"wait", "wait " + cancelled}, {"retry", "retry " + cancelled}, {"outputs", ""},
		{"submit", "submit -- true"}, {"run", "run -d -- true"}, {"cancel", "cancel " + first},
		{"submit", "submit --array 0-3 -- true"}, {"show", "show -"}, {"cancel", "cancel -"}, {"wait", "wait -"}, {"retry", "retry -"}, {"logs", "logs -"}, {"run", "run -d --sweep a=1,2 -- true"}, {"ps", "ps"},
		{"pipeline run", "pipeline run --detach " + steps}, {"pipeline show", "pipeline show -"}, {"pipeline cancel", "pipeline cancel -"},
		{"pipeline wait", "pipeline wait -"}, {"pipeline retry", "pipeline retry -"},
		{"events", "events --after 0 --limit 3"},
		{"nodes", "nodes"}, {"nodes show", "nodes show tower"}, {"nodes drain", "nodes drain tower"}, {"nodes close", "nodes close tower"}, {"nodes open", "nodes open tower"}, {"nodes trust", "nodes trust tower"},
		{"ask set", "ask set 0.25/h tower --cpu 0.03/h"}, {"ask show", "ask show"}, {"ask history", "ask history tower"}, {"ask suggest", "ask suggest tower --kwh 0.30 --watts 350"},
		{"ask auto", "ask auto tower --floor 0.10/h"}, {"ask clear", "ask clear tower"}, {"market", "market"}, {"market history", "market history --plain"}, {"quote", "quote --cpu 1 --hours 3"},
		{"agent status", "agent status --data " + data}, {"agent pause", "agent pause --data " + data}, {"agent resume", "agent resume --data " + data}, {"agent drain", "agent drain --data " + data},
		{"agent doctor", "agent doctor --data " + data}, {"agent policy show", "agent policy show --data " + data}, {"agent policy set", "agent policy set --idle-after 10m --data " + data},
		{"nodes remove", "nodes remove tower"}, {"agent leave", "agent leave --data " + data},
		{"token ls", "token ls"}, {"token create", "token create --name ci"}, {"token join", "token join"}, {"token revoke", "token revoke " + token},
		{"account ls", "account ls"}, {"account create", "account create shed"}, {"account invite", "account invite shed bob"}, {"account members", "account members lab"},
		{"account quota", "account quota lab --running 3"}, {"account remove-member", "account remove-member lab ada"},
		{"context ls", "context ls"}, {"login", "login --token - " + h.url}, {"context use", "context use 127.0.0.1"}, {"context rm", "context rm 127.0.0.1"},
		{"weights show", "weights show"}, {"weights set", "weights set --memory 0.5"}, {"weights history", "weights history"},
		{"replay", "replay --from " + filepath.Join(home, "hub")}, {"replay record", "replay record --from " + filepath.Join(home, "hub") + " --out " + filepath.Join(home, "traffic.jsonl")},
		{"hubs", "hubs"}, {"backup", "backup " + filepath.Join(home, "backup")},
		{"migrate", ""}, // TestMigrate
		{"deposit", "deposit lab 12.50 --ref bank-1"}, {"balance", "balance lab"}, {"statement", "statement lab"}, {"receipt", "receipt " + first},
		{"payout", "payout lab 1.50 --ref transfer-1"}, {"payout return", "payout return transfer-1"},
		{"payout export", "payout export " + filepath.Join(home, "payouts.csv") + " --batch b1"},
		{"payments keygen", "payments keygen " + filepath.Join(home, "bank.key")}, {"payments show", "payments show " + filepath.Join(home, "bank.key")},
		{"payments verify", "payments verify " + filepath.Join(home, "payouts.csv") + " --key " + filepath.Join(home, "hub", "payments.key")},
		{"payments sign", ""}, {"deposit import", ""}, {"payout grid", ""}, // testdata/grid/money.txtar
	}
	known := map[string]bool{}
	for _, l := range lines {
		known[l[0]] = true
		if l[1] == "" {
			continue
		}
		cmd := offpeakCommand(t, home, append(strings.Fields(l[1]), "-o", "json")...)
		if at := strings.Index(l[1], " -- "); at >= 0 {
			cmd = offpeakCommand(t, home, append(append(strings.Fields(l[1][:at]), "-o", "json", "--"), strings.Fields(l[1][at+4:])...)...)
		}
		cmd.Stdin = strings.NewReader(localFile(t, home).Token + "\n")
		stdout, err := cmd.Output()
		if err != nil && !strings.HasSuffix(l[0], "wait") {
			t.Errorf("offpeak %s -o json: %v", l[1], err)
		}
		values := 0
		for dec := json.NewDecoder(strings.NewReader(string(stdout))); ; values++ {
			var v any
			if err := dec.Decode(&v); err == io.EOF {
				break
			} else if err != nil {
				t.Errorf("offpeak %s -o json: %v: %s", l[1], err, stdout)
				break
			}
		}
		// What a job printed may be nothing at all.
		if values == 0 && l[0] != "logs" {
			t.Errorf("offpeak %s -o json: printed nothing", l[1])
		}
	}
	tree(newTree(), func(cmd *cobra.Command) {
		name := strings.TrimPrefix(strings.TrimPrefix(cmd.CommandPath(), "offpeak"), " ")
		if cmd.Flag("format") != nil && cmd.Args != nil && !known[name] {
			t.Errorf("%s is not tried with -o json", name)
		}
	})
	h.stop()
}

var (
	// quoted is one word of a command line: quoted, a substitution, or plain.
	quoted = regexp.MustCompile(`"[^"]*"|'[^']*'|\$\([^)]*\)|[^\s]+`)
	// shown is a command line in a document: indented or after a prompt of code.
	shown = regexp.MustCompile("(?m)^ {4}(?:bin/)?(offpeak [^\n]*)|`(offpeak [^`\n]*)`")
)

// Every command line that is shown to people, in --help and in the documents,
// is one that the commands take.
func TestShownCommandLinesParse(t *testing.T) {
	type line struct{ where, text string }
	var all []line
	tree(newTree(), func(cmd *cobra.Command) {
		for text := range strings.SplitSeq(cmd.Example, "\n") {
			all = append(all, line{cmd.CommandPath() + " --help", strings.TrimSpace(text)})
		}
	})
	documents, err := filepath.Glob("../../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	examples, err := filepath.Glob("../../../examples/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(append(documents, examples...), "../../../README.md", "../../../SECURITY.md") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range shown.FindAllStringSubmatch(string(text), -1) {
			all = append(all, line{path, m[1] + m[2]})
		}
	}
	tried := 0
	for _, l := range all {
		for part := range strings.SplitSeq(strings.ReplaceAll(l.text, "&&", "|"), "|") {
			part, _, _ = strings.Cut(part, " #")
			part, _, _ = strings.Cut(part, " < ")
			part, _, _ = strings.Cut(part, " > ")
			words := quoted.FindAllString(part, -1)
			if len(words) < 2 || words[0] != "offpeak" || words[1] == "COMMAND" {
				continue
			}
			tried++
			for i, w := range words {
				if len(w) > 1 && (w[0] == '"' || w[0] == '\'') {
					words[i] = w[1 : len(w)-1]
				}
			}
			cmd, args, err := newTree().Find(words[1:])
			if err == nil {
				err = cmd.ParseFlags(args)
			}
			// In running text a command may stand without its arguments.
			if rest := cmd.Flags().Args(); err == nil && cmd.Args != nil && len(rest) > 0 {
				err = cmd.Args(cmd, rest)
			}
			if err != nil && !errors.Is(err, pflag.ErrHelp) {
				t.Errorf("%s: %s: %v", l.where, part, world.FlagError(err))
			}
		}
	}
	if tried < 100 {
		t.Errorf("only %d command lines were found", tried)
	}
}
