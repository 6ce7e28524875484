-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- fragment: after_silence
-- The status of a job whose holder fell silent. This interruption is not counted yet: a job may have had as many as the bound.
after_failure(
    cancel_requested, true, CASE WHEN f.interrupted THEN interruptions ELSE attempt_count END,
    CASE WHEN f.interrupted THEN of_task(task, $8, $12, $11)::integer ELSE max_attempts END
)

-- fragment: after_backoff
-- When it runs again.
clock($6) + backoff(
    CASE WHEN f.interrupted THEN interruptions + 1 ELSE attempt_count END, of_task(task, $8, $9, $2),
    of_task(task, $8, $10, $3), f.jitter
)

-- name: reap_expired
-- Ends the attempts of holders that fell silent: one page, skipping what others are just working on. That of a worker stays
-- charged; that of the slots of a node, which stopped, is counted as an interruption instead. Its job is queued again after a
-- backoff, or ends in error or canceled. The guard stands again in the delete, which is what counts.
-- $1 most int, $2 base_s float8, $3 cap_s float8, $4 grace_s float8 (how far past its expiry a lease must be),
-- $5 jitter float8 or null (tests only), $6 now timestamptz or null (tests only), $7 owners text[] (null: all that fell
-- silent; or only these, which are known to be dead, whenever their leases would end), $8 tasks text[] with delays of their own, $9 bases float8[],
-- $10 caps float8[], $11 max_interruptions float8, $12 those of the tasks float8[]
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
        l.message_id, l.event_n + 2 AS event_n, coalesce($5, random()) AS jitter,  -- a gap, then the end
        ($7::text[] IS NOT NULL OR starts_with(l.owner_id, 'slots:')) AS interrupted,
        (SELECT j.run_after FROM jobs j WHERE j.id = ANY (ARRAY[l.resource_id])) AS attempt_due_at
),
moved AS (
    UPDATE jobs SET
        status =
-- include: after_silence
        ,
        enqueue_id = enqueue_id + (
-- include: after_silence
            = 'queued'
        )::integer,
        run_after = CASE
-- include: after_silence
            WHEN 'queued' THEN
-- include: after_backoff
            ELSE run_after
        END,
        due_at = CASE
-- include: after_silence
            WHEN 'queued' THEN
-- include: after_backoff
        END,
        finished_at = CASE
-- include: after_silence
            WHEN 'queued' THEN NULL ELSE clock($6)
        END,
        attempt_count = attempt_count - f.interrupted::integer, interruptions = interruptions + f.interrupted::integer,
        at_instant = false,
        error = CASE
            WHEN cancel_requested THEN error
            WHEN NOT f.interrupted THEN
-- include: lease_expired_error
            WHEN interruptions < of_task(task, $8, $12, $11) THEN
-- include: interrupted_error
            ELSE
-- include: interruptions_exhausted_error
        END,
        updated_at = clock($6), version = version + 1
    FROM freed f
    WHERE jobs.id = ANY (ARRAY[f.resource_id]) AND jobs.status = 'running'
    RETURNING
        jobs.id, jobs.queue, jobs.task, jobs.status, jobs.version, jobs.updated_at, jobs.enqueue_id, jobs.traceparent,
        f.lease_expires_at,
        f.attempt_no AS ended_no, f.attempt_id, f.lease_token, f.owner_id, f.acquired_at, f.stream, f.message_id, f.event_n,
        f.attempt_due_at, CASE WHEN f.interrupted THEN 'interrupted' ELSE 'expired' END AS outcome,
        NULL::bytea AS outcome_hash, NULL::jsonb AS attempt_error, jobs.status AS led_to,
        CASE WHEN f.interrupted THEN 'interruptions_exhausted' ELSE 'attempts_exhausted' END AS reason,
        CASE jobs.status WHEN 'queued' THEN 'requeued' ELSE jobs.status END AS event, f.attempt_no, true AS has_gap,
        f.stream AS settled_stream, f.message_id AS settled_message
),
-- include: end_of_attempt
SELECT
    id AS job_id, attempt_id, owner_id, status, enqueue_id, ended_no, traceparent,
    extract(epoch FROM updated_at - lease_expires_at)::double precision AS late_s,
-- include: ended_columns
FROM moved;
