-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: lock_fresh_letters
-- Those of the dead letters that do not run again yet, kept so until commit; one that another is about to run is left out.
-- $1 job_ids uuid[] (in order)
SELECT d.job_id FROM unnest($1::uuid[]) AS a (job_id)
JOIN dead_letters d ON d.job_id = ANY (ARRAY[a.job_id]) AND d.redriven_to IS NULL
FOR UPDATE OF d SKIP LOCKED;

-- name: redrive_jobs
-- Runs dead letters again as new jobs that are linked to the old; the old ones stay as they are. An id without a row
-- back is no dead letter. If a queue has no room for all of its own, none runs: each row says which queue it is.
-- $1 job_ids uuid[] (in order), $2 new_ids uuid[], $3 most queued jobs a queue may have int (null: no limit),
-- $4 now timestamptz or null (tests only)
WITH moment AS MATERIALIZED (SELECT clock($4) AS now),
asked AS MATERIALIZED (SELECT * FROM unnest($1::uuid[], $2::uuid[]) AS a (job_id, new_id)),
wanted AS MATERIALIZED (
    SELECT d.queue, count(*) AS number FROM asked a JOIN dead_letters d ON d.job_id = ANY (ARRAY[a.job_id]) GROUP BY d.queue
),
full_queue AS MATERIALIZED (
    SELECT w.queue FROM wanted w
    WHERE w.number > $3::integer
        - coalesce((SELECT sum(c.queued)::bigint FROM queue_counts c WHERE c.queue = w.queue), 0)
    LIMIT 1
),
marked AS (
    UPDATE dead_letters d SET redriven_to = a.new_id FROM asked a
    WHERE d.job_id = ANY (ARRAY[a.job_id]) AND (SELECT true FROM full_queue) IS NOT TRUE
    RETURNING d.job_id, a.new_id
),
added AS (
    INSERT INTO jobs (
        id, task, queue, payload, priority, run_after, order_at, max_attempts, timeout_s, ttl_s, spec_hash, redriven_from,
        created_at, updated_at
    )
    SELECT
        marked.new_id, old.task, old.queue, old.payload, old.priority, now, place(now, old.priority), old.max_attempts,
        old.timeout_s, old.ttl_s, old.spec_hash, old.id, now, now
    FROM marked JOIN jobs old ON old.id = ANY (ARRAY[marked.job_id]) AND old.status = 'error' CROSS JOIN moment
    RETURNING id, queue, version, created_at, redriven_from, spec_hash
),
specified AS (
    INSERT INTO job_specs (spec, job_id) SELECT id_at(spec_hash, 1), id FROM added WHERE spec_hash IS NOT NULL
),
outboxed AS (
    INSERT INTO outbox (at, event, job_ids, versions)
    SELECT min(created_at), 'queued', array_agg(id), array_agg(version) FROM added HAVING count(*) > 0
),
counted AS (
    INSERT INTO queue_counts (queue, shard, queued) SELECT queue, shard(), count(*) FROM added GROUP BY queue ORDER BY queue
    ON CONFLICT (queue, shard) DO UPDATE SET queued = queue_counts.queued + excluded.queued
)
SELECT redriven_from AS job_id, id AS new_id, NULL AS full_queue FROM added
UNION ALL
SELECT NULL, NULL, queue FROM full_queue;
