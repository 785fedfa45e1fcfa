-- The rows of 64 claims, written by somebody who knows them: jobs, nodes, leases
-- and two events each, in one transaction. Nothing is locked first, read or decided.
-- Each client has jobs and nodes of its own.
\set from (:n * :clients + :client_id) * 64 + :first
\set to :from + 63
\set node (:client_id * 2 + :n % 2) * 64 + 1
\set n :n + 1
BEGIN;
UPDATE nodes SET reserved_cpu = reserved_cpu + 1000, revision = revision + 1
    WHERE id IN (SELECT 'node_' || (100000 + k) FROM generate_series(:node::bigint, :node::bigint + 63) k);
UPDATE jobs SET state = 'leased', attempt = attempt + 1, lease = 'lease_' || lpad(seq::text, 32, '0'), node = 'node_' || (100000 + seq - :from::bigint + :node::bigint), not_before = 0
    WHERE seq BETWEEN :from::bigint AND :to::bigint AND state = 'queued';
INSERT INTO leases (id, job, account, attempt, node, state, cpu, memory, disk, price, expires_at, grace, time_limit, offered_at)
    SELECT 'lease_' || lpad(k::text, 32, '0'), 'job_' || lpad(k::text, 22, '0'), 'acct_1', 1, 'node_' || (100000 + k - :from::bigint + :node::bigint), 'offered', 1000, 0, 0, 400000,
        extract(epoch FROM now()) * 1000000, 60000000, 86400000000, extract(epoch FROM now()) * 1000000
    FROM generate_series(:from::bigint, :to::bigint) k;
INSERT INTO events (cursor, at, type, account, job, attempt, lease, node, reason, data)
    SELECT k * 2 + e, extract(epoch FROM now()) * 1000000, CASE e::int WHEN 0 THEN 'lease.offered' ELSE 'job.leased' END, 'acct_1', 'job_' || lpad(k::text, 22, '0'), 1,
        'lease_' || lpad(k::text, 32, '0'), 'node_' || (100000 + k - :from::bigint + :node::bigint), '',
        CASE e WHEN 0 THEN '{"resources":{"cpu_milli":1000,"memory_bytes":0,"disk_bytes":0},"price":400000,"expires_at":"2026-12-02T12:00:00.000000Z"}' ELSE '' END
    FROM generate_series(:from::bigint, :to::bigint) k, generate_series(0, 1) e;
COMMIT;
