-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: lock_fresh_letters
-- Those of the dead letters that do not run again yet, kept so until commit; one that another is about to run is left out.
-- $1 job_ids uuid[] (in order)
SELECT d.job_id FROM unnest($1::uuid[]) AS a (job_id)
JOIN dead_letters d ON d.job_id = ANY (ARRAY[a.job_id]) AND d.redriven_to IS NULL
FOR UPDATE OF d SKIP LOCKED;

-- fragment: redriven_links
-- The new jobs of `added` have the inputs of the old ones, and are members of their groups, which are not finished any more.
depending AS (
    INSERT INTO dependencies (job_id, on_id, is_group, on_any, ref, place, open)
    SELECT a.id, d.on_id, d.is_group, d.on_any, d.ref, d.place, false
    FROM (SELECT id, redriven_from FROM added WHERE waits_for IS NOT NULL) a
    JOIN dependencies d ON d.job_id = ANY (ARRAY[a.redriven_from])
),
entered AS (
    UPDATE groups SET members = members + m.number, retried = retried + m.number, finished_at = NULL
    FROM (SELECT a.group_id, count(*) AS number FROM added a WHERE a.group_id IS NOT NULL GROUP BY a.group_id) m
    WHERE groups.id = ANY (ARRAY[m.group_id])
),

-- name: redrive_jobs
-- Runs dead letters again as new jobs that are linked to the old; the old ones stay as they are. One with a limit_key has to be
-- admitted. An id without a row
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
        id, task, queue, payload, priority, run_after, order_at, due_at, held, limit_key, max_attempts, timeout_s, ttl_s,
        spec_hash, redriven_from, created_at, updated_at, labels, owner, traceparent, tracestate, group_id, linked, waits_for
    )
    SELECT
        marked.new_id, old.task, old.queue, old.payload, old.priority, now,
        CASE WHEN old.limit_key IS NULL THEN place(now, old.priority) END,
        CASE WHEN old.limit_key IS NOT NULL THEN 'infinity'::timestamptz END,
        CASE WHEN old.limit_key IS NOT NULL THEN 'limited' END, old.limit_key, old.max_attempts, old.timeout_s,
        old.ttl_s, old.spec_hash, old.id, now, now, old.labels, old.owner, old.traceparent, old.tracestate,
        old.group_id, old.group_id IS NOT NULL, old.waits_for
    FROM marked JOIN jobs old ON old.id = ANY (ARRAY[marked.job_id]) AND old.status = 'error' CROSS JOIN moment
    RETURNING id, queue, task, version, created_at, redriven_from, spec_hash, labels, owner, group_id, waits_for
),
-- include: redriven_links

specified AS (
    INSERT INTO job_specs (spec, job_id) SELECT id_at(spec_hash, 1), id FROM added WHERE spec_hash IS NOT NULL
),
labelled AS (
    INSERT INTO job_labels (name, value, job_id)
    SELECT (l.pair).key, (l.pair).value, l.id
    FROM (SELECT jsonb_each_text(a.labels) AS pair, a.id FROM added a WHERE a.labels IS NOT NULL) l
    UNION ALL
    SELECT '', a.owner, a.id FROM added a WHERE a.owner IS NOT NULL
    UNION ALL
    SELECT '@group', a.group_id::text, a.id FROM added a WHERE a.group_id IS NOT NULL
),
outboxed AS (
    INSERT INTO outbox (at, event, job_ids, versions)
    SELECT min(created_at), 'queued', array_agg(id), array_agg(version) FROM added HAVING count(*) > 0
),
counted AS (
    INSERT INTO queue_counts (queue, shard, queued) SELECT queue, shard(), count(*) FROM added GROUP BY queue ORDER BY queue
    ON CONFLICT (queue, shard) DO UPDATE SET queued = queue_counts.queued + excluded.queued
)
SELECT redriven_from AS job_id, id AS new_id, NULL AS full_queue, queue, task FROM added
UNION ALL
SELECT NULL, NULL, queue, NULL, NULL FROM full_queue;
