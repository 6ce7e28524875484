-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: cancel_jobs
-- A queued job is canceled; a running one is marked, and its holder is told at the next heartbeat. A final job, and one
-- that is unknown, has no row back.
-- $1 job_ids uuid[] (in order), $2 now timestamptz or null (tests only)
WITH moved AS (
    UPDATE jobs SET
        status = CASE status WHEN 'queued' THEN 'canceled' ELSE status END,
        order_at = NULL, due_at = NULL, cancel_requested = true,
        finished_at = CASE status WHEN 'queued' THEN clock($2) END,
        updated_at = clock($2), version = version + 1
    FROM unnest($1::uuid[]) AS a (job_id)
    WHERE jobs.id = ANY (ARRAY[a.job_id]) AND jobs.status IN ('queued', 'running')
    RETURNING jobs.id, jobs.queue, jobs.status, jobs.version, jobs.updated_at
),
told AS (
    INSERT INTO outbox (at, event, job_ids, versions)
    SELECT
        min(updated_at), CASE status WHEN 'running' THEN 'cancel_requested' ELSE status END,
        array_agg(id), array_agg(version)
    FROM moved GROUP BY status
),
counted AS (
    INSERT INTO queue_counts (queue, shard, queued, canceled)
    SELECT queue, shard(), -count(*), count(*) FROM moved WHERE status = 'canceled' GROUP BY queue ORDER BY queue
    ON CONFLICT (queue, shard) DO UPDATE SET
        queued = queue_counts.queued + excluded.queued, canceled = queue_counts.canceled + excluded.canceled
)
SELECT id AS job_id, status FROM moved;
