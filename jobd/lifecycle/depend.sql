-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: lock_groups
-- Groups that new jobs enter or wait for. None of them finishes or is sealed before the transaction has ended.
-- $1 group_ids uuid[] (in order)
SELECT g.id, g.owner, g.sealed, g.finished_at IS NOT NULL AS is_finished, g.error - g.retried + g.canceled > 0 AS has_failures
FROM groups g WHERE g.id = ANY ($1::uuid[]) ORDER BY g.id FOR NO KEY UPDATE OF g;

-- name: lock_predecessors
-- Jobs that new jobs wait for. None of them ends before the transaction has ended, and its end will leave a row in `settled`.
-- $1 job_ids uuid[] (in order)
WITH found AS MATERIALIZED (
    SELECT jobs.id, jobs.owner, jobs.status, jobs.finished_at, jobs.linked FROM jobs WHERE jobs.id = ANY ($1::uuid[])
    ORDER BY jobs.id FOR NO KEY UPDATE
),
marked AS (
    UPDATE jobs SET linked = true FROM found
    WHERE jobs.id = ANY (ARRAY[found.id]) AND found.finished_at IS NULL AND NOT found.linked
)
SELECT id, owner, status FROM found;

-- name: hold_jobs
-- Turns jobs that this transaction has inserted into members of groups and into jobs that wait for others, and says of what has
-- ended already that it has.
-- $1 job_ids uuid[], $2 group_ids uuid[] (null: none), $3 how many each waits for int[] (null: none), $4 whether others wait for it
-- bool[], then of each dependency $5 job_ids uuid[], $6 on_ids uuid[], $7 whether it is a group bool[], $8 whether any end will
-- do bool[], $9 refs text[], $10 places int[], then of what has ended $11 ids uuid[], $12 statuses text[]
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::integer[], $4::boolean[]) AS a (job_id, group_id, waits_for, linked)
),
held AS (
    UPDATE jobs SET
        group_id = a.group_id, linked = a.linked, waits_for = a.waits_for,
        held = CASE WHEN a.waits_for IS NOT NULL THEN 'depends' ELSE held END,
        order_at = CASE WHEN a.waits_for IS NULL THEN order_at END,
        due_at = CASE WHEN a.waits_for IS NULL THEN due_at ELSE 'infinity' END
    FROM asked a WHERE jobs.id = ANY (ARRAY[a.job_id])
),
depending AS (
    INSERT INTO dependencies (job_id, on_id, is_group, on_any, ref, place)
    SELECT * FROM unnest($5::uuid[], $6::uuid[], $7::boolean[], $8::boolean[], $9::text[], $10::integer[])
),
entered AS (
    UPDATE groups SET members = members + m.number, finished_at = NULL
    FROM (SELECT a.group_id, count(*) AS number FROM asked a WHERE a.group_id IS NOT NULL GROUP BY a.group_id) m
    WHERE groups.id = ANY (ARRAY[m.group_id])
),
labelled AS (
    INSERT INTO job_labels (name, value, job_id)
    SELECT '@group', a.group_id::text, a.job_id FROM asked a WHERE a.group_id IS NOT NULL
)
INSERT INTO settled (id, status) SELECT * FROM unnest($11::uuid[], $12::text[]);

-- name: list_dependencies
-- What jobs depend on, and how that stands; status is null for a job that is gone. Reads only.
-- $1 job_ids uuid[], $2 most of each int
SELECT
    d.job_id, d.on_id, d.is_group, d.on_any, d.ref, d.open,
    CASE
        WHEN NOT d.is_group THEN (SELECT jobs.status FROM jobs WHERE jobs.id = d.on_id)
        ELSE (
            SELECT CASE
                WHEN g.finished_at IS NULL THEN 'running' WHEN g.error - g.retried + g.canceled > 0 THEN 'error' ELSE 'done'
            END FROM groups g WHERE g.id = d.on_id
        )
    END AS status
FROM unnest($1::uuid[]) AS a (job_id)
CROSS JOIN LATERAL (SELECT * FROM dependencies WHERE dependencies.job_id = a.job_id ORDER BY place LIMIT $2::integer) d;

-- name: list_dependents
-- The jobs that depend on jobs or groups. Reads only.
-- $1 ids uuid[], $2 most of each int
SELECT d.job_id, d.on_id, d.is_group, d.on_any, d.ref, d.open
FROM unnest($1::uuid[]) AS a (id)
CROSS JOIN LATERAL (SELECT * FROM dependencies WHERE dependencies.on_id = a.id LIMIT $2::integer) d;

-- name: find_group_rings
-- Of new members that wait for something: those that wait, by way of others, for their own group. One transaction at a time looks, so
-- that of two that would close a ring together the second sees the first.
-- $1 job_ids uuid[], $2 group_ids uuid[]
WITH RECURSIVE alone AS MATERIALIZED (SELECT pg_advisory_xact_lock(7814992203471) AS lock),
reached (start, id, is_group) AS (
    SELECT a.job_id, a.job_id, false FROM (SELECT count(*) FROM alone) lock CROSS JOIN unnest($1::uuid[]) AS a (job_id)
    UNION
    SELECT r.start, next.id, next.is_group FROM reached r
    CROSS JOIN LATERAL (
        SELECT d.on_id AS id, d.is_group FROM dependencies d
        WHERE NOT r.is_group AND d.job_id = r.id AND d.open
            -- a job that was canceled while it waited waits no more, though its dependencies are open
            AND (SELECT jobs.held = 'depends' AND jobs.status = 'queued' FROM jobs WHERE jobs.id = r.id)
        UNION ALL
        SELECT l.job_id, false FROM job_labels l
        WHERE r.is_group AND l.name = '@group' AND l.value = r.id::text
            AND (SELECT jobs.held = 'depends' AND jobs.status = 'queued' FROM jobs WHERE jobs.id = l.job_id)
    ) next
)
SELECT a.job_id FROM unnest($1::uuid[], $2::uuid[]) AS a (job_id, group_id)
WHERE (a.job_id, a.group_id) IN (SELECT r.start, r.id FROM reached r WHERE r.is_group);
