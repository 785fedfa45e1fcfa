-- The first schema. Times are microseconds since 1970 (UTC), 0 where there is
-- none; durations are microseconds; money is micro-credits; sizes are bytes.
-- An account stands on every row that belongs to one.
-- +goose Up

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE accounts (
    id            TEXT PRIMARY KEY,
    name          TEXT NOT NULL UNIQUE,
    quota_storage INTEGER NOT NULL CHECK (quota_storage >= 0),
    quota_queued  INTEGER NOT NULL CHECK (quota_queued >= 0),
    quota_running INTEGER NOT NULL CHECK (quota_running >= 0),
    -- The sum of the sizes of the account's blobs.
    stored        INTEGER NOT NULL DEFAULT 0 CHECK (stored >= 0),
    created_at    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE members (
    id         TEXT PRIMARY KEY,
    account    TEXT NOT NULL REFERENCES accounts (id),
    name       TEXT NOT NULL,
    role       TEXT NOT NULL CHECK (role IN ('admin', 'owner', 'submitter', 'viewer')),
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX members_account ON members (account, id);

-- Tokens of people and programs, join tokens and the sessions of nodes. The
-- secret is never kept, only its SHA-256.
CREATE TABLE tokens (
    id          TEXT PRIMARY KEY,
    account     TEXT NOT NULL REFERENCES accounts (id),
    member      TEXT NOT NULL,
    node        TEXT NOT NULL,
    role        TEXT NOT NULL CHECK (role IN ('admin', 'owner', 'submitter', 'viewer', 'node', 'join')),
    name        TEXT NOT NULL,
    secret_hash BLOB NOT NULL CHECK (length(secret_hash) = 32),
    uses_left   INTEGER NOT NULL CHECK (uses_left >= -1),
    -- What a join token's secret carries to the node: where the hubs are and
    -- the fingerprint of their key.
    hubs        TEXT NOT NULL DEFAULT '',
    fingerprint TEXT NOT NULL DEFAULT '',
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,
    revoked_at  INTEGER NOT NULL DEFAULT 0,
    last_used   INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE INDEX tokens_account ON tokens (account, id);
CREATE INDEX tokens_node ON tokens (node) WHERE node <> '';

-- Specs are stored once, by the hash of their canonical JSON.
CREATE TABLE specs (
    hash         TEXT PRIMARY KEY CHECK (length(hash) = 64),
    spec         TEXT NOT NULL,
    -- What matching needs, so that a queue is read without reading whole specs.
    driver       TEXT NOT NULL,
    requirements TEXT NOT NULL
) STRICT;

CREATE TABLE jobs (
    -- The order of arrival: it orders lists and breaks ties in the queue.
    seq                INTEGER PRIMARY KEY AUTOINCREMENT,
    id                 TEXT NOT NULL UNIQUE,
    account            TEXT NOT NULL REFERENCES accounts (id),
    grp                TEXT NOT NULL,
    idx                INTEGER NOT NULL,
    spec               TEXT NOT NULL REFERENCES specs (hash),
    name               TEXT NOT NULL,
    priority           INTEGER NOT NULL,
    state              TEXT NOT NULL CHECK (state IN ('blocked', 'queued', 'leased', 'running', 'cancelling', 'succeeded', 'failed', 'cancelled')),
    attempt            INTEGER NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    lease              TEXT NOT NULL DEFAULT '',
    node               TEXT NOT NULL DEFAULT '',
    reason             TEXT NOT NULL DEFAULT '',
    detail             TEXT NOT NULL DEFAULT '',
    exit_code          INTEGER,
    signal             TEXT NOT NULL DEFAULT '',
    input              TEXT NOT NULL DEFAULT '',
    output             TEXT NOT NULL DEFAULT '',
    count_user         INTEGER NOT NULL DEFAULT 0,
    count_node         INTEGER NOT NULL DEFAULT 0,
    count_interruption INTEGER NOT NULL DEFAULT 0,
    -- Nodes that the next attempt should avoid, oldest first, split by spaces.
    avoid              TEXT NOT NULL DEFAULT '',
    not_before         INTEGER NOT NULL DEFAULT 0,
    retry_of           TEXT NOT NULL DEFAULT '',
    submitted_by       TEXT NOT NULL DEFAULT '',
    submitted_at       INTEGER NOT NULL,
    started_at         INTEGER NOT NULL DEFAULT 0,
    ended_at           INTEGER NOT NULL DEFAULT 0,
    -- When it last gave way to a higher bid.
    outbid_at          INTEGER NOT NULL DEFAULT 0,
    -- A job has a lease exactly while it is live.
    CHECK ((lease <> '') = (state IN ('leased', 'running', 'cancelling'))),
    CHECK ((ended_at <> 0) = (state IN ('succeeded', 'failed', 'cancelled')))
) STRICT;
-- A job of its own is index 0 of a group that bears its id.
CREATE UNIQUE INDEX jobs_group ON jobs (grp, idx) WHERE grp <> id;
CREATE INDEX jobs_queue ON jobs (priority DESC, seq) WHERE state = 'queued';
CREATE INDEX jobs_open ON jobs (account) WHERE state NOT IN ('succeeded', 'failed', 'cancelled');
CREATE INDEX jobs_account ON jobs (account, seq);
CREATE INDEX jobs_ended ON jobs (ended_at) WHERE ended_at <> 0;
CREATE INDEX jobs_spec ON jobs (spec);
CREATE INDEX jobs_node ON jobs (node, seq) WHERE node <> '';
CREATE INDEX jobs_input ON jobs (input) WHERE input <> '';
CREATE INDEX jobs_output ON jobs (output) WHERE output <> '';

CREATE TABLE job_labels (
    key   TEXT NOT NULL,
    value TEXT NOT NULL,
    job   INTEGER NOT NULL REFERENCES jobs (seq) ON DELETE CASCADE,
    PRIMARY KEY (key, value, job)
) STRICT, WITHOUT ROWID;
CREATE INDEX job_labels_job ON job_labels (job);

CREATE TABLE nodes (
    id              TEXT PRIMARY KEY,
    account         TEXT NOT NULL REFERENCES accounts (id),
    name            TEXT NOT NULL,
    key             BLOB NOT NULL,
    liveness        TEXT NOT NULL CHECK (liveness IN ('online', 'late', 'offline')),
    intent          TEXT NOT NULL CHECK (intent IN ('open', 'draining', 'closed')),
    availability    TEXT NOT NULL CHECK (availability IN ('available', 'in_use')),
    why             TEXT NOT NULL DEFAULT '',
    inventory       TEXT NOT NULL,
    -- What the node says it has, what was proven (NULL: not tried), what may be
    -- leased now, and what live leases hold.
    claimed_cpu     INTEGER NOT NULL CHECK (claimed_cpu >= 0),
    claimed_memory  INTEGER NOT NULL CHECK (claimed_memory >= 0),
    claimed_disk    INTEGER NOT NULL CHECK (claimed_disk >= 0),
    proven_cpu      INTEGER,
    proven_memory   INTEGER,
    proven_disk     INTEGER,
    capacity_cpu    INTEGER NOT NULL,
    capacity_memory INTEGER NOT NULL,
    capacity_disk   INTEGER NOT NULL,
    reserved_cpu    INTEGER NOT NULL DEFAULT 0 CHECK (reserved_cpu BETWEEN 0 AND capacity_cpu),
    reserved_memory INTEGER NOT NULL DEFAULT 0 CHECK (reserved_memory BETWEEN 0 AND capacity_memory),
    reserved_disk   INTEGER NOT NULL DEFAULT 0 CHECK (reserved_disk BETWEEN 0 AND capacity_disk),
    -- What is asked now; NULL: nothing, so that the node is offered to nobody. Looked
    -- at again at ask_due (0: never); the revision grows with every plan and move.
    ask_gpu         INTEGER DEFAULT 0 CHECK (ask_gpu >= 0),
    ask_cpu         INTEGER DEFAULT 0 CHECK (ask_cpu >= 0),
    ask_due         INTEGER NOT NULL DEFAULT 0,
    ask_revision    INTEGER NOT NULL DEFAULT 0,
    revision        INTEGER NOT NULL DEFAULT 0,
    generation      INTEGER NOT NULL DEFAULT 0,
    incarnation     TEXT NOT NULL DEFAULT '',
    -- The newest heartbeat's sequence within the incarnation.
    beat            INTEGER NOT NULL DEFAULT 0,
    timeout         INTEGER NOT NULL,
    last_heard      INTEGER NOT NULL DEFAULT 0,
    enrolled_at     INTEGER NOT NULL,
    -- A removed node's row stays, so that its id is never used again.
    removed_at      INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX nodes_key ON nodes (key) WHERE removed_at = 0;
CREATE INDEX nodes_account ON nodes (account, id);
CREATE INDEX nodes_ask_due ON nodes (ask_due) WHERE ask_due <> 0;

CREATE TABLE node_devices (
    node    TEXT NOT NULL REFERENCES nodes (id),
    device  TEXT NOT NULL,
    vendor  TEXT NOT NULL,
    model   TEXT NOT NULL,
    vram    INTEGER NOT NULL,
    -- 1 once the node's inventory no longer lists it.
    gone    INTEGER NOT NULL DEFAULT 0 CHECK (gone IN (0, 1)),
    PRIMARY KEY (node, device)
) STRICT, WITHOUT ROWID;

-- What agents said of their machine's availability, kept for planning.
CREATE TABLE node_availability (
    node         TEXT NOT NULL REFERENCES nodes (id),
    at           INTEGER NOT NULL,
    availability TEXT NOT NULL CHECK (availability IN ('available', 'in_use')),
    why          TEXT NOT NULL
) STRICT;
CREATE INDEX node_availability_node ON node_availability (node, at);

-- What an owner asks, when: of a node or, where node is '', of all the account's
-- nodes that have no plan of their own. The market reads the text.
CREATE TABLE plans (
    account TEXT NOT NULL REFERENCES accounts (id),
    node    TEXT NOT NULL,
    plan    TEXT NOT NULL,
    set_at  INTEGER NOT NULL,
    PRIMARY KEY (account, node)
) STRICT, WITHOUT ROWID;

-- What a node asked, in force from a moment on; NULL: nothing. The revision is
-- the node's ask_revision then.
CREATE TABLE asks (
    node     TEXT NOT NULL REFERENCES nodes (id),
    revision INTEGER NOT NULL,
    account  TEXT NOT NULL,
    from_at  INTEGER NOT NULL,
    gpu      INTEGER CHECK (gpu >= 0),
    cpu      INTEGER CHECK (cpu >= 0),
    PRIMARY KEY (node, revision)
) STRICT, WITHOUT ROWID;
CREATE INDEX asks_from ON asks (from_at);

-- What was paid, summed up by segment of the market and stretch of time.
CREATE TABLE candles (
    vendor     TEXT NOT NULL,
    model      TEXT NOT NULL,
    vram       INTEGER NOT NULL,
    region     TEXT NOT NULL,
    resolution TEXT NOT NULL CHECK (resolution IN ('minute', 'hour')),
    start_at   INTEGER NOT NULL,
    opening    INTEGER NOT NULL,
    highest    INTEGER NOT NULL,
    lowest     INTEGER NOT NULL,
    closing    INTEGER NOT NULL,
    opened_at  INTEGER NOT NULL,
    closed_at  INTEGER NOT NULL,
    trades     INTEGER NOT NULL,
    metered    INTEGER NOT NULL,
    PRIMARY KEY (vendor, model, vram, region, resolution, start_at)
) STRICT, WITHOUT ROWID;
CREATE INDEX candles_start ON candles (resolution, start_at);

CREATE TABLE leases (
    id                   TEXT PRIMARY KEY,
    job                  TEXT NOT NULL REFERENCES jobs (id),
    account              TEXT NOT NULL REFERENCES accounts (id),
    attempt              INTEGER NOT NULL CHECK (attempt >= 1),
    rank                 INTEGER NOT NULL DEFAULT 0 CHECK (rank >= 0),
    node                 TEXT NOT NULL REFERENCES nodes (id),
    state                TEXT NOT NULL CHECK (state IN ('offered', 'preparing', 'running', 'finishing', 'succeeded', 'failed', 'cancelled', 'preempted', 'lost')),
    frozen               INTEGER NOT NULL DEFAULT 0 CHECK (frozen IN (0, 1)),
    stop                 TEXT NOT NULL DEFAULT '',
    cpu                  INTEGER NOT NULL CHECK (cpu >= 0),
    memory               INTEGER NOT NULL CHECK (memory >= 0),
    disk                 INTEGER NOT NULL CHECK (disk >= 0),
    -- The devices as a JSON list, for reading; lease_devices holds them.
    devices              TEXT NOT NULL DEFAULT '',
    price                INTEGER NOT NULL CHECK (price >= 0),
    -- Which of the lease's terms the price is of.
    term                 INTEGER NOT NULL DEFAULT 1,
    -- To which job it gives way, and what that pays.
    outbid_by            TEXT NOT NULL DEFAULT '',
    outbid_price         INTEGER NOT NULL DEFAULT 0,
    expires_at           INTEGER NOT NULL,
    -- Copied from the spec, so that a heartbeat reads one row.
    grace                INTEGER NOT NULL,
    time_limit           INTEGER NOT NULL,
    metered              INTEGER NOT NULL DEFAULT 0 CHECK (metered >= 0),
    -- Metered time at the attempt's newest stored checkpoint.
    kept                 INTEGER NOT NULL DEFAULT 0 CHECK (kept BETWEEN 0 AND metered),
    -- The last applied report, and what an ended one was answered.
    incarnation          TEXT NOT NULL DEFAULT '',
    seq                  INTEGER NOT NULL DEFAULT 0,
    outcome              TEXT NOT NULL DEFAULT '',
    accepted_incarnation TEXT NOT NULL DEFAULT '',
    accepted_seq         INTEGER NOT NULL DEFAULT 0,
    reason               TEXT NOT NULL DEFAULT '',
    detail               TEXT NOT NULL DEFAULT '',
    exit_code            INTEGER,
    signal               TEXT NOT NULL DEFAULT '',
    output               TEXT NOT NULL DEFAULT '',
    restored             INTEGER NOT NULL DEFAULT 0,
    offered_at           INTEGER NOT NULL,
    accepted_at          INTEGER NOT NULL DEFAULT 0,
    started_at           INTEGER NOT NULL DEFAULT 0,
    ended_at             INTEGER NOT NULL DEFAULT 0,
    UNIQUE (job, attempt, rank),
    CHECK ((ended_at <> 0) = (state IN ('succeeded', 'failed', 'cancelled', 'preempted', 'lost')))
) STRICT, WITHOUT ROWID;
CREATE INDEX leases_expiry ON leases (expires_at) WHERE state IN ('offered', 'preparing', 'running', 'finishing');
CREATE INDEX leases_node ON leases (node) WHERE state IN ('offered', 'preparing', 'running', 'finishing');
CREATE INDEX leases_account ON leases (account) WHERE state IN ('offered', 'preparing', 'running', 'finishing');
CREATE INDEX leases_output ON leases (output) WHERE output <> '';

-- The devices that a lease named. held is 1 while the lease is in a state that
-- holds resources; a device is in at most one such lease.
CREATE TABLE lease_devices (
    lease  TEXT NOT NULL,
    node   TEXT NOT NULL,
    device TEXT NOT NULL,
    held   INTEGER NOT NULL CHECK (held IN (0, 1)),
    PRIMARY KEY (lease, device)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX lease_devices_held ON lease_devices (node, device) WHERE held = 1;

-- A lease's price by term: term n was metered from from_at to to_at (0: open).
CREATE TABLE lease_terms (
    lease   TEXT NOT NULL,
    n       INTEGER NOT NULL CHECK (n >= 1),
    price   INTEGER NOT NULL CHECK (price >= 0),
    from_at INTEGER NOT NULL,
    to_at   INTEGER NOT NULL DEFAULT 0,
    metered INTEGER NOT NULL DEFAULT 0 CHECK (metered >= 0),
    PRIMARY KEY (lease, n)
) STRICT, WITHOUT ROWID;

-- Money. What each ledger account has: "available" and "held" of an account, and
-- the grid's own, whose account is ''. The world's, deposits, alone goes below zero.
CREATE TABLE balances (
    account TEXT NOT NULL,
    part    TEXT NOT NULL CHECK (part IN ('available', 'held', 'fee', 'rounding', 'deposits', 'payouts')),
    balance INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (account, part),
    CONSTRAINT balance_covered CHECK (balance >= 0 OR part = 'deposits')
) STRICT, WITHOUT ROWID;

-- The ledger. Rows are added and never changed; the entries of a transaction sum
-- to zero.
CREATE TABLE transactions (
    n        INTEGER PRIMARY KEY AUTOINCREMENT,
    id       TEXT NOT NULL UNIQUE,
    kind     TEXT NOT NULL CHECK (kind IN ('deposit', 'payout', 'payout_returned', 'hold', 'settle')),
    at       INTEGER NOT NULL,
    job      TEXT NOT NULL DEFAULT '',
    lease    TEXT NOT NULL DEFAULT '',
    attempt  INTEGER NOT NULL DEFAULT 0,
    term     INTEGER NOT NULL DEFAULT 0,
    external TEXT NOT NULL DEFAULT '',
    minimum  INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE entries (
    transaction_id TEXT NOT NULL REFERENCES transactions (id),
    account        TEXT NOT NULL,
    part           TEXT NOT NULL,
    amount         INTEGER NOT NULL CHECK (amount <> 0),
    PRIMARY KEY (transaction_id, account, part)
) STRICT, WITHOUT ROWID;
CREATE INDEX entries_account ON entries (account, transaction_id);

-- What a lease with a price holds: its terms and how they are paid for, as the
-- ledger keeps it. A lease without a price has no row.
CREATE TABLE lease_money (
    lease   TEXT PRIMARY KEY,
    job     TEXT NOT NULL,
    -- Held now; once settled, what the lease was charged.
    held    INTEGER NOT NULL CHECK (held >= 0),
    charged INTEGER NOT NULL DEFAULT 0 CHECK (charged >= 0),
    settled INTEGER NOT NULL DEFAULT 0 CHECK (settled IN (0, 1)),
    -- How it ended, once it is settled.
    reason  TEXT NOT NULL DEFAULT '',
    metered INTEGER NOT NULL DEFAULT 0,
    kept    INTEGER NOT NULL DEFAULT 0,
    -- When the next step is to be taken: hold for the next interval, or renew.
    due_at  INTEGER NOT NULL,
    ledger  TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX lease_money_due ON lease_money (due_at) WHERE settled = 0;
CREATE INDEX lease_money_job ON lease_money (job);

-- What an attempt cost, a line a price term, written when it is settled.
CREATE TABLE receipts (
    lease   TEXT NOT NULL,
    term    INTEGER NOT NULL CHECK (term >= 1),
    job     TEXT NOT NULL,
    payer   TEXT NOT NULL,
    owner   TEXT NOT NULL,
    charged INTEGER NOT NULL CHECK (charged >= 0),
    line    TEXT NOT NULL,
    PRIMARY KEY (lease, term)
) STRICT, WITHOUT ROWID;
CREATE INDEX receipts_job ON receipts (job, lease);

CREATE TABLE checkpoints (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    job     TEXT NOT NULL REFERENCES jobs (id),
    account TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    -- The lease that wrote it; a retried job's copies keep their writer's.
    lease   TEXT NOT NULL,
    name    TEXT NOT NULL,
    tree    TEXT NOT NULL,
    metered INTEGER NOT NULL,
    size    INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    UNIQUE (job, lease, tree, name)
) STRICT;
CREATE INDEX checkpoints_tree ON checkpoints (tree);

CREATE TABLE log_segments (
    lease   TEXT NOT NULL,
    n       INTEGER NOT NULL,
    account TEXT NOT NULL,
    stream  TEXT NOT NULL CHECK (stream IN ('stdout', 'stderr')),
    start   INTEGER NOT NULL CHECK (start >= 0),
    length  INTEGER NOT NULL CHECK (length > 0),
    data    BLOB,
    blob    TEXT NOT NULL DEFAULT '',
    at      INTEGER NOT NULL,
    UNIQUE (lease, n)
) STRICT;
CREATE UNIQUE INDEX log_segments_start ON log_segments (lease, stream, start);
CREATE INDEX log_segments_blob ON log_segments (blob) WHERE blob <> '';
CREATE INDEX log_segments_at ON log_segments (at);

-- One account's hold on a blob; the bytes are elsewhere.
CREATE TABLE blobs (
    hash            TEXT NOT NULL,
    account         TEXT NOT NULL REFERENCES accounts (id),
    size            INTEGER NOT NULL CHECK (size >= 0),
    protected_until INTEGER NOT NULL,
    -- Collecting looks only at blobs that may be unused: a look that finds one in
    -- use takes it off the list, and whatever ceases to refer to it puts it back
    -- (the triggers at the end).
    candidate       INTEGER NOT NULL DEFAULT 1 CHECK (candidate IN (0, 1)),
    PRIMARY KEY (hash, account)
) STRICT, WITHOUT ROWID;
CREATE INDEX blobs_candidates ON blobs (protected_until) WHERE candidate = 1;

-- A tree is a blob that is a manifest over chunks.
CREATE TABLE trees (
    account TEXT NOT NULL,
    tree    TEXT NOT NULL,
    PRIMARY KEY (account, tree)
) STRICT, WITHOUT ROWID;
CREATE TABLE tree_chunks (
    account TEXT NOT NULL,
    tree    TEXT NOT NULL,
    chunk   TEXT NOT NULL,
    PRIMARY KEY (account, tree, chunk)
) STRICT, WITHOUT ROWID;
CREATE INDEX tree_chunks_chunk ON tree_chunks (chunk, account);

-- What a client's mutation was answered, by its operation id.
CREATE TABLE operations (
    id      TEXT PRIMARY KEY,
    account TEXT NOT NULL,
    digest  BLOB NOT NULL,
    outcome TEXT NOT NULL,
    at      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX operations_at ON operations (at);

CREATE TABLE events (
    cursor  INTEGER PRIMARY KEY AUTOINCREMENT,
    at      INTEGER NOT NULL,
    type    TEXT NOT NULL,
    account TEXT NOT NULL,
    job     TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    lease   TEXT NOT NULL,
    node    TEXT NOT NULL,
    reason  TEXT NOT NULL,
    data    TEXT NOT NULL,
    -- The hub that wrote it; '' where there is one.
    hub     TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX events_account ON events (account, cursor);

-- Who did what, with which outcome. Rows are only ever added.
CREATE TABLE audit (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    at      INTEGER NOT NULL,
    account TEXT NOT NULL,
    member  TEXT NOT NULL,
    token   TEXT NOT NULL,
    node    TEXT NOT NULL,
    address TEXT NOT NULL,
    verb    TEXT NOT NULL,
    object  TEXT NOT NULL,
    outcome TEXT NOT NULL
) STRICT;
-- +goose StatementBegin
CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'audit rows never change'); END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, 'audit rows are never removed'); END;
-- +goose StatementEnd

-- What ceases to refer to a blob makes it a candidate for collection.

-- +goose StatementBegin
CREATE TRIGGER blobs_left_by_input AFTER DELETE ON jobs WHEN OLD.input <> '' BEGIN
    UPDATE blobs SET candidate = 1 WHERE hash = OLD.input AND account = OLD.account AND candidate = 0;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER blobs_left_by_output AFTER DELETE ON jobs WHEN OLD.output <> '' BEGIN
    UPDATE blobs SET candidate = 1 WHERE hash = OLD.output AND account = OLD.account AND candidate = 0;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER blobs_left_by_new_output AFTER UPDATE OF output ON jobs WHEN OLD.output <> '' AND OLD.output <> NEW.output BEGIN
    UPDATE blobs SET candidate = 1 WHERE hash = OLD.output AND account = OLD.account AND candidate = 0;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER blobs_left_by_lease AFTER DELETE ON leases WHEN OLD.output <> '' BEGIN
    UPDATE blobs SET candidate = 1 WHERE hash = OLD.output AND account = OLD.account AND candidate = 0;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER blobs_left_by_lease_output AFTER UPDATE OF output ON leases WHEN OLD.output <> '' AND OLD.output <> NEW.output BEGIN
    UPDATE blobs SET candidate = 1 WHERE hash = OLD.output AND account = OLD.account AND candidate = 0;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER blobs_left_by_checkpoint AFTER DELETE ON checkpoints BEGIN
    UPDATE blobs SET candidate = 1 WHERE hash = OLD.tree AND account = OLD.account AND candidate = 0;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER blobs_left_by_tree AFTER DELETE ON tree_chunks BEGIN
    UPDATE blobs SET candidate = 1 WHERE hash = OLD.chunk AND account = OLD.account AND candidate = 0;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER blobs_left_by_log AFTER DELETE ON log_segments WHEN OLD.blob <> '' BEGIN
    UPDATE blobs SET candidate = 1 WHERE hash = OLD.blob AND account = OLD.account AND candidate = 0;
END;
-- +goose StatementEnd
