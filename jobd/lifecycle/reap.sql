-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: reap_expired
-- Ends the attempts of holders that fell silent: one page, skipping what others are just working on. Each stays charged;
-- its job is queued again after a backoff, or ends in error or canceled. The guard stands again in the delete, which is
-- what counts.
-- $1 most int, $2 base_s float8, $3 cap_s float8, $4 grace_s float8 (how far past its expiry a lease must be),
-- $5 jitter float8 or null (tests only), $6 now timestamptz or null (tests only), $7 owners text[] (null: all that fell
-- silent; or only these, which are known to be dead, whenever their leases would end), $8 tasks text[] with delays of their own, $9 bases float8[],
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
-- include: lease_expired_error
        END,
        updated_at = clock($6), version = version + 1
    FROM freed f
    WHERE jobs.id = ANY (ARRAY[f.resource_id]) AND jobs.status = 'running'
    RETURNING
        jobs.id, jobs.queue, jobs.task, jobs.status, jobs.version, jobs.updated_at, jobs.enqueue_id, f.lease_expires_at,
        f.attempt_no AS ended_no, f.attempt_id, f.lease_token, f.owner_id, f.acquired_at, f.stream, f.message_id, f.event_n,
        'expired' AS outcome, NULL::bytea AS outcome_hash, NULL::jsonb AS attempt_error, jobs.status AS led_to,
        'attempts_exhausted' AS reason,
        CASE jobs.status WHEN 'queued' THEN 'requeued' ELSE jobs.status END AS event, f.attempt_no, true AS has_gap,
        f.stream AS settled_stream, f.message_id AS settled_message
),
-- include: end_of_attempt
SELECT
    id AS job_id, attempt_id, owner_id, status, enqueue_id,
    extract(epoch FROM updated_at - lease_expires_at)::double precision AS late_s
FROM moved;
