-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: select_for_publish
-- The first jobs of each queue in the order in which they shall run: higher priority first, where a minute of waiting is
-- worth a point. Paused queues have none, and jobs of paused tasks are passed over. Reads only.
-- $1 queues text[], $2 how many of each int, $3 jobs to pass over uuid[]
SELECT
    q.queue, first.id AS job_id, first.task, first.payload::text AS payload, first.enqueue_id, first.version, first.ttl_s,
    (extract(epoch FROM first.created_at) * 1000)::bigint AS created_ts,
    first.version = 1 AS is_fresh  -- nothing has happened to it yet
FROM unnest($1::text[]) WITH ORDINALITY AS q (queue, n)
CROSS JOIN LATERAL (
    SELECT id, task, payload, enqueue_id, version, order_at, ttl_s, created_at FROM jobs
    WHERE jobs.queue = q.queue AND jobs.order_at IS NOT NULL AND jobs.id <> ALL ($3::uuid[])
        AND q.queue <> ALL (ARRAY(SELECT name FROM paused_queues)) AND jobs.task <> ALL (ARRAY(SELECT name FROM paused_tasks))
    ORDER BY order_at, id LIMIT $2::integer
) first
ORDER BY q.n, first.order_at, first.id;

-- name: queues_with_work
-- The queues in which jobs wait or run, whichever node has them in its configuration. Reads only.
SELECT queue FROM queue_counts GROUP BY queue HAVING sum(queued + running) > 0;

-- name: promote_due
-- Gives jobs whose time has come their place in the queue, the longest due first. Those with a limit_key have to be admitted.
-- $1 most int, $2 now timestamptz or null (tests only)
WITH due AS MATERIALIZED (
    SELECT id FROM jobs WHERE due_at <= (SELECT agreed_clock($2)) ORDER BY due_at LIMIT $1::integer FOR UPDATE SKIP LOCKED
)
UPDATE jobs SET
    order_at = CASE WHEN limit_key IS NULL THEN place(run_after, priority) END,
    due_at = CASE WHEN limit_key IS NOT NULL THEN 'infinity'::timestamptz END,
    held = CASE WHEN limit_key IS NOT NULL THEN 'limited' END
FROM due WHERE jobs.id = ANY (ARRAY[due.id]) AND jobs.status = 'queued'
RETURNING jobs.id AS job_id, jobs.queue;

-- name: next_due
-- In how many seconds the next delayed job is due (not positive: one is; null: none waits). Reads only.
-- $1 now timestamptz or null (tests only)
SELECT least(
    (SELECT extract(epoch FROM min(due_at) - (SELECT agreed_clock($1)))::double precision FROM jobs WHERE due_at < 'infinity'),
-- include: next_admission
) AS due_in_s;

-- fragment: next_admission
-- In how many seconds a key with a limit is to be looked at; not positive: now; null: none is.
CASE
    WHEN (SELECT true FROM limit_nudges ORDER BY id LIMIT 1) OR (SELECT true FROM limit_takes ORDER BY id LIMIT 1) THEN 0
    ELSE (
        SELECT extract(epoch FROM min(next_at) - (SELECT agreed_clock($1)))::double precision
        FROM limit_keys WHERE next_at IS NOT NULL
    )
END

-- name: look_ahead
-- All that the relay must know while it is idle, in one row: whether something is to be published or to be
-- offered, in how many seconds the next delayed job is due (not positive: one is; null: none waits), and which queues and tasks
-- are paused. Reads only.
-- $1 queues that have room text[], $2 jobs offered there uuid[], $3 now timestamptz or null (tests only)
SELECT
    (SELECT true FROM outbox ORDER BY seq LIMIT 1) IS TRUE AS has_news,
    (
        SELECT true FROM unnest($1::text[]) AS q (queue)
        CROSS JOIN LATERAL (
            SELECT FROM jobs
            WHERE jobs.queue = q.queue AND jobs.order_at IS NOT NULL AND jobs.id <> ALL ($2::uuid[])
                AND q.queue <> ALL (ARRAY(SELECT name FROM paused_queues))
                AND jobs.task <> ALL (ARRAY(SELECT name FROM paused_tasks))
            ORDER BY order_at, id LIMIT 1
        ) first
        LIMIT 1
    ) IS TRUE AS has_unoffered,
    least(
        (SELECT extract(epoch FROM min(due_at) - (SELECT agreed_clock($3)))::double precision FROM jobs WHERE due_at < 'infinity'),
-- include: next_admission +2
    ) AS due_in_s,
    ARRAY(SELECT name FROM paused_queues) AS paused, ARRAY(SELECT name FROM paused_tasks) AS paused_tasks;
