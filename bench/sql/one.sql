-- One job per transaction, as a queue in a table is usually worked: the oldest that
-- nobody has, a node, a lease. No events are written and nothing is checked.
\set node random(1, :nodes)
BEGIN;
SELECT seq FROM jobs WHERE state = 'queued' ORDER BY priority DESC, seq LIMIT 1 FOR UPDATE SKIP LOCKED \gset
UPDATE jobs SET state = 'leased', attempt = attempt + 1, lease = 'lease_' || lpad(:seq::text, 32, '0'), node = 'node_' || (100000 + :node), not_before = 0
    WHERE seq = :seq AND state = 'queued';
UPDATE nodes SET reserved_cpu = reserved_cpu + 1000, revision = revision + 1 WHERE id = 'node_' || (100000 + :node);
INSERT INTO leases (id, job, account, attempt, node, state, cpu, memory, disk, price, expires_at, grace, time_limit, offered_at)
    SELECT j.lease, j.id, j.account, j.attempt, j.node, 'offered', 1000, 0, 0, 400000, extract(epoch FROM now()) * 1000000, 60000000, 86400000000, extract(epoch FROM now()) * 1000000
    FROM jobs j WHERE j.seq = :seq;
COMMIT;
