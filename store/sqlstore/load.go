package sqlstore

import (
	"fmt"
	"time"

	"offpeak"
	"offpeak/ledger"
	"offpeak/store"
)

// rows are what a verb has locked, as it leaves it: loaded in few statements,
// changed in memory by what is decided, and written all at once. They hold what
// was read after the nodes were locked, and nothing from before.
type rows struct {
	// lock ends the reading of jobs and leases: a lock once nodes are locked, as
	// what happens to a lease and its job happens under its node's lock.
	lock   string
	nodes  map[offpeak.NodeID]*lockedNode
	jobs   map[offpeak.JobID]*job
	leases map[offpeak.LeaseID]*lease
	// What claims ask for beside: devices that are listed, and whether a lease
	// holds them; accounts with a quota of live leases; lease ids in use.
	devices map[device]bool
	quotas  map[offpeak.AccountID]*quota
	// members are arrays with a limit on those that hold leases.
	members map[offpeak.GroupID]*quota
	// gangs are those that are claimed: how many members have not ended, 0 where one is
	// not to be claimed any more.
	gangs map[offpeak.GroupID]int
	used  map[offpeak.LeaseID]bool
	// balances are as they were read, without what the verb posts: posted sums that, of
	// the first summed entries.
	balances map[ledger.Account]balance
	posted   map[ledger.Account]offpeak.MicroCredits
	summed   int
	// done are operations that were done before, and by this verb.
	done map[offpeak.OpID]operation
	// groups are arrays that others wait for or are told of.
	groups map[offpeak.GroupID]*jobGroup
	// steps are arrays that the verb submits with others.
	steps map[offpeak.GroupID]offpeak.Group
	// added are jobs that the verb submits.
	added map[offpeak.JobID]*job
}

type device struct {
	node offpeak.NodeID
	id   offpeak.DeviceID
}

// quota is how many live leases an account may have, and has, and how many GPUs
// they may hold, and do; 0 is no bound.
type quota struct{ most, live, mostGPUs, gpus int64 }

// refuses says which bound another lease with so many GPUs would be over.
func (q *quota) refuses(gpus int) error {
	switch {
	case q.most > 0 && q.live >= q.most:
		return &offpeak.QuotaError{Bound: "running_jobs", Most: q.most, Have: q.live, More: 1}
	case gpus > 0 && q.mostGPUs > 0 && q.gpus+int64(gpus) > q.mostGPUs:
		return &offpeak.QuotaError{Bound: "gpus", Most: q.mostGPUs, Have: q.gpus, More: int64(gpus)}
	}
	return nil
}

// lockedNode is what leases and heartbeats need of their node.
type lockedNode struct {
	id           offpeak.NodeID
	account      offpeak.AccountID
	liveness     offpeak.Liveness
	intent       offpeak.Intent
	availability offpeak.Availability
	why          offpeak.EndReason
	incarnation  offpeak.Incarnation
	beat         int64
	timeout      time.Duration
	removed      bool
	// asks says that it is offered at a price, if only for nothing.
	asks     bool
	revision int64
	claimed  offpeak.Resources
	capacity offpeak.Resources
	reserved offpeak.Resources
	trial    offpeak.Trial
	pending  pendingNode
}

// pendingNode is what is to be written of a node.
type pendingNode struct {
	changed bool
	// By how much what it holds and its revision were raised.
	reserved offpeak.Resources
	raised   int64
	// ready: a claim counts on its being online, open and available.
	ready bool
	// tried: what is held against it changed.
	tried bool
	// said: a heartbeat came after the one numbered heard.
	said  bool
	heard int64
}

// ready says that a node may be given new work.
func (n *lockedNode) ready() bool {
	return !n.removed && n.asks && n.liveness == offpeak.NodeOnline && n.intent == offpeak.NodeOpen && n.availability == offpeak.NodeAvailable
}

const (
	forUpdate  = ` FOR NO KEY UPDATE`
	skipLocked = ` FOR NO KEY UPDATE SKIP LOCKED`
)

// lockNodes locks nodes of which nothing but their own row is read or changed.
func (t *verb) lockNodes(ids ...offpeak.NodeID) error {
	t.rows.lock = forUpdate
	return t.Lock(`SELECT 1 FROM nodes WHERE id = ANY($1) ORDER BY id`+forUpdate, texts(ids))
}

// oneOf is the condition that a column is one of the ids. One id is looked for as
// such: a list costs an engine more than the row does.
func oneOf[S ~string](column string, ids []S) (condition string, arg any) {
	if len(ids) == 1 {
		return column + " = $1", string(ids[0])
	}
	return column + " = ANY($1)", texts(ids)
}

// loadNodes locks nodes, in the order of their ids and before anything of them is
// read, and keeps them.
func (t *verb) loadNodes(lock string, ids ...offpeak.NodeID) error {
	t.rows.lock = forUpdate
	if len(ids) == 0 {
		return nil
	}
	return t.QueryMany(t.lookNodes(lock, ids))
}

func (t *verb) lookNodes(lock string, ids []offpeak.NodeID) Look {
	where, arg := oneOf("id", ids)
	return Look{`SELECT id, account, liveness, intent, availability, why, incarnation, beat, timeout, removed_at <> 0, ask_gpu IS NOT NULL, revision, claimed_cpu, claimed_memory, claimed_disk,
		capacity_cpu, capacity_memory, capacity_disk, reserved_cpu, reserved_memory, reserved_disk, trial FROM nodes WHERE ` + where + ` ORDER BY id` + lock, []any{arg}, func(r Rows) error {
		n := &lockedNode{}
		var timeout int64
		var trial string
		err := r.Scan(&n.id, &n.account, &n.liveness, &n.intent, &n.availability, &n.why, &n.incarnation, &n.beat, &timeout, &n.removed, &n.asks, &n.revision, &n.claimed.CPU, &n.claimed.Memory, &n.claimed.Disk,
			&n.capacity.CPU, &n.capacity.Memory, &n.capacity.Disk, &n.reserved.CPU, &n.reserved.Memory, &n.reserved.Disk, &trial)
		if err == nil {
			n.trial, err = trialOf(n.id, trial)
		}
		n.timeout, n.pending.heard = time.Duration(timeout)*time.Microsecond, n.beat
		keep(&t.rows.nodes, n.id, n)
		return err
	}}
}

// keep returns the row that is kept under a key: the given one, if there is none.
func keep[K comparable, V any](m *map[K]V, key K, row V) V {
	if have, ok := (*m)[key]; ok {
		return have
	}
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[key] = row
	return row
}

// lockedNode returns a node that is locked, or locks it.
func (t *verb) lockedNode(id offpeak.NodeID) (*lockedNode, error) {
	if t.rows.nodes[id] == nil {
		if err := t.loadNodes(forUpdate, id); err != nil {
			return nil, err
		}
	}
	if n := t.rows.nodes[id]; n != nil {
		return n, nil
	}
	return nil, offpeak.ErrUnknownNode
}

// loadJobs locks jobs and keeps them with their specs. Those that are not there,
// or that somebody has where lock skips them, are left out.
func (s *Store) loadJobs(t *verb, lock string, ids []offpeak.JobID) error {
	if len(ids) == 0 {
		return nil
	}
	var loaded []*job
	if err := t.QueryMany(lookJobs(lock, ids, &loaded)); err != nil {
		return err
	}
	return s.keepJobs(t, loaded)
}

func lookJobs(lock string, ids []offpeak.JobID, loaded *[]*job) Look {
	where, arg := oneOf("id", ids)
	return Look{`SELECT ` + jobColumns + ` FROM jobs WHERE ` + where + ` ORDER BY id` + lock, []any{arg}, func(r Rows) error {
		j := &job{}
		*loaded = append(*loaded, j)
		return j.scan(r)
	}}
}

// keepJobs keeps jobs with their specs.
func (s *Store) keepJobs(t *verb, loaded []*job) error {
	var specs []offpeak.Hash
	for _, j := range loaded {
		if _, known := s.recent(j.spec); !known {
			specs = append(specs, j.spec)
		}
	}
	read, err := s.readSpecs(t, specs)
	if err != nil {
		return err
	}
	for _, j := range loaded {
		spec, known := read[j.spec]
		if !known {
			if spec, err = s.spec(t, j.spec); err != nil {
				return err
			}
		}
		j.Spec = spec
		if err := s.joinArray(t, j); err != nil {
			return err
		}
		keep(&t.rows.jobs, j.ID, j)
	}
	return nil
}

// jobsOf are the jobs of leases.
func jobsOf(leases []*lease) []offpeak.JobID {
	out := make([]offpeak.JobID, len(leases))
	for i, l := range leases {
		out[i] = l.Job
	}
	return out
}

// loadClaims reads what claims need: their nodes, those that are not locked yet; their
// jobs; and what else they ask for. What somebody has in hand is left out: the claim
// is lost, and the next look knows what became of it.
func (s *Store) loadClaims(t *verb, claims []store.Claim) error {
	if len(claims) == 0 {
		return nil
	}
	t.rows.lock = forUpdate
	jobs, leases := make([]offpeak.JobID, len(claims)), make([]offpeak.LeaseID, len(claims))
	var lock []offpeak.NodeID
	for i, c := range claims {
		jobs[i], leases[i] = c.Job, c.Lease
		if t.rows.nodes[c.Node] == nil {
			lock = append(lock, c.Node)
		}
	}
	var looks []Look
	switch {
	case len(lock) > 0 && s.cfg.Unguarded:
		looks = append(looks, t.lookNodes("", lock))
	case len(lock) > 0:
		looks = append(looks, t.lookNodes(skipLocked, lock))
	}
	var loaded []*job
	where, arg := oneOf("id", leases)
	if err := t.QueryMany(append(looks, lookJobs(skipLocked, jobs, &loaded), Look{`SELECT id FROM leases WHERE ` + where, []any{arg}, func(r Rows) error {
		var id offpeak.LeaseID
		err := r.Scan(&id)
		keep(&t.rows.used, id, true)
		return err
	}})...); err != nil {
		return err
	}
	if err := s.keepJobs(t, loaded); err != nil {
		return err
	}
	var accounts, payers []offpeak.AccountID
	var nodes []offpeak.NodeID
	seen := map[string]bool{}
	for _, c := range claims {
		if j := t.rows.jobs[c.Job]; j != nil && c.Price > 0 {
			payers = append(payers, j.Account)
		}
		if j := t.rows.jobs[c.Job]; j != nil && !seen[string(j.Account)] {
			seen[string(j.Account)] = true
			accounts = append(accounts, j.Account)
		}
		if len(c.Resources.Devices) > 0 && !seen[string(c.Node)] {
			seen[string(c.Node)] = true
			nodes = append(nodes, c.Node)
		}
	}
	if err := t.loadMoney(nil, payers); err != nil {
		return err
	}
	if err := t.loadMembers(claims); err != nil {
		return err
	}
	if err := t.loadGangs(claims); err != nil {
		return err
	}
	if err := t.loadQuotas(accounts); err != nil || len(nodes) == 0 {
		return err
	}
	where, arg = oneOf("d.node", nodes)
	return t.each(`SELECT d.node, d.device, EXISTS (SELECT 1 FROM lease_devices l WHERE l.node = d.node AND l.device = d.device AND l.held = 1)
		FROM node_devices d WHERE d.gone = 0 AND `+where, []any{arg}, func(r Rows) error {
		var d device
		var held bool
		err := r.Scan(&d.node, &d.id, &held)
		keep(&t.rows.devices, d, held)
		return err
	})
}

// loadQuotas locks the accounts that have a quota of live leases or of the GPUs
// that these hold, and counts.
func (t *verb) loadQuotas(accounts []offpeak.AccountID) error {
	if len(accounts) == 0 {
		return nil
	}
	where, arg := oneOf("id", accounts)
	if err := t.each(`SELECT id, quota_running, quota_gpus FROM accounts WHERE (quota_running > 0 OR quota_gpus > 0) AND `+where+` ORDER BY id`+forUpdate, []any{arg}, func(r Rows) error {
		var id offpeak.AccountID
		q := &quota{}
		err := r.Scan(&id, &q.most, &q.mostGPUs)
		keep(&t.rows.quotas, id, q)
		return err
	}); err != nil || len(t.rows.quotas) == 0 {
		return err
	}
	where, arg = oneOf("account", accounts)
	return t.each(`SELECT account, count(*), CAST(COALESCE(sum((SELECT count(*) FROM lease_devices d WHERE d.lease = leases.id AND d.held = 1)), 0) AS BIGINT)
		FROM leases WHERE `+liveLease+` AND `+where+` GROUP BY account`, []any{arg}, func(r Rows) error {
		var id offpeak.AccountID
		var live, gpus int64
		err := r.Scan(&id, &live, &gpus)
		if q := t.rows.quotas[id]; q != nil {
			q.live, q.gpus = live, gpus
		}
		return err
	})
}

// logTail is where a lease's log ends.
type logTail struct {
	known          bool
	stdout, stderr int64 // the ends of the streams
	n              int64 // the newest segment
}

func (g *logTail) end(stream string) *int64 {
	if stream == "stderr" {
		return &g.stderr
	}
	return &g.stdout
}

// loadLogs reads where the logs of leases end, which must be locked.
func (t *verb) loadLogs(leases ...*lease) error {
	byID := make(map[offpeak.LeaseID]*lease, len(leases))
	ids := make([]offpeak.LeaseID, 0, len(leases))
	for _, l := range leases {
		if !l.log.known && byID[l.ID] == nil {
			byID[l.ID], ids = l, append(ids, l.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	const end = `COALESCE((SELECT start + length FROM log_segments g WHERE g.lease = leases.id AND g.stream = '%s' ORDER BY start DESC LIMIT 1), 0)`
	where, arg := oneOf("id", ids)
	return t.each(`SELECT id, `+fmt.Sprintf(end, "stdout")+`, `+fmt.Sprintf(end, "stderr")+`, COALESCE((SELECT max(n) FROM log_segments g WHERE g.lease = leases.id), 0)
		FROM leases WHERE `+where, []any{arg}, func(r Rows) error {
		var id offpeak.LeaseID
		g := logTail{known: true}
		err := r.Scan(&id, &g.stdout, &g.stderr, &g.n)
		if l := byID[id]; l != nil {
			l.log = g
		}
		return err
	})
}
