-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: take_settled
-- The oldest ends that dependencies and groups have yet to hear of, kept until commit; those that others work off are passed over.
-- $1 most int
SELECT seq, id, status, group_id FROM settled ORDER BY seq LIMIT $1::integer FOR UPDATE SKIP LOCKED;

-- name: count_settled
-- Moves the counters of groups. A group that is finished by it leaves a row of its own.
-- $1 group_ids uuid[] (in order), $2 done int[], $3 error int[], $4 canceled int[], $5 now timestamptz or null (tests only)
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::integer[], $3::integer[], $4::integer[]) AS a (group_id, done, error, canceled)
),
locked AS MATERIALIZED (SELECT g.id FROM groups g WHERE g.id = ANY ($1) ORDER BY g.id FOR NO KEY UPDATE),
moved AS (
    UPDATE groups SET
        done = groups.done + a.done, error = groups.error + a.error, canceled = groups.canceled + a.canceled,
        finished_at = CASE
            WHEN sealed AND members = groups.done + groups.error + groups.canceled + a.done + a.error + a.canceled
            THEN clock($5)
        END
    FROM asked a WHERE groups.id = ANY (ARRAY[a.group_id]) AND (SELECT count(*) FROM locked) > 0
    RETURNING groups.id, groups.finished_at, groups.error - groups.retried + groups.canceled > 0 AS has_failures
)
INSERT INTO settled (id, status)
SELECT id, CASE WHEN has_failures THEN 'error' ELSE 'done' END FROM moved WHERE finished_at IS NOT NULL
RETURNING id;

-- name: close_dependencies
-- Closes dependencies on what has ended, and says whether each has failed by it. What another transaction closes is passed over: it
-- has an end of the same job or group in hand, which stays if that transaction fails.
-- $1 ids uuid[], $2 whether each ended without success bool[], $3 most int
WITH found AS MATERIALIZED (
    SELECT d.row_at, a.failed AND NOT d.on_any AS fails
    FROM unnest($1::uuid[], $2::boolean[]) AS a (id, failed)
    CROSS JOIN LATERAL (
        SELECT ctid AS row_at, on_any FROM dependencies WHERE dependencies.on_id = a.id AND dependencies.open
        LIMIT $3::integer FOR UPDATE SKIP LOCKED
    ) d
    LIMIT $3
)
UPDATE dependencies d SET open = false FROM found f
WHERE d.ctid = f.row_at  -- locked above, and open
RETURNING d.job_id, d.on_id, d.is_group, f.fails;

-- name: let_go
-- Tells held jobs how many fewer they wait for. One that waits for nothing more gets its place in the line, or its time, or has to be
-- admitted if it has a limit_key; one of which something has failed is canceled.
-- $1 job_ids uuid[] (in order), $2 numbers int[], $3 why it can never run text[] (null: it can), $4 now timestamptz or null (tests
-- only)
WITH moment AS MATERIALIZED (SELECT clock($4) AS now),
asked AS MATERIALIZED (SELECT * FROM unnest($1::uuid[], $2::integer[], $3::text[]) AS a (job_id, number, failure)),
locked AS MATERIALIZED (SELECT jobs.id FROM jobs WHERE jobs.id = ANY ($1) ORDER BY jobs.id FOR NO KEY UPDATE),
moved AS (
    UPDATE jobs SET
        waits_for = greatest(0, waits_for - a.number),
        held = CASE
            WHEN a.failure IS NOT NULL THEN NULL
            WHEN waits_for > a.number THEN held
            WHEN limit_key IS NOT NULL AND run_after <= m.now THEN 'limited'
        END,
        status = CASE WHEN a.failure IS NULL THEN 'queued' ELSE 'canceled' END,
        run_after = CASE WHEN a.failure IS NULL AND waits_for <= a.number THEN greatest(run_after, m.now) ELSE run_after END,
        order_at = CASE
            WHEN a.failure IS NULL AND waits_for <= a.number AND run_after <= m.now AND limit_key IS NULL
            THEN place(m.now, priority)
        END,
        due_at = CASE
            WHEN a.failure IS NOT NULL OR waits_for <= a.number AND run_after <= m.now AND limit_key IS NULL THEN NULL
            WHEN waits_for > a.number OR run_after <= m.now THEN 'infinity'
            ELSE run_after
        END,
        error = CASE
            WHEN a.failure IS NULL THEN error
            ELSE jsonb_build_object('code', 'dependency_failed', 'message', a.failure, 'retryable', false)
        END,
        finished_at = CASE WHEN a.failure IS NOT NULL THEN m.now END,
        updated_at = m.now, version = version + 1
    FROM asked a CROSS JOIN moment m
    WHERE jobs.id = ANY (ARRAY[a.job_id]) AND jobs.status = 'queued'
        AND (jobs.held = 'depends' OR a.failure IS NOT NULL AND a.number = 0)  -- its payload cannot be filled in
        AND (SELECT count(*) FROM locked) > 0
    RETURNING
        jobs.id, jobs.queue, jobs.task, jobs.status, jobs.version, jobs.updated_at, (jobs.held = 'depends') IS TRUE AS is_held,
        jobs.order_at IS NOT NULL AS in_line, (jobs.held = 'limited') IS TRUE AS is_limited,
        jobs.held IS DISTINCT FROM 'depends' AND jobs.status = 'queued' AND strpos(jobs.payload::text, '{{') > 0 AS has_places
),
outboxed AS (
    INSERT INTO outbox (at, event, job_ids, versions, attempts, event_ns)
    SELECT
        min(updated_at), 'canceled', array_agg(id), array_agg(version), array_agg(0), array_agg(2)  -- after `queued`
    FROM moved WHERE status = 'canceled' HAVING count(*) > 0
),
counted AS (
    INSERT INTO queue_counts (queue, shard, queued, canceled)
    SELECT queue, shard(), -count(*), count(*) FROM moved WHERE status = 'canceled' GROUP BY queue ORDER BY queue
    ON CONFLICT (queue, shard) DO UPDATE SET
        queued = queue_counts.queued + excluded.queued, canceled = queue_counts.canceled + excluded.canceled
),
ended AS (
    SELECT
        queue, task, status, updated_at AS at, NULL AS outcome, NULL::timestamptz AS due_at, NULL::timestamptz AS acquired_at
    FROM moved WHERE status = 'canceled'
),
-- include: rolled_up
SELECT id AS job_id, queue, task, status, is_held, in_line, is_limited, has_places FROM moved;

-- name: drop_settled
-- $1 seqs bigint[]
DELETE FROM settled WHERE seq = ANY ($1::bigint[]);

-- name: keep_settled
-- The counters of their groups have moved; some of their dependencies are left.
-- $1 seqs bigint[]
UPDATE settled SET group_id = NULL WHERE seq = ANY ($1::bigint[]) AND group_id IS NOT NULL;

-- name: look_for_links
-- Whether ends are to be worked off, and whether any may come: something is waited for. Reads only.
SELECT
    (SELECT true FROM settled LIMIT 1) IS TRUE AS has_settled,
    (SELECT true FROM dependencies WHERE open LIMIT 1) IS TRUE OR (SELECT true FROM groups WHERE finished_at IS NULL LIMIT 1) IS TRUE
        AS has_open;
