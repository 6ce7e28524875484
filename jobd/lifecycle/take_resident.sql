-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: take_resident_jobs
-- As take_jobs, but jobs of models that are not loaded are put behind by some seconds, so that those of the loaded model go
-- first if they are little later. Only the first jobs of each line are looked at, so that a take costs the same however many wait.
-- Parameters as in take_jobs, then
-- $11 tasks of models that are not loaded text[], $12 seconds by which their jobs are put behind float8,
-- $13 how many jobs of each queue to look at int
WITH
-- include: open_queues
,
lines AS MATERIALIZED (
    SELECT o.queue, o.before, o.most, o.want_no, coalesce((
        SELECT j.order_at FROM jobs j WHERE j.queue = o.queue AND j.order_at IS NOT NULL
        ORDER BY j.order_at, j.id LIMIT 1 OFFSET $13::integer
    ), 'infinity') AS end_at
    FROM open_queues o
),
waiting AS MATERIALIZED (
    SELECT first.id, o.before + first.place AS n, first.order_at
    FROM lines o
    CROSS JOIN LATERAL (
        SELECT line.id, line.order_at, row_number() OVER () AS place
        FROM (
            SELECT jobs.id, jobs.order_at FROM jobs
            WHERE jobs.queue = o.queue AND jobs.order_at <= o.end_at AND NOT jobs.cancel_requested
                AND jobs.task <> ALL (ARRAY(SELECT name FROM paused_tasks))
                AND (jobs.expires_at IS NULL OR (jobs.expires_at <= (SELECT agreed_clock($10))) IS NOT TRUE OR jobs.started_at IS NOT NULL)
            ORDER BY
                jobs.order_at + make_interval(secs => CASE WHEN jobs.task = ANY ($11::text[]) THEN $12::double precision ELSE 0 END),
                jobs.id
            LIMIT o.most FOR UPDATE SKIP LOCKED
        ) line
    ) first
),
picked AS (SELECT id, n, order_at FROM waiting),
taken AS (
-- include: start_picked
),
-- include: leased_jobs
,
-- include: counted_takes
SELECT
-- include: claim_columns
FROM taken;
