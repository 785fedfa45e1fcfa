package offpeak

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// rooms is the table of arrows of the design: which packages of this module a
// room may import. A room is named by its folder; the longest name that is a
// prefix of a package's folder is the package's room. "*" is everything.
var rooms = []struct {
	room string
	may  []string
	why  string
}{
	{".", nil, "the vocabulary imports nothing: everyone imports it"},
	{"placement", []string{"."}, "placement is pure; it never sees the market, both speak of offers and quotes"},
	{"placement/queue", []string{".", "placement"}, "the order of the queue is pure; which node is best is placement's"},
	{"placement/past", []string{".", "placement"}, "what a node's past says is pure; who kept it, and what it is weighed for, is others'"},
	{"placement/replay", []string{".", "placement", "placement/queue", "placement/past"}, "a replay asks the real placement in the real order and is as pure"},
	{"market", []string{"."}, "the market is pure and knows nothing of routing"},
	{"ledger", []string{"."}, "the ledger is pure and knows nothing of who asks it"},
	{"ledger/csvbatch", []string{".", "ledger"}, "a payment adapter carries what the ledger recorded; the ledger knows no adapter"},
	{"store", []string{".", "ledger"}, "the contract knows no engine; a lease and its money change in one transaction, so it speaks of both"},
	{"store/sqlstore", []string{".", "store", "ledger"}, "the body both engines share knows neither; it applies what the ledger decides"},
	{"store/sqlite", []string{".", "store", "store/sqlstore"}, "an engine knows the contract and the shared body"},
	{"store/postgres", []string{".", "store", "store/sqlstore"}, "an engine knows the contract and the shared body"},
	{"store/moving", []string{".", "store", "store/sqlite", "store/postgres"}, "what carries rows between the engines knows both; neither knows it"},
	{"store/recorded", []string{".", "store", "placement", "placement/replay"}, "what a store recorded is read for replay through the contract; the store knows no placement"},
	{"store/storetest", []string{".", "store", "ledger"}, "the suite is written against the contract, not against an engine"},
	{"blob", []string{"."}, "bytes know nothing of accounts, jobs or networks"},
	{"blob/s3", []string{".", "blob"}, "a bucket holds objects and does not know what they mean"},
	{"blob/place", []string{".", "blob", "blob/s3"}, "a place is opened without knowing for whom"},
	{"blob/blobtest", []string{".", "blob"}, "the suite is written against the contract, not against a store"},
	{"wire", []string{".", "blob"}, "what is said on the network is not what is decided"},
	{"hub", []string{".", "placement", "placement/queue", "placement/past", "market", "ledger", "store", "blob", "wire", "hub/access", "hub/bell", "hub/data", "hub/money", "hub/trade", "hub/tuning", "hub/underway"}, "the hub composes decisions; how it is asked (api) lies above it"},
	{"hub/access", []string{".", "store", "wire"}, "who comes in is settled before anybody asks for jobs, nodes or bytes"},
	{"hub/bell", nil, "a bell wakes; what has happened is for the woken to read"},
	{"hub/underway", nil, "who waits for work to be over need not know what it is"},
	{"hub/data", []string{".", "store", "blob", "wire", "hub/bell"}, "bytes and their books know neither fleet nor queue, nor who may ask"},
	{"hub/money", []string{".", "ledger", "store", "wire"}, "money comes in and goes out without knowing what runs"},
	{"hub/tuning", []string{".", "placement", "store", "wire"}, "what is weighed is set without knowing what is matched"},
	{"hub/trade", []string{".", "market", "store", "wire"}, "the market is brought to the grid without knowing who matches"},
	{"hub/api", []string{".", "store", "blob", "wire", "hub", "hub/access", "hub/data", "hub/money", "hub/trade", "hub/tuning", "hub/dashboard"}, "the API makes no decisions, so it sees no room that does but the hub and its five"},
	{"hub/dashboard", []string{"."}, "the site is files"},
	{"agent", []string{".", "blob", "wire", "agent"}, "an agent knows what it is told: no hub, store, placement, market or ledger"},
	{"agent/link", []string{".", "wire"}, "a link carries messages and knows neither jobs nor folders"},
	{"agent/books", []string{".", "wire", "agent/hardware", "agent/state"}, "what is shown to the owner decides nothing"},
	{"agent/state", []string{".", "wire", "agent/link"}, "the data folder holds what others decided"},
	{"agent/transfer", []string{".", "blob", "wire", "agent/link", "agent/state"}, "data is carried without knowing what runs"},
	{"agent/warm", []string{".", "agent/supervisor"}, "a pool of supervisors knows no lease"},
	{"agent/supervisor", []string{".", "agent/driver", "agent/supervisor"}, "a supervisor knows no hub, not even its protocol"},
	{"agent/driver", []string{".", "agent/driver"}, "a driver runs a command and knows nothing else"},
	{"agent/egress", []string{"."}, "a proxy knows what may be reached, not what runs"},
	{"agent/hardware", []string{".", "agent/hardware"}, "probes report what is there"},
	{"agent/presence", []string{".", "agent/hardware", "agent/presence"}, "presence says whether one may work, not at what"},
	{"cmd", []string{"*", "cmd"}, "wiring sees everything; who may see hub and agent is said by file below"},
	{"cmd/offpeak/cli/render", []string{"."}, "showing a value asks nobody"},
	{"cmd/offpeak/cli/remote", []string{".", "blob", "wire"}, "reaching a hub knows no flags, terminals or tables"},
	{"cmd/offpeak/cli/world", []string{".", "wire", "cmd/offpeak/cli/render", "cmd/offpeak/cli/remote"}, "what commands stand in knows no command"},
	{"cmd/offpeak/cli/manifest", []string{".", "cmd/offpeak/cli/render", "cmd/offpeak/cli/world"}, "reading a spec asks no hub"},
	{"cmd/offpeak/cli/transfer", []string{".", "blob", "cmd/offpeak/cli/remote", "cmd/offpeak/cli/render", "cmd/offpeak/cli/world"}, "moving files knows no flags"},
	{"cmd/offpeak/cli/follow", []string{".", "wire", "cmd/offpeak/cli/remote", "cmd/offpeak/cli/render", "cmd/offpeak/cli/world"}, "staying with a job knows no flags"},
	{"cmd/offpeak/cli/arrays", []string{".", "wire", "cmd/offpeak/cli/follow", "cmd/offpeak/cli/remote", "cmd/offpeak/cli/transfer", "cmd/offpeak/cli/world"}, "staying with an array knows no flags"},
	{"cmd/offpeak/cli/people", []string{".", "blob", "wire", "market", "internal", "cmd/offpeak/cli/arrays", "cmd/offpeak/cli/follow", "cmd/offpeak/cli/manifest", "cmd/offpeak/cli/remote",
		"cmd/offpeak/cli/render", "cmd/offpeak/cli/transfer", "cmd/offpeak/cli/world"}, "people speak to a hub through wire, like everybody; asks are written as the market reads them"},
	{"cmd/offpeak/cli/trading", []string{".", "wire", "market", "cmd/offpeak/cli/manifest", "cmd/offpeak/cli/people", "cmd/offpeak/cli/remote", "cmd/offpeak/cli/render", "cmd/offpeak/cli/world"},
		"the commands of the market ask a hub for prices, and only write asks as the market does"},
	{"cmd/offpeak/cli/machine/page", nil, "a page shows what it is handed"},
	{"cmd/offpeak/cli/machine/doctor", []string{".", "wire", "agent/books", "agent/presence"}, "a doctor is handed what it looks at, and asks no agent and no hub itself"},
	{"cmd/offpeak/cli/machine", []string{".", "wire", "agent", "agent/books", "agent/egress", "agent/presence", "agent/state", "agent/supervisor", "cmd/offpeak/cli/machine/doctor", "cmd/offpeak/cli/machine/page", "cmd/offpeak/cli/render", "cmd/offpeak/cli/world"},
		"the owner's commands ask the agent of this machine; a doctor alone sees whether its hub answers"},
	{"cmd/offpeak/cli/money", []string{".", "wire", "cmd/offpeak/cli/people", "cmd/offpeak/cli/remote", "cmd/offpeak/cli/render", "cmd/offpeak/cli/world"},
		"the commands of money ask a hub; what may be posted is decided there"},
	{"cmd/offpeak/cli/tuning", []string{".", "wire", "placement", "placement/replay", "store", "store/recorded", "cmd/offpeak/cli/people", "cmd/offpeak/cli/remote", "cmd/offpeak/cli/render", "cmd/offpeak/cli/world"},
		"weights are set through a hub like everything; a replay reads a store that is opened for it"},
	{"sim", []string{"*"}, "virtual fleets run the real hub and agent"},
	{"internal", []string{"*"}, "test grids run everything in one process"},
	{"bench", []string{"*"}, "measuring needs everything"},
	{"docs", []string{"."}, "documents are written from the vocabulary"},
	{"examples", nil, "an example is what a user would write, who has none of our packages"},
}

// pure are the rooms without effects: what they decide can be replayed.
var pure = []string{".", "placement", "market", "ledger"}

// effects are the packages that pure rooms may not import, nor any below them.
var effects = []string{"context", "log", "os", "net", "io/ioutil", "database/sql", "syscall", "crypto/rand", "runtime"}

// pureAllowed are packages below those that have no effects themselves.
var pureAllowed = map[string]string{"net/netip": "addresses as values"}

// clockless are the rooms in which nothing asks the machine's clock: pure rooms
// get the time as an argument, hub and store by a function or from the store.
var clockless = append([]string{"hub", "store", "blob"}, pure...)

// clockAllowed lists files in those rooms that may ask it, with the reason.
var clockAllowed = map[string]string{
	"store/storetest":        "a suite that runs against real engines measures real time",
	"store/sqlite/writer.go": "measures how long commits take and decides nothing by it",
	"hub/api":                "network deadlines are the machine's time, not a decision's",
}

// varAllowed lists package variables that are set from outside, with the reason.
var varAllowed = map[string]string{
	"cmd/offpeak.version": "set by the linker",
	"cmd/offpeak.commit":  "set by the linker",
}

// source is one parsed file of the module that is no test.
type source struct {
	file string // slash-separated, from the module's root
	dir  string
	ast  *ast.File
	pos  *token.FileSet
}

func (s source) imports() []string {
	var out []string
	for _, i := range s.ast.Imports {
		p, _ := strconv.Unquote(i.Path.Value)
		out = append(out, p)
	}
	return out
}

func (s source) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", s.file, s.pos.Position(n.Pos()).Line)
}

// sources parses the module: all systems' files, so that an arrow can't hide
// behind a build tag.
func sources(t *testing.T) []source {
	t.Helper()
	var out []source
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if p != "." && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" || name == "node_modules" || name == "shared") {
				return fs.SkipDir
			}
			if _, err := os.Stat(filepath.Join(p, "go.mod")); err == nil && p != "." {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		pos := token.NewFileSet()
		tree, err := parser.ParseFile(pos, p, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		p = filepath.ToSlash(p)
		out = append(out, source{file: p, dir: path.Dir(p), ast: tree, pos: pos})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 20 {
		t.Fatalf("found %d files: is this the module's root?", len(out))
	}
	return out
}

// within says that a folder is a room or lies below it; "." is only itself.
func within(dir, room string) bool {
	return dir == room || (room != "." && strings.HasPrefix(dir, room+"/"))
}

// ours returns the folder of a package of this module.
func ours(imported string) (dir string, ok bool) {
	if imported == "offpeak" {
		return ".", true
	}
	return strings.CutPrefix(imported, "offpeak/")
}

func roomOf(dir string) int {
	best := -1
	for i, r := range rooms {
		if within(dir, r.room) && (best < 0 || len(r.room) > len(rooms[best].room)) {
			best = i
		}
	}
	return best
}

// allowed says that a package in from may import one in to.
func allowed(from, to string) (bool, string) {
	f, g := roomOf(from), roomOf(to)
	if f < 0 || g < 0 {
		return false, "a folder that is not in the table of arrows: add it there, with what it may import and why"
	}
	r := rooms[f]
	if f == g || slices.Contains(r.may, "*") && roomOf(to) >= 0 && !within(to, "cmd") {
		return true, ""
	}
	for _, m := range r.may {
		// A name stands for its room and those below it that have no row of their own,
		// or, where it is the importer's own house, for all of it.
		if rooms[g].room == m || (within(to, m) && within(r.room, m)) {
			return true, ""
		}
	}
	return false, r.why
}

func TestArrows(t *testing.T) {
	for _, s := range sources(t) {
		if roomOf(s.dir) < 0 {
			t.Errorf("%s: its folder is not in the table of arrows", s.file)
		}
		for _, p := range s.imports() {
			to, ok := ours(p)
			if !ok {
				if s.dir == "." && strings.Contains(strings.Split(p, "/")[0], ".") {
					t.Errorf("%s imports %s: the vocabulary uses the standard library only", s.file, p)
				}
				continue
			}
			if ok, why := allowed(s.dir, to); !ok {
				t.Errorf("%s imports %s: %s", s.file, p, why)
			}
			if within(to, "sim") || within(to, "store/storetest") || within(to, "blob/blobtest") || path.Base(to) == "drivertest" {
				if !within(s.dir, "sim") && !within(s.dir, "internal") && !within(s.dir, "bench") {
					t.Errorf("%s imports %s: what is for tests stays out of the binary", s.file, p)
				}
			}
			// In the binary only two commands (and what restores or moves a hub's store)
			// start the two sides; all others speak through wire.
			if within(s.dir, "cmd") {
				base := path.Base(s.file)
				if within(to, "hub") && !strings.HasPrefix(base, "hub") && !strings.HasPrefix(base, "restore") && !strings.HasPrefix(base, "migrate") {
					t.Errorf("%s imports %s: only the hub's commands (hub*.go, restore*.go, migrate*.go) do", s.file, p)
				}
				// main runs itself again as a supervisor or a module's host.
				child := base == "main.go" && (within(to, "agent/supervisor") || within(to, "agent/driver"))
				if within(to, "agent") && !strings.HasPrefix(base, "agent") && !within(s.dir, "cmd/offpeak/cli/machine") && !child {
					t.Errorf("%s imports %s: only the agent's commands (agent*.go, and those in machine) do", s.file, p)
				}
			}
		}
	}
}

// TestNobodySeesThroughAnother: what a room may not import it may not reach.
func TestNobodySeesThroughAnother(t *testing.T) {
	graph := map[string]map[string]bool{}
	for _, s := range sources(t) {
		if graph[s.dir] == nil {
			graph[s.dir] = map[string]bool{}
		}
		for _, p := range s.imports() {
			if to, ok := ours(p); ok {
				graph[s.dir][to] = true
			}
		}
	}
	for _, c := range []struct {
		from  string
		never []string
	}{
		{"agent", []string{"hub", "store", "placement", "market", "ledger", "cmd"}},
		{"wire", []string{"hub", "store", "placement", "market", "ledger", "agent"}},
		{"placement", []string{"market"}},
		{"market", []string{"placement"}},
		{"hub", []string{"agent", "cmd"}},
	} {
		for _, dir := range slices.Sorted(maps.Keys(graph)) {
			if !within(dir, c.from) {
				continue
			}
			seen, from := []string{dir}, map[string]string{}
			for i := 0; i < len(seen); i++ {
				for _, to := range slices.Sorted(maps.Keys(graph[seen[i]])) {
					if _, ok := from[to]; ok || to == dir {
						continue
					}
					from[to] = seen[i]
					seen = append(seen, to)
					for _, n := range c.never {
						if within(to, n) {
							t.Errorf("%s reaches %s through %s", dir, to, from[to])
						}
					}
				}
			}
		}
	}
}

func TestPureRoomsHaveNoEffects(t *testing.T) {
	for _, s := range sources(t) {
		if !inRooms(s.dir, pure) {
			continue
		}
		for _, p := range s.imports() {
			for _, e := range effects {
				if within(p, e) && pureAllowed[p] == "" {
					t.Errorf("%s imports %s: a pure room decides on what it is handed", s.file, p)
				}
			}
		}
		// Chance is handed in, seeded; the package's own functions are seeded by nobody.
		for call, name := range calls(s, "math/rand/v2") {
			if slices.Contains([]string{
				"Int", "IntN", "Int32", "Int32N", "Int64", "Int64N", "Uint", "UintN", "Uint32", "Uint32N", "Uint64", "Uint64N",
				"Float32", "Float64", "N", "Perm", "Shuffle", "NormFloat64", "ExpFloat64",
			}, name) {
				t.Errorf("%s: rand.%s is not seeded by the caller, so it can't be replayed", s.at(call), name)
			}
		}
		for call, name := range calls(s, "math/rand") {
			t.Errorf("%s: math/rand.%s: use math/rand/v2, handed in", s.at(call), name)
		}
	}
}

func TestDecisionsAskNoClock(t *testing.T) {
	for _, s := range sources(t) {
		if !inRooms(s.dir, clockless) || clockAllowed[s.dir] != "" || clockAllowed[s.file] != "" {
			continue
		}
		for call, name := range calls(s, "time") {
			if name == "Now" || name == "Since" || name == "Until" {
				t.Errorf("%s: time.%s: take the time as an argument, or from a clock that is handed in", s.at(call), name)
			}
		}
	}
}

// TestNoHiddenState: no init, and no package variable that anything changes.
// Tables, sentinels, compiled patterns and embedded files are variables to Go
// but never change.
func TestNoHiddenState(t *testing.T) {
	packages := map[string][]source{}
	for _, s := range sources(t) {
		packages[s.dir] = append(packages[s.dir], s)
	}
	for _, dir := range slices.Sorted(maps.Keys(packages)) {
		if within(dir, "examples") {
			continue // a user's program does as it likes
		}
		declared := map[string]any{}
		for _, s := range packages[dir] {
			for _, d := range s.ast.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					if d.Recv == nil && d.Name.Name == "init" {
						t.Errorf("%s: init runs before anyone decides to", s.at(d))
					}
				case *ast.GenDecl:
					if d.Tok == token.VAR {
						variables(t, s, dir, d, declared)
					}
				}
			}
		}
		for _, s := range packages[dir] {
			ast.Inspect(s.ast, func(n ast.Node) bool {
				var changed []ast.Expr
				switch n := n.(type) {
				case *ast.AssignStmt:
					if n.Tok != token.DEFINE {
						changed = n.Lhs
					}
				case *ast.IncDecStmt:
					changed = []ast.Expr{n.X}
				case *ast.UnaryExpr:
					if _, lit := n.X.(*ast.CompositeLit); n.Op == token.AND && !lit {
						if id := root(n.X); id == n.X {
							changed = []ast.Expr{n.X}
						}
					}
				}
				for _, x := range changed {
					id := root(x)
					if id == nil {
						continue
					}
					// The parser resolves names within a file; one that it left
					// open is a package's.
					if obj, ok := declared[id.Name]; ok && (id.Obj == nil || any(id.Obj) == obj) && varAllowed[dir+"."+id.Name] == "" {
						t.Errorf("%s changes the package variable %s: put it into a value that somebody owns", s.at(n), id.Name)
					}
				}
				return true
			})
		}
	}
}

// variables notes the package variables of a declaration and fails on those
// that make no sense unless something changes them.
func variables(t *testing.T, s source, dir string, d *ast.GenDecl, declared map[string]any) {
	for _, spec := range d.Specs {
		v := spec.(*ast.ValueSpec)
		embedded := strings.Contains(comments(d.Doc)+comments(v.Doc), "//go:embed")
		for i, name := range v.Names {
			if name.Name == "_" {
				continue
			}
			declared[name.Name] = name.Obj
			if varAllowed[dir+"."+name.Name] != "" || embedded {
				continue
			}
			typ := v.Type
			if i < len(v.Values) {
				if lit, ok := v.Values[i].(*ast.CompositeLit); ok && typ == nil {
					typ = lit.Type
				}
			}
			if sel, ok := typ.(*ast.SelectorExpr); ok {
				if p, ok := sel.X.(*ast.Ident); ok && (p.Name == "sync" || p.Name == "atomic") {
					t.Errorf("%s: package variable %s: shared state has an owner", s.at(name), name.Name)
					continue
				}
			}
			if len(v.Values) == 0 {
				t.Errorf("%s: package variable %s has no value, so somebody sets it later", s.at(name), name.Name)
			}
		}
	}
}

func comments(g *ast.CommentGroup) string {
	if g == nil {
		return ""
	}
	var b strings.Builder
	for _, c := range g.List {
		b.WriteString(c.Text + "\n")
	}
	return b.String()
}

// root is the variable in which an expression's place lies.
func root(x ast.Expr) *ast.Ident {
	for {
		switch e := x.(type) {
		case *ast.Ident:
			return e
		case *ast.SelectorExpr:
			x = e.X
		case *ast.IndexExpr:
			x = e.X
		case *ast.ParenExpr:
			x = e.X
		case *ast.StarExpr:
			x = e.X
		default:
			return nil
		}
	}
}

func inRooms(dir string, list []string) bool {
	return slices.ContainsFunc(list, func(r string) bool { return within(dir, r) })
}

// calls walks over a file's calls of an imported package's functions. To hand
// one on, as the default of a clock that tests replace, is no call.
func calls(s source, imported string) func(yield func(ast.Node, string) bool) {
	return func(yield func(ast.Node, string) bool) {
		name := ""
		for _, i := range s.ast.Imports {
			if p, _ := strconv.Unquote(i.Path.Value); p == imported {
				name = path.Base(strings.TrimSuffix(p, "/v2"))
				if i.Name != nil {
					name = i.Name.Name
				}
			}
		}
		if name == "" {
			return
		}
		stopped := false
		ast.Inspect(s.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || stopped {
				return !stopped
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if id, ok := sel.X.(*ast.Ident); ok && id.Name == name && id.Obj == nil {
				stopped = !yield(sel, sel.Sel.Name)
			}
			return !stopped
		})
	}
}
