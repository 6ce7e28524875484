-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: fail_if_leased
-- Ends each attempt whose token and attempt are current as failed. Its job is queued again after a backoff, or ends: in
-- error (a dead letter) when it may not or cannot be tried again, canceled when that was asked for.
-- $1 job_ids uuid[] (in order), $2 attempt_ids uuid[], $3 lease_tokens uuid[], $4 errors text[], $5 retryable bool[],
-- $6 jitters float8[], $7 outcome_hashes bytea[], $8 base_s float8, $9 cap_s float8, $10 now timestamptz or null (tests only),
-- $11 tasks text[] with delays of their own, $12 bases float8[], $13 caps float8[]
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest(
        $1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::boolean[], $6::double precision[], $7::bytea[]
    ) AS a (job_id, attempt_id, lease_token, error, retryable, jitter, outcome_hash)
),
freed AS (
    DELETE FROM leases l USING asked a
    WHERE l.resource_id = ANY (ARRAY[a.job_id]) AND l.lease_token = a.lease_token AND l.attempt_id = a.attempt_id
    RETURNING
        l.resource_id, l.attempt_id, l.attempt_no, l.lease_token, l.owner_id, l.acquired_at, l.stream, l.message_id,
        l.event_n + 1 AS event_n, a.error, a.retryable, a.jitter, a.outcome_hash
),
moved AS (
    UPDATE jobs SET
        status = after_failure(cancel_requested, f.retryable, attempt_count, max_attempts),
        enqueue_id = enqueue_id
            + (after_failure(cancel_requested, f.retryable, attempt_count, max_attempts) = 'queued')::integer,
        run_after = CASE after_failure(cancel_requested, f.retryable, attempt_count, max_attempts)
            WHEN 'queued' THEN clock($10) + backoff(
                attempt_count, of_task(task, $11, $12, $8), of_task(task, $11, $13, $9), f.jitter
            ) ELSE run_after
        END,
        due_at = CASE after_failure(cancel_requested, f.retryable, attempt_count, max_attempts)
            WHEN 'queued' THEN clock($10) + backoff(
                attempt_count, of_task(task, $11, $12, $8), of_task(task, $11, $13, $9), f.jitter
            )
        END,
        finished_at = CASE after_failure(cancel_requested, f.retryable, attempt_count, max_attempts)
            WHEN 'queued' THEN NULL ELSE clock($10)
        END,
        at_instant = false, error = f.error::jsonb, updated_at = clock($10), version = version + 1
    FROM freed f
    WHERE jobs.id = ANY (ARRAY[f.resource_id]) AND jobs.status = 'running'
    RETURNING
        jobs.id, jobs.queue, jobs.task, jobs.status, jobs.version, jobs.updated_at, jobs.enqueue_id, jobs.run_after,
        jobs.cancel_requested, f.retryable, f.stream, f.message_id, f.attempt_no, f.attempt_id, f.lease_token, f.owner_id,
        f.acquired_at, f.event_n, f.outcome_hash, f.error
),
closed AS (
    INSERT INTO attempts (
        job_id, number, attempt_id, lease_token, owner_id, outcome, outcome_hash, error, started_at, ended_at, stream,
        message_id, led_to, event_n
    )
    SELECT
        id, attempt_no, attempt_id, lease_token, owner_id, CASE status WHEN 'canceled' THEN 'canceled' ELSE 'failed' END,
        outcome_hash, error::jsonb, acquired_at, updated_at, stream, message_id, status, event_n
    FROM moved
),
buried AS (
    INSERT INTO dead_letters (job_id, queue, task, reason, at)
    SELECT id, queue, task, CASE WHEN retryable THEN 'attempts_exhausted' ELSE 'not_retryable' END, updated_at
    FROM moved WHERE status = 'error'
),
told AS (
    INSERT INTO outbox (at, event, job_ids, versions, attempts, event_ns, streams, message_ids)
    SELECT
        min(updated_at), CASE status WHEN 'queued' THEN 'requeued' ELSE status END,
        array_agg(id), array_agg(version), array_agg(attempt_no), array_agg(event_n), array_agg(stream),
        array_agg(message_id)
    FROM moved GROUP BY status
),
counted AS (
    INSERT INTO queue_counts (queue, shard, running, queued, error, canceled)
    SELECT
        queue, shard(), -count(*), count(*) FILTER (WHERE status = 'queued'),
        count(*) FILTER (WHERE status = 'error'), count(*) FILTER (WHERE status = 'canceled')
    FROM moved GROUP BY queue ORDER BY queue
    ON CONFLICT (queue, shard) DO UPDATE SET
        running = queue_counts.running + excluded.running, queued = queue_counts.queued + excluded.queued,
        error = queue_counts.error + excluded.error, canceled = queue_counts.canceled + excluded.canceled
)
SELECT id AS job_id, attempt_id, lease_token, status, enqueue_id, run_after, retryable FROM moved;
