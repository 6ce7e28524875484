-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: read_jobs
-- Whole jobs by id; one without a row is unknown, or gone if is_gone knows it. Reads only.
-- $1 job_ids uuid[]
SELECT
    jobs.id, task, queue, payload::text AS payload, status, priority, run_after, enqueue_id, version, jobs.attempt_no,
    attempt_count, max_attempts, timeout_s, jobs.ttl_s, spec_hash, redriven_from, cancel_requested, result::text AS result,
    result_ref, error::text AS error, created_at, updated_at, started_at, finished_at,
    leases.owner_id AS lease_owner, leases.lease_expires_at, labels::text AS labels, owner, traceparent, tracestate, limit_key, expires_at,
    snoozes, interruptions, group_id, waits_for
FROM unnest($1::uuid[]) AS a (job_id)
JOIN jobs ON jobs.id = ANY (ARRAY[a.job_id])
LEFT JOIN leases ON leases.resource_id = ANY (ARRAY[jobs.id]);

-- name: read_whole_job
-- A job with its attempts, each as a JSON object, oldest first and the open one last. Without a row it is unknown, or gone if
-- is_gone knows it. Reads only.
-- $1 job_id uuid
SELECT
    jobs.id, task, queue, payload::text AS payload, status, priority, run_after, enqueue_id, version, jobs.attempt_no,
    attempt_count, max_attempts, timeout_s, jobs.ttl_s, spec_hash, redriven_from, cancel_requested, result::text AS result,
    result_ref, error::text AS error, created_at, updated_at, started_at, finished_at,
    leases.owner_id AS lease_owner, leases.lease_expires_at, labels::text AS labels, owner, traceparent, tracestate, limit_key, expires_at,
    snoozes, interruptions, group_id, waits_for,
    ARRAY(
        SELECT json_build_object(
            'number', number, 'attempt_id', attempt_id, 'owner_id', owner_id, 'outcome', outcome,
            'error', attempts.error::text, 'started_at', attempts.started_at, 'ended_at', ended_at
        )::text
        FROM attempts WHERE job_id = jobs.id ORDER BY number
    ) || CASE WHEN leases.attempt_no IS NULL THEN '{}' ELSE ARRAY[json_build_object(
        'number', leases.attempt_no, 'attempt_id', leases.attempt_id, 'owner_id', leases.owner_id, 'outcome', NULL,
        'error', NULL, 'started_at', leases.acquired_at, 'ended_at', NULL
    )::text] END AS attempts
FROM jobs LEFT JOIN leases ON leases.resource_id = ANY (ARRAY[jobs.id])
WHERE jobs.id = $1;

-- name: is_gone
-- Which of the ids were deleted not long ago. Reads only.
-- $1 job_ids uuid[], $2 owner text (null: any)
SELECT a.job_id FROM unnest($1::uuid[]) AS a (job_id)
WHERE (  -- a join could walk through all of the index
    SELECT true FROM gone_jobs WHERE gone_jobs.job_id = a.job_id AND ($2::text IS NULL OR gone_jobs.owner = $2)
);

-- name: owned_among
-- Which of the jobs this owner has sent. Reads only.
-- $1 job_ids uuid[], $2 owner text
SELECT a.job_id FROM unnest($1::uuid[]) AS a (job_id)
WHERE (SELECT true FROM job_labels l WHERE l.name = '' AND l.value = $2::text AND l.job_id = a.job_id);

-- name: list_dead_letters
-- Those dead letters of a bounded stretch that fit, newest first, and how many there were in the stretch (`looked`). The last of it
-- is always there, fitting or not: the next page goes on from it. Reads only.
-- $1 before uuid (null: from the newest), $2 stretch int, $3 queue text, $4 task text, $5 owner text (each null: any)
SELECT job_id, queue, task, reason, at, redriven_to, fits, looked
FROM (
    SELECT
        *, row_number() OVER (ORDER BY job_id DESC) = count(*) OVER () AS is_last, count(*) OVER () AS looked,
        ($3::text IS NULL OR queue = $3) AND ($4::text IS NULL OR task = $4) AND (
            $5::text IS NULL
            OR (SELECT true FROM job_labels l WHERE l.name = '' AND l.value = $5 AND l.job_id = stretch.job_id) IS TRUE
        ) AS fits
    FROM (
        SELECT * FROM dead_letters WHERE job_id < coalesce($1, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
        ORDER BY job_id DESC LIMIT $2::integer
    ) stretch
) looked
WHERE fits OR is_last
ORDER BY job_id DESC;

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
