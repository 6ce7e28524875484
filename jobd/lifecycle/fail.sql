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
        l.event_n + 1 AS event_n, a.error, a.retryable, a.jitter, a.outcome_hash,
        (SELECT j.run_after FROM jobs j WHERE j.id = ANY (ARRAY[l.resource_id])) AS attempt_due_at
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
        f.attempt_no AS ended_no, f.attempt_id, f.lease_token, f.owner_id, f.acquired_at, f.stream, f.message_id, f.event_n,
        f.attempt_due_at, CASE jobs.status WHEN 'canceled' THEN 'canceled' ELSE 'failed' END AS outcome, f.outcome_hash,
        f.error::jsonb AS attempt_error, jobs.status AS led_to, f.retryable,
        CASE WHEN f.retryable THEN 'attempts_exhausted' ELSE 'not_retryable' END AS reason,
        CASE jobs.status WHEN 'queued' THEN 'requeued' ELSE jobs.status END AS event, f.attempt_no, false AS has_gap,
        f.stream AS settled_stream, f.message_id AS settled_message
),
-- include: end_of_attempt
SELECT id AS job_id, attempt_id, lease_token, status, enqueue_id, run_after, retryable,
-- include: ended_columns
FROM moved;
