-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: explain_waiting
-- Why each queued job waits, and how many go before it: each queue is read once, from its head to the last of these jobs, and
-- up to a limit, so that a long queue costs no more than that. A job without a row is not queued. Reads only.
-- $1 job_ids uuid[], $2 most to count int, $3 now timestamptz or null (tests only)
WITH asked AS MATERIALIZED (
    SELECT
        jobs.id, jobs.queue, jobs.task, jobs.attempt_count, jobs.order_at, jobs.due_at, jobs.snoozes, jobs.held, jobs.limit_key
    FROM unnest($1::uuid[]) AS a (job_id) JOIN jobs ON jobs.id = ANY (ARRAY[a.job_id])
    WHERE jobs.status = 'queued'
),
line AS MATERIALIZED (
    SELECT ahead.id, ahead.number
    FROM (SELECT queue, max(order_at) AS last_at FROM asked WHERE order_at IS NOT NULL GROUP BY queue) q
    CROSS JOIN LATERAL (
        SELECT first.id, row_number() OVER () - 1 AS number
        FROM (
            SELECT j.id FROM jobs j
            WHERE j.queue = q.queue AND j.order_at IS NOT NULL AND j.order_at <= q.last_at
            ORDER BY j.order_at, j.id LIMIT $2::integer
        ) first
    ) ahead
    WHERE (ahead.id IN (SELECT asked.id FROM asked)) IS TRUE  -- by hash, whatever the planner believes
)
SELECT
    a.id AS job_id, a.queue, a.task, a.attempt_count, a.order_at IS NOT NULL AS in_line, a.snoozes, a.held, a.limit_key,
    CASE WHEN a.held = 'limited' THEN (
        SELECT k.next_at FROM limit_keys k WHERE k.queue = a.queue AND k.key = a.limit_key
    ) END AS until_at,
    CASE
        WHEN (SELECT true FROM pauses p WHERE p.kind = 'all' AND p.paused) THEN 'all'
        WHEN (SELECT q.paused FROM queues q WHERE q.name = a.queue) THEN 'queue'
        WHEN a.task = ANY (ARRAY(SELECT t.name FROM paused_tasks t)) THEN 'task'
    END AS paused,
    (SELECT line.number FROM line WHERE line.id = a.id) AS ahead,
    CASE WHEN isfinite(a.due_at) THEN date_part('epoch', a.due_at - clock($3)) END AS due_s
FROM asked a;

-- name: queue_heads
-- How long the first job in line of each queue could have run already; a queue without a row has nobody in line. Reads only.
-- $1 queues text[], $2 now timestamptz or null (tests only)
SELECT a.queue, extract(epoch FROM clock($2) - head.run_after)::double precision AS waits_s
FROM unnest($1::text[]) AS a (queue)
CROSS JOIN LATERAL (
    SELECT j.run_after FROM jobs j WHERE j.queue = a.queue AND j.order_at IS NOT NULL ORDER BY j.order_at, j.id LIMIT 1
) head;

-- name: outbox_depth
-- How many commits are not in Redis yet, counted up to a limit, and for how long the oldest of them. Reads only.
-- $1 most to count int, $2 now timestamptz or null (tests only)
SELECT count(*) AS depth, extract(epoch FROM clock($2) - min(at))::double precision AS age_s
FROM (SELECT at FROM outbox ORDER BY seq LIMIT $1::integer) untold;
