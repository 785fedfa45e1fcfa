-- What a full cycle of jobs writes in SQLite, as bare statements of many rows: the
-- jobs :first to :last at the time :now, each on a node of its own among those of
-- :lane. A section is a transaction. :event is the cursor before its first event.

-- section: account
INSERT INTO accounts (id, name, quota_storage, quota_queued, quota_running, created_at) VALUES ('acct_bare', 'bare', 0, 0, 0, :now);
INSERT INTO specs (hash, spec, driver, requirements) VALUES (printf('%064d', 0), '{}', 'process', '{}');

-- section: nodes
WITH RECURSIVE nn (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM nn WHERE i < :last - :first)
INSERT INTO nodes (id, account, name, key, liveness, intent, availability, inventory, claimed_cpu, claimed_memory, claimed_disk, capacity_cpu, capacity_memory, capacity_disk, timeout, enrolled_at)
SELECT 'node_' || printf('%026d', :lane * 1000 + i), 'acct_bare', 'bare', CAST(printf('%032d', :lane * 1000 + i) AS BLOB), 'online', 'open', 'available',
    '{"hostname":"v00000","os":"linux","arch":"amd64","cpu_milli":8000,"memory_bytes":17179869184,"disk_bytes":107374182400,"drivers":["process"],"version":"gridtest"}',
    8000, 17179869184, 107374182400, 8000, 17179869184, 107374182400, 60000000, :now
FROM nn;

-- section: submit
WITH RECURSIVE nn (i) AS (SELECT :first UNION ALL SELECT i + 1 FROM nn WHERE i < :last)
INSERT INTO jobs (id, account, grp, idx, spec, name, priority, state, input, retry_of, submitted_by, submitted_at)
SELECT 'job_' || printf('%026d', i), 'acct_bare', 'job_' || printf('%026d', i), 0, printf('%064d', 0), 'cycle', 0, 'queued', '', '', 'member_01m8w1vh7zf1y8xwn2stgxbjnr', :now
FROM nn;
WITH RECURSIVE nn (i) AS (SELECT :first UNION ALL SELECT i + 1 FROM nn WHERE i < :last)
INSERT INTO operations (id, account, digest, outcome, at)
SELECT 'bench-' || printf('%08x%024d', i * 2654435761 % 4294967296, i), 'acct_bare', CAST(printf('%032d', i) AS BLOB), '"job_' || printf('%026d', i) || '"', :now
FROM nn;
WITH RECURSIVE nn (i) AS (SELECT :first UNION ALL SELECT i + 1 FROM nn WHERE i < :last)
INSERT INTO audit (at, account, member, token, node, address, verb, object, outcome)
SELECT :now, 'acct_bare', 'member_01m8w1vh7zf1y8xwn2stgxbjnr', 'tok_01m8w1vh8ne6crbgxgt1y8708z', '', '127.0.0.1', 'job.submit', 'job_' || printf('%026d', i), 'done'
FROM nn;
WITH RECURSIVE nn (i) AS (SELECT :first UNION ALL SELECT i + 1 FROM nn WHERE i < :last)
INSERT INTO events (cursor, at, type, account, job, attempt, lease, node, reason, data, hub)
SELECT :event + i - :first + 1, :now, 'job.queued', 'acct_bare', 'job_' || printf('%026d', i), 0, '', '', '', '{"spec":"' || printf('%064d', 0) || '"}', 'hub_01m8w1vghpfp2vg4m2xtqe00pj'
FROM nn;

-- section: claim
WITH RECURSIVE nn (i) AS (SELECT :first UNION ALL SELECT i + 1 FROM nn WHERE i < :last)
UPDATE nodes SET reserved_cpu = reserved_cpu + 1000, reserved_memory = reserved_memory + 1048576, reserved_disk = reserved_disk + 1048576, revision = revision + 1
FROM nn WHERE nodes.id = 'node_' || printf('%026d', :lane * 1000 + i - :first);
WITH RECURSIVE nn (i) AS (SELECT :first UNION ALL SELECT i + 1 FROM nn WHERE i < :last)
INSERT INTO leases (id, job, account, attempt, node, state, cpu, memory, disk, devices, price, expires_at, grace, time_limit, offered_at, accepted_at, accepted_incarnation, accepted_seq)
SELECT 'lease_' || printf('%08x%024d', i * 2654435761 % 4294967296, i), 'job_' || printf('%026d', i), 'acct_bare', 1, 'node_' || printf('%026d', :lane * 1000 + i - :first), 'offered', 1000, 1048576, 1048576, '', 0, :now + 15000000, 0, 86400000000, :now, 0, '', 0
FROM nn;
WITH RECURSIVE nn (i) AS (SELECT :first UNION ALL SELECT i + 1 FROM nn WHERE i < :last)
UPDATE jobs SET state = 'leased', attempt = 1, lease = 'lease_' || printf('%08x%024d', i * 2654435761 % 4294967296, i), node = 'node_' || printf('%026d', :lane * 1000 + i - :first), not_before = 0
FROM nn WHERE jobs.id = 'job_' || printf('%026d', i);
WITH RECURSIVE nn (i) AS (SELECT :first UNION ALL SELECT i + 1 FROM nn WHERE i < :last), kk (k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM kk WHERE k < 2)
INSERT INTO events (cursor, at, type, account, job, attempt, lease, node, reason, data, hub)
SELECT :event + 2 * (i - :first) + k, :now, CASE k WHEN 1 THEN 'lease.offered' ELSE 'job.leased' END, 'acct_bare', 'job_' || printf('%026d', i), 1, 'lease_' || printf('%08x%024d', i * 2654435761 % 4294967296, i),
    'node_' || printf('%026d', :lane * 1000 + i - :first), '',
    CASE k WHEN 1 THEN '{"resources":{"cpu_milli":1000,"memory_bytes":1048576,"disk_bytes":1048576},"price":0,"expires_at":"2026-12-02T18:57:49.625Z","placement":{"policy":"cheapest","score":0.984375,"candidates":64}}' ELSE '' END, 'hub_01m8w1vghpfp2vg4m2xtqe00pj'
FROM nn, kk;

-- section: start
WITH RECURSIVE nn (i) AS (SELECT :first UNION ALL SELECT i + 1 FROM nn WHERE i < :last)
UPDATE leases SET state = 'running', expires_at = :now + 60000000, incarnation = 'CUJAMQ24JKBY2TM5UHMQY2KLDP', seq = 1, accepted_incarnation = 'CUJAMQ24JKBY2TM5UHMQY2KLDP', accepted_seq = 1, accepted_at = :now, started_at = :now
FROM nn WHERE leases.id = 'lease_' || printf('%08x%024d', i * 2654435761 % 4294967296, i);
WITH RECURSIVE nn (i) AS (SELECT :first UNION ALL SELECT i + 1 FROM nn WHERE i < :last)
INSERT INTO lease_terms (lease, n, price, from_at)
SELECT 'lease_' || printf('%08x%024d', i * 2654435761 % 4294967296, i), 1, 0, :now FROM nn;
WITH RECURSIVE nn (i) AS (SELECT :first UNION ALL SELECT i + 1 FROM nn WHERE i < :last)
UPDATE jobs SET state = 'running', started_at = :now
FROM nn WHERE jobs.id = 'job_' || printf('%026d', i);
WITH RECURSIVE nn (i) AS (SELECT :first UNION ALL SELECT i + 1 FROM nn WHERE i < :last), kk (k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM kk WHERE k < 3)
INSERT INTO events (cursor, at, type, account, job, attempt, lease, node, reason, data, hub)
SELECT :event + 3 * (i - :first) + k, :now, CASE k WHEN 1 THEN 'lease.preparing' WHEN 2 THEN 'job.running' ELSE 'lease.running' END, 'acct_bare', 'job_' || printf('%026d', i), 1, 'lease_' || printf('%08x%024d', i * 2654435761 % 4294967296, i),
    'node_' || printf('%026d', :lane * 1000 + i - :first), '', '', 'hub_01m8w1vghpfp2vg4m2xtqe00pj'
FROM nn, kk;

-- section: end
WITH RECURSIVE nn (i) AS (SELECT :first UNION ALL SELECT i + 1 FROM nn WHERE i < :last)
UPDATE nodes SET reserved_cpu = reserved_cpu - 1000, reserved_memory = reserved_memory - 1048576, reserved_disk = reserved_disk - 1048576, revision = revision + 1
FROM nn WHERE nodes.id = 'node_' || printf('%026d', :lane * 1000 + i - :first);
WITH RECURSIVE nn (i) AS (SELECT :first UNION ALL SELECT i + 1 FROM nn WHERE i < :last)
UPDATE lease_terms SET to_at = :now, metered = 1
FROM nn WHERE lease = 'lease_' || printf('%08x%024d', i * 2654435761 % 4294967296, i);
WITH RECURSIVE nn (i) AS (SELECT :first UNION ALL SELECT i + 1 FROM nn WHERE i < :last)
UPDATE jobs SET state = 'succeeded', lease = '', reason = 'completed', exit_code = 0, ended_at = :now
FROM nn WHERE jobs.id = 'job_' || printf('%026d', i);
WITH RECURSIVE nn (i) AS (SELECT :first UNION ALL SELECT i + 1 FROM nn WHERE i < :last)
UPDATE leases SET state = 'succeeded', metered = 1, seq = 2, reason = 'completed', exit_code = 0, ended_at = :now,
    outcome = '{"Job":{"id":"job_' || printf('%026d', i) || '","account":"acct_bare","group":"job_' || printf('%026d', i) || '","index":0,"spec":{"task":{"driver":"","command":null,"checkpoint":{}},"requirements":{},"limits":{}},"state":"succeeded","attempt":1,"node":"node_01m8w1vhvaecvtkfkqvgd85xtt","reason":"completed","exit_code":0,"retries":{"user":0,"node":0,"interruption":0},"submitted_by":"member_01m8w1vh7zf1y8xwn2stgxbjnr","submitted_at":"2026-12-02T18:57:32.748433Z","started_at":"2026-12-02T18:57:34.626008Z","ended_at":"2026-12-02T18:57:34.755298Z"},"Queued":null,"Node":"node_01m8w1vhvaecvtkfkqvgd85xtt","Revision":140,"Closed":false}'
FROM nn WHERE leases.id = 'lease_' || printf('%08x%024d', i * 2654435761 % 4294967296, i);
WITH RECURSIVE nn (i) AS (SELECT :first UNION ALL SELECT i + 1 FROM nn WHERE i < :last), kk (k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM kk WHERE k < 2)
INSERT INTO events (cursor, at, type, account, job, attempt, lease, node, reason, data, hub)
SELECT :event + 2 * (i - :first) + k, :now, CASE k WHEN 1 THEN 'lease.succeeded' ELSE 'job.succeeded' END, 'acct_bare', 'job_' || printf('%026d', i), 1, 'lease_' || printf('%08x%024d', i * 2654435761 % 4294967296, i),
    'node_' || printf('%026d', :lane * 1000 + i - :first), 'completed', CASE k WHEN 1 THEN '{"metered_ms":1,"exit_code":0}' ELSE '{}' END, 'hub_01m8w1vghpfp2vg4m2xtqe00pj'
FROM nn, kk;
