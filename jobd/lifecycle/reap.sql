-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: reap_expired
-- Ends the attempts of holders that fell silent: one page, skipping what others are just working on. Each stays charged;
-- its job is queued again after a backoff, or ends in error or canceled. The guard stands again in the delete, which is
-- what counts.
-- $1 most int, $2 base_s float8, $3 cap_s float8, $4 grace_s float8 (how far past its expiry a lease must be),
-- $5 jitter float8 or null (tests only), $6 now timestamptz or null (tests only), $7 owners text[] (null: whoever fell
-- silent; else only theirs, which are known to be dead, whenever their leases would end), $8 tasks text[] with delays of their own, $9 bases float8[],
-- $10 caps float8[]
WITH overdue AS MATERIALIZED (
    SELECT resource_id, attempt_id FROM leases
    WHERE resource_type = 'JOB' AND CASE
        WHEN $7::text[] IS NULL THEN lease_expires_at < (SELECT agreed_clock($6)) - make_interval(secs => $4)
        ELSE owner_id = ANY ($7)
    END
    ORDER BY resource_id LIMIT $1::integer FOR UPDATE SKIP LOCKED
),
freed AS (
    DELETE FROM leases l USING overdue o
    WHERE l.resource_id = ANY (ARRAY[o.resource_id]) AND l.attempt_id = o.attempt_id
        AND CASE
            WHEN $7::text[] IS NULL THEN l.lease_expires_at < (SELECT agreed_clock($6)) ELSE l.owner_id = ANY ($7)
        END
    RETURNING
        l.resource_id, l.attempt_id, l.attempt_no, l.lease_token, l.owner_id, l.acquired_at, l.lease_expires_at, l.stream,
        l.message_id, l.event_n + 2 AS event_n, coalesce($5, random()) AS jitter  -- a gap, then the end
),
moved AS (
    UPDATE jobs SET
        status = after_failure(cancel_requested, true, attempt_count, max_attempts),
        enqueue_id = enqueue_id + (after_failure(cancel_requested, true, attempt_count, max_attempts) = 'queued')::integer,
        run_after = CASE after_failure(cancel_requested, true, attempt_count, max_attempts)
            WHEN 'queued' THEN clock($6) + backoff(
                attempt_count, of_task(task, $8, $9, $2), of_task(task, $8, $10, $3), f.jitter
            ) ELSE run_after
        END,
        due_at = CASE after_failure(cancel_requested, true, attempt_count, max_attempts)
            WHEN 'queued' THEN clock($6) + backoff(
                attempt_count, of_task(task, $8, $9, $2), of_task(task, $8, $10, $3), f.jitter
            )
        END,
        finished_at = CASE after_failure(cancel_requested, true, attempt_count, max_attempts)
            WHEN 'queued' THEN NULL ELSE clock($6)
        END,
        at_instant = false, error = CASE WHEN cancel_requested THEN error ELSE
            jsonb_build_object('code', 'lease_expired', 'message', 'the worker fell silent', 'retryable', true)
        END,
        updated_at = clock($6), version = version + 1
    FROM freed f
    WHERE jobs.id = ANY (ARRAY[f.resource_id]) AND jobs.status = 'running'
    RETURNING
        jobs.id, jobs.queue, jobs.task, jobs.status, jobs.version, jobs.updated_at, jobs.enqueue_id, f.stream,
        f.message_id, f.attempt_no, f.attempt_id, f.lease_token, f.owner_id, f.acquired_at, f.lease_expires_at,
        f.event_n
),
closed AS (
    INSERT INTO attempts (
        job_id, number, attempt_id, lease_token, owner_id, outcome, started_at, ended_at, stream, message_id, led_to,
        event_n
    )
    SELECT
        id, attempt_no, attempt_id, lease_token, owner_id, 'expired', acquired_at, updated_at, stream, message_id,
        status, event_n
    FROM moved
),
buried AS (
    INSERT INTO dead_letters (job_id, queue, task, reason, at)
    SELECT id, queue, task, 'attempts_exhausted', updated_at FROM moved WHERE status = 'error'
),
told AS (
    INSERT INTO outbox (at, event, job_ids, versions, attempts, event_ns, has_gap, streams, message_ids)
    SELECT
        min(updated_at), CASE status WHEN 'queued' THEN 'requeued' ELSE status END,
        array_agg(id), array_agg(version), array_agg(attempt_no), array_agg(event_n), true, array_agg(stream),
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
SELECT
    id AS job_id, attempt_id, owner_id, status, enqueue_id,
    extract(epoch FROM updated_at - lease_expires_at)::double precision AS late_s
FROM moved;
