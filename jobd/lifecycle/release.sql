-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: release_if_leased
-- Hands each job whose token and attempt are current back to the queue, in its old place and without charging the
-- attempt; a job that was to be canceled ends instead.
-- $1 job_ids uuid[] (in order), $2 attempt_ids uuid[], $3 lease_tokens uuid[], $4 now timestamptz or null (tests only)
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[]) AS a (job_id, attempt_id, lease_token)
),
freed AS (
    DELETE FROM leases l USING asked a
    WHERE l.resource_id = ANY (ARRAY[a.job_id]) AND l.lease_token = a.lease_token AND l.attempt_id = a.attempt_id
    RETURNING
        l.resource_id, l.attempt_id, l.attempt_no, l.lease_token, l.owner_id, l.acquired_at, l.stream, l.message_id,
        l.event_n + 1 AS event_n
),
moved AS (
    UPDATE jobs SET
        status = CASE WHEN cancel_requested THEN 'canceled' ELSE 'queued' END,
        enqueue_id = enqueue_id + (NOT cancel_requested)::integer,
        attempt_count = attempt_count - (NOT cancel_requested)::integer,
        order_at = CASE WHEN NOT cancel_requested THEN place(run_after, priority) END,
        finished_at = CASE WHEN cancel_requested THEN clock($4) END,
        updated_at = clock($4), version = version + 1
    FROM freed f
    WHERE jobs.id = ANY (ARRAY[f.resource_id]) AND jobs.status = 'running'
    RETURNING
        jobs.id, jobs.queue, jobs.status, jobs.version, jobs.updated_at, jobs.enqueue_id, jobs.run_after, f.stream,
        f.message_id, f.attempt_no, f.attempt_id, f.lease_token, f.owner_id, f.acquired_at,
        f.event_n
),
closed AS (
    INSERT INTO attempts (
        job_id, number, attempt_id, lease_token, owner_id, outcome, started_at, ended_at, stream, message_id, led_to,
        event_n
    )
    SELECT
        id, attempt_no, attempt_id, lease_token, owner_id, CASE status WHEN 'canceled' THEN 'canceled' ELSE 'released' END,
        acquired_at, updated_at, stream, message_id, status, event_n
    FROM moved
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
    INSERT INTO queue_counts (queue, shard, running, queued, canceled)
    SELECT
        queue, shard(), -count(*), count(*) FILTER (WHERE status = 'queued'), count(*) FILTER (WHERE status = 'canceled')
    FROM moved GROUP BY queue ORDER BY queue
    ON CONFLICT (queue, shard) DO UPDATE SET
        running = queue_counts.running + excluded.running, queued = queue_counts.queued + excluded.queued,
        canceled = queue_counts.canceled + excluded.canceled
)
SELECT id AS job_id, attempt_id, lease_token, status, enqueue_id, run_after FROM moved;
