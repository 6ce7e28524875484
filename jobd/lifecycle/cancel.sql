-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: cancel_jobs
-- A queued job is canceled; a running one is marked, and its holder learns it with the next heartbeat. A final job, one that
-- was marked before, and one that is unknown, has no row back. Leases are locked before jobs, as everywhere.
-- A row without event_n says that another transaction moved the job while this one waited for it, so that the number of
-- the event is not to be seen from here: undo it all and cancel again.
-- $1 job_ids uuid[] (in order), $2 now timestamptz or null (tests only)
WITH asked AS MATERIALIZED (SELECT * FROM unnest($1::uuid[]) AS a (job_id)),
held AS (
    UPDATE leases l SET event_n = l.event_n + 1 FROM asked a
    WHERE l.resource_id = ANY (ARRAY[a.job_id])
        AND EXISTS (SELECT FROM jobs WHERE jobs.id = ANY (ARRAY[a.job_id]) AND NOT jobs.cancel_requested)
    RETURNING l.resource_id, l.attempt_no, l.event_n
),
kept AS (
    INSERT INTO event_log (job_id, attempt_no, first_n, last_n, events, at)
    SELECT
        resource_id, attempt_no, event_n, event_n,
        jsonb_build_array(jsonb_build_object(
            'type', 'cancel_requested', 'ts', (extract(epoch FROM clock($2)) * 1000)::bigint, 'step', 'jobd.cancel',
            'data', jsonb_build_object('attempt', attempt_no)
        )), clock($2)
    FROM held
),
noted AS MATERIALIZED (
    SELECT a.job_id, (SELECT event_n FROM held WHERE held.resource_id = a.job_id) AS event_n FROM asked a
),
moved AS (
    UPDATE jobs SET
        status = CASE status WHEN 'queued' THEN 'canceled' ELSE status END,
        order_at = NULL, due_at = NULL, held = NULL, cancel_requested = true,
        finished_at = CASE status WHEN 'queued' THEN clock($2) END,
        updated_at = clock($2), version = version + 1
    FROM noted a
    WHERE jobs.id = ANY (ARRAY[a.job_id]) AND jobs.status IN ('queued', 'running') AND NOT jobs.cancel_requested
    RETURNING
        jobs.id, jobs.queue, jobs.task, jobs.status, jobs.version, jobs.updated_at, jobs.attempt_no,
        CASE
            WHEN jobs.status = 'running' THEN a.event_n
            WHEN jobs.attempt_no = 0 THEN 2  -- after `queued`
            ELSE 1 + (SELECT event_n FROM attempts WHERE attempts.job_id = jobs.id AND number = jobs.attempt_no)
        END AS event_n
),
outboxed AS (
    INSERT INTO outbox (at, event, job_ids, versions, attempts, event_ns)
    SELECT
        min(updated_at), CASE status WHEN 'running' THEN 'cancel_requested' ELSE status END,
        array_agg(id), array_agg(version), array_agg(attempt_no), array_agg(event_n)
    FROM moved GROUP BY status
),
counted AS (
    INSERT INTO queue_counts (queue, shard, queued, canceled)
    SELECT queue, shard(), -count(*), count(*) FROM moved WHERE status = 'canceled' GROUP BY queue ORDER BY queue
    ON CONFLICT (queue, shard) DO UPDATE SET
        queued = queue_counts.queued + excluded.queued, canceled = queue_counts.canceled + excluded.canceled
),
ended AS (
    SELECT
        queue, task, status, updated_at AS at, NULL AS outcome, NULL::timestamptz AS due_at, NULL::timestamptz AS acquired_at
    FROM moved WHERE status = 'canceled'
),
-- include: rolled_up
SELECT id AS job_id, status, event_n, queue, task FROM moved
UNION ALL
SELECT resource_id, NULL, NULL, NULL, NULL FROM held WHERE NOT EXISTS (SELECT FROM moved WHERE moved.id = held.resource_id);
