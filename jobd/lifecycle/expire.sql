-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: expire_jobs
-- Cancels jobs that have not started by their expires_at: one page, the longest overdue first, without those that others are just
-- working on. While the clock shows what it cannot show, none is.
-- $1 most int, $2 now timestamptz or null (tests only)
WITH overdue AS MATERIALIZED (
    SELECT id FROM jobs
    WHERE expires_at <= (SELECT agreed_clock($2)) AND expires_at IS NOT NULL AND started_at IS NULL
        AND (order_at IS NOT NULL OR due_at IS NOT NULL)
    ORDER BY expires_at, id LIMIT $1::integer FOR UPDATE SKIP LOCKED
),
moved AS (
    UPDATE jobs SET
        status = 'canceled', order_at = NULL, due_at = NULL, held = NULL, error = jsonb_build_object(
            'code', 'expired', 'message', 'the job had not started by its expires_at', 'retryable', false
        ),
        finished_at = clock($2), updated_at = clock($2), version = version + 1
    FROM overdue
    WHERE jobs.id = ANY (ARRAY[overdue.id]) AND jobs.status = 'queued' AND jobs.started_at IS NULL
    RETURNING jobs.id, jobs.queue, jobs.task, jobs.version, jobs.updated_at
),
outboxed AS (
    INSERT INTO outbox (at, event, job_ids, versions, attempts, event_ns)
    SELECT min(updated_at), 'canceled', array_agg(id), array_agg(version), array_agg(0), array_agg(2)  -- after `queued`
    FROM moved HAVING count(*) > 0
),
counted AS (
    INSERT INTO queue_counts (queue, shard, queued, canceled)
    SELECT queue, shard(), -count(*), count(*) FROM moved GROUP BY queue ORDER BY queue
    ON CONFLICT (queue, shard) DO UPDATE SET
        queued = queue_counts.queued + excluded.queued, canceled = queue_counts.canceled + excluded.canceled
)
SELECT id AS job_id, queue, task FROM moved;
