-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: find_given_up
-- Members of a group that were canceled because one of these jobs failed, and do not run again yet: each with what it depends on, how
-- that stands, and the job that runs in its place, if one does. Reads only.
-- $1 job_ids uuid[] (that run again), $2 group_id uuid
WITH dependents AS MATERIALIZED (
    SELECT DISTINCT d.job_id
    FROM unnest($1::uuid[]) AS a (job_id)
    CROSS JOIN LATERAL (SELECT d.job_id FROM dependencies d WHERE d.on_id = a.job_id OFFSET 0) d
),
given_up AS MATERIALIZED (
    SELECT jobs.id FROM dependents JOIN jobs ON jobs.id = ANY (ARRAY[dependents.job_id])
    WHERE jobs.status = 'canceled' AND jobs.error ->> 'code' = 'dependency_failed' AND jobs.group_id = $2
        AND (SELECT true FROM job_labels l WHERE l.name = '@revives' AND l.value = jobs.id::text LIMIT 1) IS NOT TRUE
)
SELECT
    g.id AS job_id, d.on_id, d.is_group, d.on_any, d.ref,
    CASE
        WHEN d.is_group THEN (
            SELECT CASE WHEN s.finished_at IS NULL THEN 'queued' WHEN s.error + s.canceled > s.retried THEN 'error' ELSE 'done' END
            FROM groups s WHERE s.id = d.on_id
        )
        ELSE (SELECT jobs.status FROM jobs WHERE jobs.id = d.on_id)
    END AS status,
    coalesce(
        (SELECT l.redriven_to FROM dead_letters l WHERE l.job_id = d.on_id),
        (SELECT l.job_id FROM job_labels l WHERE l.name = '@revives' AND l.value = d.on_id::text LIMIT 1)
    ) AS again_id
FROM given_up g
CROSS JOIN LATERAL (SELECT * FROM dependencies WHERE dependencies.job_id = g.id ORDER BY place OFFSET 0) d;

-- name: revive_jobs
-- New jobs in the place of canceled ones, which stay as they are. They are held until `hold_jobs` says what they wait for.
-- $1 job_ids uuid[], $2 new_ids uuid[], $3 group_id uuid (null: they are no members), $4 now timestamptz or null (tests only)
WITH moment AS MATERIALIZED (SELECT clock($4) AS now),
asked AS MATERIALIZED (SELECT * FROM unnest($1::uuid[], $2::uuid[]) AS a (job_id, new_id)),
added AS (
    INSERT INTO jobs (
        id, task, queue, payload, priority, run_after, due_at, held, limit_key, max_attempts, timeout_s, ttl_s, spec_hash,
        redriven_from, created_at, updated_at, labels, owner, traceparent, tracestate, waits_for
    )
    SELECT
        a.new_id, old.task, old.queue, old.payload, old.priority, now, 'infinity', 'depends', old.limit_key, old.max_attempts,
        old.timeout_s, old.ttl_s, old.spec_hash, old.id, now, now, old.labels, old.owner, old.traceparent, old.tracestate,
        old.waits_for
    FROM asked a JOIN jobs old ON old.id = ANY (ARRAY[a.job_id]) CROSS JOIN moment
    RETURNING id, queue, task, version, created_at, redriven_from, spec_hash, labels, owner
),
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
    SELECT '@revives', a.redriven_from::text, a.id FROM added a
),
retried AS (UPDATE groups SET retried = retried + (SELECT count(*) FROM added) WHERE id = $3),
outboxed AS (
    INSERT INTO outbox (at, event, job_ids, versions)
    SELECT min(created_at), 'queued', array_agg(id), array_agg(version) FROM added HAVING count(*) > 0
),
counted AS (
    INSERT INTO queue_counts (queue, shard, queued) SELECT queue, shard(), count(*) FROM added GROUP BY queue ORDER BY queue
    ON CONFLICT (queue, shard) DO UPDATE SET queued = queue_counts.queued + excluded.queued
)
SELECT redriven_from AS job_id, id AS new_id, queue, task FROM added;

-- name: find_given_up_callback
-- The callback of a group, if it was canceled because members failed. Reads only.
-- $1 group_id uuid
SELECT jobs.id, d.ref
FROM groups g JOIN jobs ON jobs.id = ANY (ARRAY[g.callback_id])
CROSS JOIN LATERAL (SELECT d.ref FROM dependencies d WHERE d.job_id = jobs.id ORDER BY d.place LIMIT 1) d
WHERE g.id = $1 AND jobs.status = 'canceled' AND jobs.error ->> 'code' = 'dependency_failed';

-- name: set_callback
-- $1 group_id uuid, $2 callback_id uuid
UPDATE groups SET callback_id = $2 WHERE id = $1;

-- name: lock_settled
-- Ends of these jobs and groups that dependencies have yet to hear of: nobody works them off before the transaction has ended, and one
-- who does is waited for. To be called before groups and jobs are locked, as one who settles does.
-- $1 ids uuid[]
SELECT seq FROM settled WHERE id = ANY ($1::uuid[]) ORDER BY seq FOR UPDATE;

-- name: point_again
-- Members that still wait for jobs whose ends were not passed on to them wait for the jobs that run in their place.
-- $1 job_ids uuid[], $2 new_ids uuid[], $3 group_id uuid
WITH found AS MATERIALIZED (
    SELECT d.row_at, a.new_id
    FROM unnest($1::uuid[], $2::uuid[]) AS a (job_id, new_id)
    CROSS JOIN LATERAL (
        SELECT ctid AS row_at, job_id FROM dependencies WHERE dependencies.on_id = a.job_id AND dependencies.open FOR UPDATE
    ) d
    WHERE (SELECT jobs.group_id = $3 AND jobs.status = 'queued' FROM jobs WHERE jobs.id = d.job_id)
)
UPDATE dependencies d SET on_id = f.new_id, ref = coalesce(d.ref, d.on_id::text) FROM found f
WHERE d.ctid = f.row_at;  -- locked above, and open

-- name: take_back_finish
-- A group that runs again has not finished: a finish that was not passed on yet is not passed on any more.
-- $1 group_id uuid
DELETE FROM settled WHERE id = $1;
