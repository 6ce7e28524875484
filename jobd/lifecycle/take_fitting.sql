-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: take_fitting_jobs
-- As take_jobs, for a node on which some tasks need memory: of their jobs it takes the first in line and no other, if its task
-- is one that may start now. Where it may not, jobs of these tasks wait, so that a large one is not overtaken for ever; jobs of
-- other tasks go past it. Only the first jobs of each line are looked at, so that a take costs the same however many wait. The
-- first row says which task the memory did not suffice for (null: none), each other one is a job that is taken.
-- Parameters as in take_jobs, then
-- $11 tasks that need memory text[], $12 those of which a job may start now text[], $13 those that never start here text[],
-- $14 how many jobs of each queue to look at int
WITH
-- include: open_queues
,
lines AS MATERIALIZED (
    SELECT o.queue, o.before, o.most, o.want_no, coalesce((
        SELECT j.order_at FROM jobs j WHERE j.queue = o.queue AND j.order_at IS NOT NULL
        ORDER BY j.order_at, j.id LIMIT 1 OFFSET $14::integer
    ), 'infinity') AS end_at
    FROM open_queues o
),
first_need AS MATERIALIZED (
    SELECT need.id, need.task, need.order_at, need.task = ANY ($12::text[]) AS fits, o.before, o.most, o.want_no
    FROM lines o
    CROSS JOIN LATERAL (
        SELECT jobs.id, jobs.task, jobs.order_at FROM jobs
        WHERE jobs.queue = o.queue AND jobs.order_at <= o.end_at AND NOT jobs.cancel_requested
            AND jobs.task = ANY ($11::text[]) AND jobs.task <> ALL ($13::text[])
            AND jobs.task <> ALL (ARRAY(SELECT name FROM paused_tasks))
            AND (jobs.expires_at IS NULL OR (jobs.expires_at <= (SELECT agreed_clock($10))) IS NOT TRUE OR jobs.started_at IS NOT NULL)
        ORDER BY jobs.order_at, jobs.id LIMIT 1
    ) need
    ORDER BY need.order_at, need.id LIMIT 1
),
locked_need AS MATERIALIZED (
    SELECT jobs.id, f.order_at, f.before, f.most, f.want_no
    FROM first_need f JOIN jobs ON jobs.id = ANY (ARRAY[f.id])
    WHERE f.fits AND jobs.status = 'queued' AND jobs.order_at IS NOT NULL AND NOT jobs.cancel_requested
    FOR UPDATE OF jobs SKIP LOCKED
),
without_need AS MATERIALIZED (
    SELECT first.id, first.order_at, o.before, o.most, o.want_no
    FROM lines o
    CROSS JOIN LATERAL (
        SELECT jobs.id, jobs.order_at FROM jobs
        WHERE jobs.queue = o.queue AND jobs.order_at <= o.end_at AND NOT jobs.cancel_requested
            AND jobs.task <> ALL ($11::text[]) AND jobs.task <> ALL (ARRAY(SELECT name FROM paused_tasks))
            AND (jobs.expires_at IS NULL OR (jobs.expires_at <= (SELECT agreed_clock($10))) IS NOT TRUE OR jobs.started_at IS NOT NULL)
        ORDER BY jobs.order_at, jobs.id LIMIT o.most FOR UPDATE SKIP LOCKED
    ) first
),
picked AS (
    SELECT id, before + place AS n, order_at FROM (
        SELECT id, order_at, before, most, row_number() OVER (PARTITION BY want_no ORDER BY order_at, id) AS place
        FROM (SELECT * FROM locked_need UNION ALL SELECT * FROM without_need) both_kinds
    ) ranked
    WHERE place <= most
),
taken AS (
-- include: start_picked
),
-- include: leased_jobs
,
-- include: counted_takes
SELECT
    (SELECT f.task FROM first_need f WHERE NOT f.fits) AS short_task,
-- include: no_claim
UNION ALL
SELECT
    NULL,
-- include: claim_columns
FROM taken;
