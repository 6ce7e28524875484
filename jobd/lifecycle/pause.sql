-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: set_pause
-- $1 kind text (task or all), $2 name of the task text (empty for all), $3 paused bool, $4 now timestamptz or null (tests only)
INSERT INTO pauses (kind, name, paused, updated_at) VALUES ($1, $2, $3, clock($4))
ON CONFLICT (kind, name) DO UPDATE SET paused = excluded.paused, updated_at = excluded.updated_at;

-- name: drop_pause
-- Forgets a pause that is over.
-- $1 kind text, $2 name text
DELETE FROM pauses WHERE kind = $1 AND name = $2 AND NOT paused;

-- name: read_pauses
-- Reads only.
SELECT kind, name, paused FROM pauses ORDER BY kind, name;

-- name: set_aside
-- Puts jobs of paused tasks that stand among the first of a queue out of its line. What stands further behind costs nobody
-- anything yet. Only queues in mode direct, whose rows are locked as in take_jobs: a job that was offered in Redis stays in line.
-- A resume waits for the lock on the row of its pause, so that it finds all that was put out. Answers with how many there were.
-- $1 how many jobs of each queue to check int
WITH paused_now AS MATERIALIZED (SELECT name FROM pauses WHERE kind = 'task' AND paused FOR SHARE),
open_lines AS MATERIALIZED (SELECT name FROM queues WHERE mode = 'direct' ORDER BY name FOR SHARE),
found AS MATERIALIZED (
    SELECT first.id FROM open_lines o CROSS JOIN LATERAL (
        SELECT id, task FROM jobs WHERE jobs.queue = o.name AND order_at IS NOT NULL ORDER BY order_at, id LIMIT $1::integer
    ) first
    WHERE first.task = ANY (ARRAY(SELECT p.name FROM paused_now p))
    ORDER BY first.id
),
moved AS (
    UPDATE jobs SET order_at = NULL, due_at = 'infinity', held = 'paused'
    FROM found WHERE jobs.id = ANY (ARRAY[found.id]) AND jobs.status = 'queued' AND (jobs.order_at IS NOT NULL) IS TRUE
    RETURNING 1
)
SELECT count(*) FROM moved;

-- name: put_back
-- Gives jobs of a task that is not paused any more their place in the line again, or has them wait for their key: one batch.
-- $1 task text, $2 most int
WITH found AS MATERIALIZED (
    SELECT id FROM jobs WHERE held = 'paused' AND task = $1 LIMIT $2::integer FOR UPDATE  -- in the order of the index
)
UPDATE jobs SET
    order_at = CASE WHEN limit_key IS NULL THEN place(run_after, priority) END,
    due_at = CASE WHEN limit_key IS NOT NULL THEN 'infinity'::timestamptz END,
    held = CASE WHEN limit_key IS NOT NULL THEN 'limited' END
FROM found WHERE jobs.id = ANY (ARRAY[found.id]) AND jobs.status = 'queued'
RETURNING jobs.queue;
