package moving

import "strings"

// table is one that holds a grid's rows.
type table struct {
	name string
	// key are the columns that order its rows, split by commas.
	key string
	// counter is the column whose values the database gives out, "" where there is
	// none.
	counter string
}

// order is the clause that puts rows into the order of their key. Both engines
// order texts by their bytes.
func (t table) order() string { return " ORDER BY " + t.key }

// events is the table whose counter are cursors.
const events = "events"

// tables lists what is carried, each table after those it refers to. How hubs of one
// database know each other (grid, hubs, leader) stays where it is: it is true of
// that database only.
func tables() []table {
	return []table{
		{name: "meta", key: "key"},
		{name: "accounts", key: "id"},
		{name: "members", key: "id"},
		{name: "tokens", key: "id"},
		{name: "specs", key: "hash"},
		{name: "job_groups", key: "id"},
		{name: "jobs", key: "seq", counter: "seq"},
		{name: "job_labels", key: "key, value, job"},
		{name: "job_after", key: "job, parent"},
		{name: "nodes", key: "id"},
		{name: "node_devices", key: "node, device"},
		{name: "node_availability", key: "node, at, availability, why"},
		{name: "plans", key: "account, node"},
		{name: "asks", key: "node, revision"},
		{name: "weights", key: "version"},
		{name: "candles", key: "vendor, model, vram, region, resolution, start_at"},
		{name: "leases", key: "id"},
		{name: "lease_devices", key: "lease, device"},
		{name: "lease_terms", key: "lease, n"},
		{name: "balances", key: "account, part"},
		{name: "transactions", key: "n", counter: "n"},
		{name: "entries", key: "transaction_id, account, part"},
		{name: "lease_money", key: "lease"},
		{name: "receipts", key: "lease, term"},
		{name: "checkpoints", key: "id", counter: "id"},
		{name: "log_segments", key: "lease, n"},
		{name: "blobs", key: "hash, account"},
		{name: "trees", key: "account, tree"},
		{name: "tree_chunks", key: "account, tree, chunk"},
		{name: "operations", key: "id"},
		{name: events, key: "cursor", counter: "cursor"},
		{name: "audit", key: "id", counter: "id"},
	}
}

// quoted puts column names between quotes: some are words of SQL.
func quoted(cols []string) string { return `"` + strings.Join(cols, `", "`) + `"` }
