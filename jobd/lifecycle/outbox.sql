-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: read_outbox
-- Changes that are not in Redis yet, oldest first, with what Redis needs of the job: one row per job and change. Reads only.
-- $1 most commits int, $2 commits to pass over bigint[]
SELECT
    r.seq, r.event, (extract(epoch FROM r.at) * 1000)::bigint AS ts, r.has_gap, c.job_id, c.version,
    coalesce(c.attempt, 0) AS attempt,
    coalesce(c.event_n, CASE r.event WHEN 'queued' THEN 1 ELSE 0 END) AS event_n, c.stream, c.message_id,
    jobs.task, jobs.queue, jobs.ttl_s, CASE WHEN r.event = 'queued' THEN jobs.order_at END AS order_at,
    (extract(epoch FROM jobs.created_at) * 1000)::bigint AS created_ts,
    CASE WHEN r.event = 'queued' THEN jobs.payload::text END AS payload,
    CASE WHEN r.event = 'done' THEN jobs.result::text END AS result,
    CASE WHEN r.event = 'done' THEN jobs.result_ref END AS result_ref,
    CASE WHEN r.event IN ('error', 'canceled', 'requeued') THEN jobs.error::text END AS error,
    CASE WHEN r.event = 'events' THEN (
        SELECT events::text FROM event_log
        WHERE event_log.job_id = c.job_id AND event_log.attempt_no = c.attempt AND event_log.first_n = c.event_n
    ) END AS events
FROM (SELECT * FROM outbox WHERE seq <> ALL ($2::bigint[]) ORDER BY seq LIMIT $1::integer) r
CROSS JOIN LATERAL unnest(r.job_ids, r.versions, r.attempts, r.event_ns, r.streams, r.message_ids)
    AS c (job_id, version, attempt, event_n, stream, message_id)
LEFT JOIN jobs ON jobs.id = ANY (ARRAY[c.job_id])
ORDER BY r.seq;

-- name: read_epoch
-- Which filling of Redis this database knows of. It also names the server and its timeline, and the table itself: after a
-- failover or a restore Postgres may have gone back in time, and what was published to Redis meanwhile is not to be believed.
SELECT
    installation.id::text || '/' || (SELECT system_identifier FROM pg_control_system()) || '.'
    || left(pg_walfile_name(pg_current_wal_lsn()), 8) || '.' || 'installation'::regclass::oid || '/' || epoch AS epoch
FROM installation;

-- name: raise_epoch
UPDATE installation SET epoch = epoch + 1;

-- name: delete_outbox_rows
-- Deletes rows that were published. If a crash undoes this, they are published again, which changes nothing: so no wait for the disk.
-- $1 seqs bigint[]
WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true) AS setting)
DELETE FROM outbox USING relaxed WHERE outbox.seq = ANY($1::bigint[]) AND relaxed.setting = 'off';

-- name: read_live_queued
-- One page of the queued jobs that have their place, in its order, for a Redis that has lost them. Reads only.
-- $1 queue text, $2 after order_at timestamptz, $3 after id uuid (both null: from the first), $4 most int
SELECT
    id AS job_id, version, task, queue, status, payload::text AS payload, ttl_s, attempt_no, order_at,
    (extract(epoch FROM created_at) * 1000)::bigint AS created_ts,
    (extract(epoch FROM updated_at) * 1000)::bigint AS ts
FROM jobs
WHERE order_at IS NOT NULL AND queue = $1
    AND (order_at, id) > (coalesce($2, '-infinity'::timestamptz), coalesce($3, '00000000-0000-0000-0000-000000000000'::uuid))
ORDER BY queue, order_at, id LIMIT $4::integer;

-- name: read_live_delayed
-- The same for jobs that are not due yet.
-- $1 after due_at timestamptz, $2 after id uuid (both null: from the first), $3 most int
SELECT
    id AS job_id, version, task, queue, status, payload::text AS payload, ttl_s, attempt_no, due_at,
    (extract(epoch FROM created_at) * 1000)::bigint AS created_ts,
    (extract(epoch FROM updated_at) * 1000)::bigint AS ts
FROM jobs
WHERE due_at IS NOT NULL
    AND (due_at, id) > (coalesce($1, '-infinity'::timestamptz), coalesce($2, '00000000-0000-0000-0000-000000000000'::uuid))
ORDER BY due_at, id LIMIT $3::integer;

-- name: read_live_running
-- The same for running jobs.
-- $1 after id uuid (null: from the first), $2 most int
SELECT
    jobs.id AS job_id, version, task, queue, status, payload::text AS payload, ttl_s, jobs.attempt_no,
    (extract(epoch FROM created_at) * 1000)::bigint AS created_ts,
    (extract(epoch FROM updated_at) * 1000)::bigint AS ts
FROM (
    SELECT resource_id FROM leases
    WHERE resource_id > coalesce($1, '00000000-0000-0000-0000-000000000000'::uuid) AND attempt_id IS NOT NULL
    ORDER BY resource_id LIMIT $2::integer
) l
JOIN jobs ON jobs.id = ANY (ARRAY[l.resource_id]);
