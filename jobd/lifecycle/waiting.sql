-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: explain_waiting
-- Why each queued job waits, and how many go before it, counted up to a limit so that a long queue costs no more than that.
-- A job without a row is not queued. Reads only.
-- $1 job_ids uuid[], $2 most to count int
SELECT
    jobs.id AS job_id, jobs.attempt_count, jobs.order_at IS NOT NULL AS in_line,
    coalesce((SELECT q.paused FROM queues q WHERE q.name = jobs.queue), false) AS paused,
    (
        SELECT count(*) FROM (
            SELECT FROM jobs j
            WHERE j.queue = jobs.queue AND j.order_at IS NOT NULL AND (j.order_at, j.id) < (jobs.order_at, jobs.id)
            LIMIT $2::integer
        ) before_it
    ) AS ahead
FROM unnest($1::uuid[]) AS a (job_id) JOIN jobs ON jobs.id = ANY (ARRAY[a.job_id])
WHERE jobs.status = 'queued';

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
