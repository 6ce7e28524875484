-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see jobd/lifecycle/claim.sql. So does `IS TRUE`: without
-- it, an index on the status offers itself, and all that stand there would be compared with the whole batch.

-- name: find_open_workorders
-- Work orders to be carried out that nobody holds, the oldest first. Reads only.
-- $1 most int
SELECT work_order_id FROM workorders w
WHERE status = 'CREATED'
    AND (SELECT lease_expires_at > clock(NULL) FROM leases l WHERE l.resource_id = w.work_order_id) IS NOT TRUE
ORDER BY created_at, work_order_id LIMIT $1::integer;

-- name: read_for_run
-- What is to be submitted for work orders that are not executed yet. Reads only.
-- $1 work_order_ids uuid[]
SELECT
    w.work_order_id, w.job_id, w.diazotroph_type AS task, s.payload::text AS payload, w.budget_ms,
    coalesce(
        (SELECT true FROM jobs WHERE jobs.id = w.job_id), (SELECT true FROM gone_jobs g WHERE g.job_id = w.job_id), false
    ) AS is_submitted
FROM unnest($1::uuid[]) AS a (work_order_id)
JOIN workorders w ON w.work_order_id = ANY (ARRAY[a.work_order_id])
JOIN context_snapshots s ON s.snapshot_id = ANY (ARRAY[w.context_snapshot_id])
WHERE (w.status = 'CREATED') IS TRUE;

-- name: watch_jobs
-- Of submitted work orders, those whose job has ended, is gone, or has used up its budget. Reads only.
-- $1 work_order_ids uuid[]
SELECT
    w.work_order_id, w.job_id, w.budget_ms, jobs.status, jobs.result_ref, jobs.error::text AS error,
    coalesce(jobs.cancel_requested, false) AS cancel_requested,
    coalesce(
        coalesce(jobs.finished_at, (SELECT agreed_clock(NULL))) >= jobs.created_at + w.budget_ms * interval '1 ms', false
    ) AS is_overdue
FROM unnest($1::uuid[]) AS a (work_order_id)
JOIN workorders w ON w.work_order_id = ANY (ARRAY[a.work_order_id])
LEFT JOIN jobs ON jobs.id = ANY (ARRAY[w.job_id])
WHERE jobs.id IS NULL OR jobs.status IN ('done', 'error', 'canceled')
    OR (SELECT agreed_clock(NULL)) >= jobs.created_at + w.budget_ms * interval '1 ms';

-- name: execute_if_held
-- Keeps what came of work orders, and sets them EXECUTED, for those whose lease the caller holds, which it thereby gives up.
-- One that was executed before stays as it is.
-- $1 work_order_ids uuid[], $2 lease_tokens uuid[], $3 output_ids uuid[], $4 outcomes text[],
-- $5 outputs text[] (null: the result of the job's row), $6 output_refs text[], $7 errors text[]
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[])
        AS a (work_order_id, lease_token, output_id, outcome, output, output_ref, error)
),
-- include: held_workorders
executed AS (
    UPDATE workorders w SET status = 'EXECUTED', executed_at = clock(NULL) FROM held h
    WHERE w.work_order_id = ANY (ARRAY[h.work_order_id]) AND (w.status = 'CREATED') IS TRUE
    RETURNING h.*, w.ticket_id, w.job_id, w.executed_at
),
bundled AS (
    INSERT INTO output_bundles (
        output_id, work_order_id, ticket_id, job_id, outcome, output, output_ref, error, created_at
    )
    SELECT
        output_id, work_order_id, ticket_id, job_id, outcome,
        CASE WHEN outcome = 'DONE' THEN coalesce(output::jsonb, (SELECT jobs.result FROM jobs WHERE jobs.id = job_id)) END,
        output_ref, error::jsonb, executed_at
    FROM executed
    ON CONFLICT (work_order_id) DO NOTHING
),
stepped AS (
    UPDATE tickets t SET step = 'GATE', version = t.version + 1, updated_at = clock(NULL) FROM executed e
    WHERE t.ticket_id = ANY (ARRAY[e.ticket_id]) AND (t.status = 'IN_PROGRESS') IS TRUE
)
SELECT work_order_id FROM executed;

-- fragment: held_workorders
-- The rows of `asked` (work_order_id, lease_token, ...) whose lease the caller still holds; the lease is given up.
held AS (
    DELETE FROM leases l USING asked a
    WHERE l.resource_id = ANY (ARRAY[a.work_order_id]) AND l.resource_type = 'WORKORDER'
        AND l.lease_token = a.lease_token AND (l.lease_expires_at > (SELECT agreed_clock(NULL))) IS NOT FALSE
    RETURNING a.*
),
