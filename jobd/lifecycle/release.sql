-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: release_if_leased
-- Hands each job whose token and attempt are current back to the queue without charging the attempt: in its old place, or with a
-- delay (a snooze) so that it comes back when that has passed. One whose start was counted (a rate, turns) has to be admitted
-- again. A job that was to be canceled ends instead.
-- $1 job_ids uuid[] (in order), $2 attempt_ids uuid[], $3 lease_tokens uuid[], $4 now timestamptz or null (tests only),
-- $5 delays in s float8[] (0: none)
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $5::double precision[])
        AS a (job_id, attempt_id, lease_token, delay_s)
),
freed AS (
    DELETE FROM leases l USING asked a
    WHERE l.resource_id = ANY (ARRAY[a.job_id]) AND l.lease_token = a.lease_token AND l.attempt_id = a.attempt_id
    RETURNING
        l.resource_id, l.attempt_id, l.attempt_no, l.lease_token, l.owner_id, l.acquired_at, l.stream, l.message_id,
        l.event_n + 1 AS event_n, a.delay_s
),
moved AS (
    UPDATE jobs SET
        status = CASE WHEN cancel_requested THEN 'canceled' ELSE 'queued' END,
        enqueue_id = enqueue_id + (NOT cancel_requested)::integer,
        attempt_count = attempt_count - (NOT cancel_requested)::integer,
        order_at = CASE WHEN NOT cancel_requested AND f.delay_s = 0 AND NOT counts_start THEN place(run_after, priority) END,
        due_at = CASE
            WHEN cancel_requested THEN NULL WHEN f.delay_s > 0 THEN clock($4) + make_interval(secs => f.delay_s)
            WHEN counts_start THEN 'infinity'
        END,
        held = CASE WHEN NOT cancel_requested AND f.delay_s = 0 AND counts_start THEN 'limited' END,
        run_after = CASE
            WHEN NOT cancel_requested AND f.delay_s > 0 THEN clock($4) + make_interval(secs => f.delay_s) ELSE run_after
        END,
        at_instant = at_instant AND f.delay_s = 0, snoozes = snoozes + (NOT cancel_requested AND f.delay_s > 0)::integer,
        finished_at = CASE WHEN cancel_requested THEN clock($4) END,
        updated_at = clock($4), version = version + 1
    FROM freed f
    WHERE jobs.id = ANY (ARRAY[f.resource_id]) AND jobs.status = 'running'
    RETURNING
        jobs.id, jobs.queue, jobs.task, jobs.status, jobs.version, jobs.updated_at, jobs.enqueue_id, jobs.run_after,
        f.attempt_no AS ended_no, f.attempt_id, f.lease_token, f.owner_id, f.acquired_at, f.stream, f.message_id, f.event_n,
        jobs.run_after AS attempt_due_at, CASE jobs.status WHEN 'canceled' THEN 'canceled' ELSE 'released' END AS outcome, NULL::bytea AS outcome_hash,
        NULL::jsonb AS attempt_error, jobs.status AS led_to, NULL::text AS reason,
        CASE jobs.status WHEN 'queued' THEN 'requeued' ELSE jobs.status END AS event, f.attempt_no, false AS has_gap,
        f.stream AS settled_stream, f.message_id AS settled_message
),
-- include: end_of_attempt
SELECT id AS job_id, attempt_id, lease_token, status, enqueue_id, run_after,
-- include: ended_columns
FROM moved;
