-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: read_jobs
-- Whole jobs by id; one without a row is unknown, or gone if is_gone knows it. Reads only.
-- $1 job_ids uuid[]
SELECT
    jobs.id, task, queue, payload::text AS payload, status, priority, run_after, enqueue_id, version, jobs.attempt_no,
    attempt_count, max_attempts, timeout_s, jobs.ttl_s, spec_hash, redriven_from, cancel_requested, result::text AS result,
    result_ref, error::text AS error, created_at, updated_at, started_at, finished_at,
    leases.owner_id AS lease_owner, leases.lease_expires_at
FROM unnest($1::uuid[]) AS a (job_id)
JOIN jobs ON jobs.id = ANY (ARRAY[a.job_id])
LEFT JOIN leases ON leases.resource_id = ANY (ARRAY[jobs.id]);

-- name: read_attempts
-- The closed attempts of a job and the open one, oldest first. Reads only.
-- $1 job_id uuid
SELECT number, attempt_id, owner_id, outcome, error::text AS error, started_at, ended_at FROM attempts WHERE job_id = $1
UNION ALL
SELECT attempt_no, attempt_id, owner_id, NULL, NULL, acquired_at, NULL FROM leases
WHERE resource_id = $1
ORDER BY number;

-- name: is_gone
-- Which of the ids were deleted by retention not long ago. Reads only.
-- $1 job_ids uuid[]
SELECT a.job_id FROM unnest($1::uuid[]) AS a (job_id)
WHERE (SELECT true FROM gone_jobs WHERE gone_jobs.job_id = a.job_id);  -- a join could walk through all of the index

-- name: list_jobs
-- One page of jobs, newest first, out of a bounded stretch of the table, so that a rare status costs no more than a common
-- one. The last row of the stretch is always there, fitting or not: the next page goes on from it. Reads only.
-- $1 before uuid (null: from the newest), $2 stretch int, $3 status text, $4 task text, $5 queue text (each null: any)
SELECT id, task, queue, status, priority, run_after, attempt_count, max_attempts, created_at, updated_at, finished_at, fits
FROM (
    SELECT
        *, row_number() OVER (ORDER BY id DESC) = count(*) OVER () AS is_last,
        ($3::text IS NULL OR status = $3) AND ($4::text IS NULL OR task = $4) AND ($5::text IS NULL OR queue = $5) AS fits
    FROM (
        SELECT id, task, queue, status, priority, run_after, attempt_count, max_attempts, created_at, updated_at, finished_at
        FROM jobs WHERE id < coalesce($1, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid) ORDER BY id DESC LIMIT $2::integer
    ) stretch
) looked
WHERE fits OR is_last
ORDER BY id DESC;

-- name: list_by_spec
-- Jobs of one specification, newest first. Reads only.
-- $1 spec_hash bytea, $2 before uuid (null: from the newest), $3 most int
SELECT
    id, task, queue, status, priority, run_after, attempt_count, max_attempts, created_at, updated_at, finished_at,
    true AS fits
FROM job_specs JOIN jobs ON jobs.id = ANY (ARRAY[job_specs.job_id]) AND jobs.spec_hash = $1
WHERE job_specs.spec = id_at($1, 1) AND job_id < coalesce($2, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
ORDER BY job_id DESC LIMIT $3::integer;

-- name: list_dead_letters
-- Dead letters, newest first. Reads only.
-- $1 before uuid (null: from the newest), $2 most int, $3 queue text, $4 task text (each null: any)
SELECT job_id, queue, task, reason, at, redriven_to FROM dead_letters
WHERE job_id < coalesce($1, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
    AND ($3::text IS NULL OR queue = $3) AND ($4::text IS NULL OR task = $4)
ORDER BY job_id DESC LIMIT $2::integer;

-- name: queue_stats
-- How many jobs of each queue stand where, by counters. Reads only.
SELECT
    coalesce(c.queue, q.name) AS queue, coalesce(q.paused, false) AS paused,
    coalesce(c.queued, 0) AS queued, coalesce(c.running, 0) AS running, coalesce(c.done, 0) AS done,
    coalesce(c.error, 0) AS error, coalesce(c.canceled, 0) AS canceled
FROM (
    SELECT
        queue, sum(queued)::bigint AS queued, sum(running)::bigint AS running, sum(done)::bigint AS done,
        sum(error)::bigint AS error, sum(canceled)::bigint AS canceled
    FROM queue_counts GROUP BY queue
) c FULL JOIN queues q ON q.name = c.queue
ORDER BY 1;

-- name: note_raw_workers
-- Raw Redis workers were seen on the streams of these queues just now. If a crash undoes this, they are seen again: so no
-- wait for the disk.
-- $1 queues text[], $2 now timestamptz or null (tests only)
WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true) AS setting)
INSERT INTO queues (name, raw_seen_at)
SELECT a.queue, clock($2) FROM relaxed CROSS JOIN unnest($1::text[]) AS a (queue)
WHERE relaxed.setting = 'off' ORDER BY a.queue
ON CONFLICT (name) DO UPDATE SET raw_seen_at = excluded.raw_seen_at;

-- name: pause_queue
-- $1 queue text, $2 paused bool
INSERT INTO queues (name, paused, updated_at) VALUES ($1, $2, clock(NULL))
ON CONFLICT (name) DO UPDATE SET paused = excluded.paused, updated_at = excluded.updated_at;
