-- What a full cycle of jobs writes in PostgreSQL, as bare statements of many rows: the
-- jobs :first to :last at the time :now, each on a node of its own among those of
-- :lane. A section is a transaction. :event is the cursor before its first event.

-- section: account
INSERT INTO accounts (id, name, quota_storage, quota_queued, quota_running, created_at) VALUES ('acct_bare', 'bare', 0, 0, 0, :now);
INSERT INTO specs (hash, spec, driver, requirements) VALUES (repeat('0', 64), '{}', 'process', '{}');

-- section: nodes
INSERT INTO nodes (id, account, name, key, liveness, intent, availability, inventory, claimed_cpu, claimed_memory, claimed_disk, capacity_cpu, capacity_memory, capacity_disk, timeout, enrolled_at)
SELECT 'node_' || lpad((:lane * 1000 + i)::text, 26, '0'), 'acct_bare', 'bare', decode(md5((:lane * 1000 + i)::text), 'hex'), 'online', 'open', 'available',
    '{"hostname":"v00000","os":"linux","arch":"amd64","cpu_milli":8000,"memory_bytes":17179869184,"disk_bytes":107374182400,"drivers":["process"],"version":"gridtest"}',
    8000, 17179869184, 107374182400, 8000, 17179869184, 107374182400, 60000000, :now
FROM generate_series(0, :last - :first) i;

-- section: submit
INSERT INTO jobs (id, account, grp, idx, spec, name, priority, state, input, retry_of, submitted_by, submitted_at)
SELECT 'job_' || lpad(i::text, 26, '0'), 'acct_bare', 'job_' || lpad(i::text, 26, '0'), 0, repeat('0', 64), 'cycle', 0, 'queued', '', '', 'member_01m8w1vh7zf1y8xwn2stgxbjnr', :now
FROM generate_series(:first, :last) i;
INSERT INTO operations (id, account, digest, outcome, at)
SELECT 'bench-' || md5('op' || i), 'acct_bare', decode(md5(i::text) || md5(i::text), 'hex'), '"job_' || lpad(i::text, 26, '0') || '"', :now
FROM generate_series(:first, :last) i;
INSERT INTO audit (at, account, member, token, node, address, verb, object, outcome)
SELECT :now, 'acct_bare', 'member_01m8w1vh7zf1y8xwn2stgxbjnr', 'tok_01m8w1vh8ne6crbgxgt1y8708z', '', '127.0.0.1', 'job.submit', 'job_' || lpad(i::text, 26, '0'), 'done'
FROM generate_series(:first, :last) i;
INSERT INTO events (cursor, at, type, account, job, attempt, lease, node, reason, data, hub)
SELECT :event + i - :first + 1, :now, 'job.queued', 'acct_bare', 'job_' || lpad(i::text, 26, '0'), 0, '', '', '', '{"spec":"' || repeat('0', 64) || '"}', 'hub_01m8w1vghpfp2vg4m2xtqe00pj'
FROM generate_series(:first, :last) i;

-- section: claim
UPDATE nodes SET reserved_cpu = reserved_cpu + 1000, reserved_memory = reserved_memory + 1048576, reserved_disk = reserved_disk + 1048576, revision = revision + 1
FROM generate_series(:first, :last) i WHERE nodes.id = 'node_' || lpad((:lane * 1000 + i - :first)::text, 26, '0');
INSERT INTO leases (id, job, account, attempt, node, state, cpu, memory, disk, devices, price, expires_at, grace, time_limit, offered_at, accepted_at, accepted_incarnation, accepted_seq)
SELECT 'lease_' || md5(i::text), 'job_' || lpad(i::text, 26, '0'), 'acct_bare', 1, 'node_' || lpad((:lane * 1000 + i - :first)::text, 26, '0'), 'offered', 1000, 1048576, 1048576, '', 0, :now + 15000000, 0, 86400000000, :now, 0, '', 0
FROM generate_series(:first, :last) i;
UPDATE jobs SET state = 'leased', attempt = 1, lease = 'lease_' || md5(i::text), node = 'node_' || lpad((:lane * 1000 + i - :first)::text, 26, '0'), not_before = 0
FROM generate_series(:first, :last) i WHERE jobs.id = 'job_' || lpad(i::text, 26, '0');
INSERT INTO events (cursor, at, type, account, job, attempt, lease, node, reason, data, hub)
SELECT :event + 2 * (i - :first) + k, :now, CASE k WHEN 1 THEN 'lease.offered' ELSE 'job.leased' END, 'acct_bare', 'job_' || lpad(i::text, 26, '0'), 1, 'lease_' || md5(i::text),
    'node_' || lpad((:lane * 1000 + i - :first)::text, 26, '0'), '',
    CASE k WHEN 1 THEN '{"resources":{"cpu_milli":1000,"memory_bytes":1048576,"disk_bytes":1048576},"price":0,"expires_at":"2026-12-02T18:57:49.625Z","placement":{"policy":"cheapest","score":0.984375,"candidates":64}}' ELSE '' END, 'hub_01m8w1vghpfp2vg4m2xtqe00pj'
FROM generate_series(:first, :last) i, generate_series(1, 2) k;

-- section: start
UPDATE leases SET state = 'running', expires_at = :now + 60000000, incarnation = 'CUJAMQ24JKBY2TM5UHMQY2KLDP', seq = 1, accepted_incarnation = 'CUJAMQ24JKBY2TM5UHMQY2KLDP', accepted_seq = 1, accepted_at = :now, started_at = :now
FROM generate_series(:first, :last) i WHERE leases.id = 'lease_' || md5(i::text);
INSERT INTO lease_terms (lease, n, price, from_at)
SELECT 'lease_' || md5(i::text), 1, 0, :now FROM generate_series(:first, :last) i;
UPDATE jobs SET state = 'running', started_at = :now
FROM generate_series(:first, :last) i WHERE jobs.id = 'job_' || lpad(i::text, 26, '0');
INSERT INTO events (cursor, at, type, account, job, attempt, lease, node, reason, data, hub)
SELECT :event + 3 * (i - :first) + k, :now, CASE k WHEN 1 THEN 'lease.preparing' WHEN 2 THEN 'job.running' ELSE 'lease.running' END, 'acct_bare', 'job_' || lpad(i::text, 26, '0'), 1, 'lease_' || md5(i::text),
    'node_' || lpad((:lane * 1000 + i - :first)::text, 26, '0'), '', '', 'hub_01m8w1vghpfp2vg4m2xtqe00pj'
FROM generate_series(:first, :last) i, generate_series(1, 3) k;

-- section: end
UPDATE nodes SET reserved_cpu = reserved_cpu - 1000, reserved_memory = reserved_memory - 1048576, reserved_disk = reserved_disk - 1048576, revision = revision + 1
FROM generate_series(:first, :last) i WHERE nodes.id = 'node_' || lpad((:lane * 1000 + i - :first)::text, 26, '0');
UPDATE lease_terms SET to_at = :now, metered = 1
FROM generate_series(:first, :last) i WHERE lease = 'lease_' || md5(i::text);
UPDATE jobs SET state = 'succeeded', lease = '', reason = 'completed', exit_code = 0, ended_at = :now
FROM generate_series(:first, :last) i WHERE jobs.id = 'job_' || lpad(i::text, 26, '0');
UPDATE leases SET state = 'succeeded', metered = 1, seq = 2, reason = 'completed', exit_code = 0, ended_at = :now,
    outcome = '{"Job":{"id":"job_' || lpad(i::text, 26, '0') || '","account":"acct_bare","group":"job_' || lpad(i::text, 26, '0') || '","index":0,"spec":{"task":{"driver":"","command":null,"checkpoint":{}},"requirements":{},"limits":{}},"state":"succeeded","attempt":1,"node":"node_01m8w1vhvaecvtkfkqvgd85xtt","reason":"completed","exit_code":0,"retries":{"user":0,"node":0,"interruption":0},"submitted_by":"member_01m8w1vh7zf1y8xwn2stgxbjnr","submitted_at":"2026-12-02T18:57:32.748433Z","started_at":"2026-12-02T18:57:34.626008Z","ended_at":"2026-12-02T18:57:34.755298Z"},"Queued":null,"Node":"node_01m8w1vhvaecvtkfkqvgd85xtt","Revision":140,"Closed":false}'
FROM generate_series(:first, :last) i WHERE leases.id = 'lease_' || md5(i::text);
INSERT INTO events (cursor, at, type, account, job, attempt, lease, node, reason, data, hub)
SELECT :event + 2 * (i - :first) + k, :now, CASE k WHEN 1 THEN 'lease.succeeded' ELSE 'job.succeeded' END, 'acct_bare', 'job_' || lpad(i::text, 26, '0'), 1, 'lease_' || md5(i::text),
    'node_' || lpad((:lane * 1000 + i - :first)::text, 26, '0'), 'completed', CASE k WHEN 1 THEN '{"metered_ms":1,"exit_code":0}' ELSE '{}' END, 'hub_01m8w1vghpfp2vg4m2xtqe00pj'
FROM generate_series(:first, :last) i, generate_series(1, 2) k;
