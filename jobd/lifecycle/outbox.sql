-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: turn_outbox_page
-- Deletes rows that were published, and reads the next page: the oldest changes that are not in Redis yet, with what Redis
-- needs of their jobs; one row for each job, in the order of its first change. If a crash undoes the deletion, they are
-- published again, which changes nothing: so no wait for the disk.
-- What nearly every job goes through is in `kinds`, a sum of 1 (queued), 2 (running, first attempt), 4 (done by that
-- attempt, which has no other events) and 8 (taken without its message): the job's row has all fields of these changes.
-- Anything else is in `others`, a JSON array of { seq, event, ts, has_gap, version, attempt, event_n, stream,
-- message_id, events }, in no order. The first row also has the rows of the page and the age of its oldest.
-- A payload that Redis probably has already is left out if it is large (""). A job of a paused queue or task has no order_at: it
-- is not to be had.
-- $1 published rows bigint[], $2 rows to pass over bigint[] (among them the published ones), $3 most rows int,
-- $4 changes after which no other row is taken int, $5 queues without a mirror text[], $6 bytes of a large payload int
WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true) AS setting),
deleted AS (DELETE FROM outbox USING relaxed WHERE outbox.seq = ANY ($1::bigint[]) AND relaxed.setting = 'off'),
page AS MATERIALIZED (
    SELECT * FROM (
        SELECT *, sum(cardinality(job_ids)) OVER (ORDER BY seq) - cardinality(job_ids) AS before
        FROM (SELECT * FROM outbox WHERE seq <> ALL ($2::bigint[]) ORDER BY seq LIMIT $3::integer) oldest
    ) counted
    WHERE before < $4::integer
),
changed AS (
    SELECT
        job_id, min(seq) AS first_seq, max(version) AS version, bit_or(kind) AS kinds, bool_or(event = 'done') AS is_done,
        max(stream) FILTER (WHERE kind & 7 <> 0) AS stream, max(message_id) FILTER (WHERE kind & 7 <> 0) AS message_id,
        json_agg(json_build_array(
            seq, event, (extract(epoch FROM at) * 1000)::bigint, has_gap, version, attempt, event_n, stream, message_id,
            CASE WHEN event = 'events' THEN (
                SELECT events FROM event_log e
                WHERE e.job_id = c.job_id AND e.attempt_no = c.attempt AND e.first_n = c.event_n
            ) END
        )) FILTER (WHERE kind & 7 = 0) AS others
    FROM (
        SELECT
            p.seq, p.event, p.at, p.has_gap, a.job_id, a.version, coalesce(a.attempt, 0) AS attempt,
            coalesce(a.event_n, 0) AS event_n, a.stream, a.message_id,
            CASE
                WHEN p.has_gap THEN 0
                WHEN p.event = 'queued' THEN 1
                WHEN p.event = 'running' AND a.attempt = 1 THEN 2
                WHEN p.event = 'done' AND a.attempt = 1 AND a.event_n = 1 THEN 4
                ELSE 0
            END | CASE WHEN a.stream = '' THEN 8 ELSE 0 END AS kind
        FROM page p
        CROSS JOIN LATERAL unnest(p.job_ids, p.versions, p.attempts, p.event_ns, p.streams, p.message_ids)
            AS a (job_id, version, attempt, event_n, stream, message_id)
    ) c
    GROUP BY job_id
)
SELECT
    c.job_id::text AS job_id, c.kinds, c.version, coalesce(jobs.task, '') AS task, coalesce(jobs.queue, '') AS queue,
    CASE
        WHEN c.kinds & 7 = 0 OR jobs.queue = ANY ($5::text[]) THEN ''
        WHEN c.kinds & 1 = 1 OR pg_column_size(jobs.payload) < $6::integer THEN coalesce(jobs.payload::text, '')
        ELSE ''
    END AS payload,
    coalesce(jobs.ttl_s, 1) AS ttl_s, coalesce((extract(epoch FROM jobs.created_at) * 1000)::bigint, 0) AS created_ts,
    CASE WHEN c.kinds & 6 = 0 THEN 0 ELSE coalesce((extract(epoch FROM jobs.started_at) * 1000)::bigint, 0) END
        AS started_ts,
    CASE WHEN c.kinds & 4 = 0 THEN 0 ELSE coalesce((extract(epoch FROM jobs.finished_at) * 1000)::bigint, 0) END
        AS finished_ts,
    CASE WHEN c.is_done AND jobs.queue <> ALL ($5::text[]) THEN coalesce(jobs.result::text, '') ELSE '' END AS result,
    CASE WHEN c.is_done THEN coalesce(jobs.result_ref, '') ELSE '' END AS result_ref,
    coalesce(c.stream, '') AS stream, coalesce(c.message_id, '') AS message_id,
    jobs.id IS NULL AS is_gone, uuid_send(c.job_id) AS id_bytes, c.others::text AS others,
    CASE WHEN c.others IS NOT NULL THEN jobs.error::text END AS error,
    CASE
        WHEN jobs.queue <> ALL (ARRAY(SELECT q.name FROM paused_queues q)) AND jobs.task <> ALL (ARRAY(SELECT t.name FROM paused_tasks t))
        THEN jobs.order_at
    END AS order_at,
    CASE
        WHEN jobs.due_at < 'infinity' THEN extract(epoch FROM jobs.due_at - (SELECT agreed_clock(NULL)))::double precision
    END AS due_in_s,
    CASE WHEN row_number() OVER in_order = 1 THEN (SELECT array_agg(seq) FROM page) END AS seqs,
    CASE WHEN row_number() OVER in_order = 1 THEN
        extract(epoch FROM clock(NULL) - (SELECT min(at) FROM page))::double precision
    END AS age_s
FROM changed c LEFT JOIN jobs ON jobs.id = ANY (ARRAY[c.job_id])
WINDOW in_order AS (ORDER BY c.first_seq)
ORDER BY c.first_seq;

-- name: read_epoch
-- Which filling of Redis this database knows of. It also names the server and its timeline, and the table itself: after a
-- failover or a restore Postgres may have gone back in time, and what was published to Redis meanwhile is not to be believed.
SELECT
-- include: epoch_text
FROM installation;

-- name: hold_epoch
-- The same, and it stays so until the transaction ends.
SELECT
-- include: epoch_text
FROM installation FOR SHARE OF installation;

-- fragment: epoch_text
installation.id::text || '/' || (SELECT system_identifier FROM pg_control_system()) || '.'
|| left(pg_walfile_name(pg_current_wal_lsn()), 8) || '.' || 'installation'::regclass::oid || '/' || epoch AS epoch

-- name: raise_epoch
UPDATE installation SET epoch = epoch + 1;

-- name: read_live_queued
-- One page of the queued jobs that have their place, in its order, for a Redis that has lost them. Reads only.
-- $1 queue text, $2 after order_at timestamptz, $3 after id uuid (both null: from the first), $4 most int
SELECT
    id AS job_id, version, task, queue, status, payload::text AS payload, ttl_s, attempt_no, order_at,
    (extract(epoch FROM created_at) * 1000)::bigint AS created_ts,
    (extract(epoch FROM updated_at) * 1000)::bigint AS ts
FROM jobs
WHERE order_at IS NOT NULL AND queue = $1
    AND (order_at, id) > (coalesce($2, '-infinity'::timestamptz), coalesce($3, '00000000-0000-0000-0000-000000000000'::uuid))
ORDER BY queue, order_at, id LIMIT $4::integer;

-- name: read_live_delayed
-- The same for jobs that are not due yet.
-- $1 after due_at timestamptz, $2 after id uuid (both null: from the first), $3 most int
SELECT
    id AS job_id, version, task, queue, status, payload::text AS payload, ttl_s, attempt_no, due_at,
    (extract(epoch FROM created_at) * 1000)::bigint AS created_ts,
    (extract(epoch FROM updated_at) * 1000)::bigint AS ts
FROM jobs
WHERE due_at IS NOT NULL
    AND (due_at, id) > (coalesce($1, '-infinity'::timestamptz), coalesce($2, '00000000-0000-0000-0000-000000000000'::uuid))
ORDER BY due_at, id LIMIT $3::integer;

-- name: read_live_running
-- The same for running jobs.
-- $1 after id uuid (null: from the first), $2 most int
SELECT
    jobs.id AS job_id, version, task, queue, status, payload::text AS payload, ttl_s, jobs.attempt_no,
    (extract(epoch FROM created_at) * 1000)::bigint AS created_ts,
    (extract(epoch FROM updated_at) * 1000)::bigint AS ts
FROM (
    SELECT resource_id FROM leases
    WHERE resource_id > coalesce($1, '00000000-0000-0000-0000-000000000000'::uuid) AND attempt_id IS NOT NULL
    ORDER BY resource_id LIMIT $2::integer
) l
JOIN jobs ON jobs.id = ANY (ARRAY[l.resource_id]);
