-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- fragment: open_queues
-- The wanted queues from which jobs may be taken directly. The row is locked against a change of its mode and against a pause
-- until the commit, and is looked at again after a wait for one: so no take runs beside a change, and the changed row decides.
-- With $7, for when Redis is away, also queues in `stream` mode, except those that raw workers were seen to read within one
-- lease time: such a worker does not claim, and may be at work on a job of which nobody else knows yet.
open_queues AS MATERIALIZED (
    SELECT a.queue, a.before, a.most, a.want_no
    FROM unnest($1::text[], $2::integer[], $3::integer[]) WITH ORDINALITY AS a (queue, before, most, want_no)
    JOIN queues ON queues.name = ANY (ARRAY[a.queue])
    WHERE NOT queues.paused AND (SELECT true FROM pauses WHERE kind = 'all' AND paused) IS NOT TRUE AND (
        queues.mode = 'direct'
        OR $7::boolean AND (
            queues.raw_seen_at IS NULL
            -- on both sides: a clock that was set back must not shut the queue for longer
            OR (abs(extract(epoch FROM queues.raw_seen_at - (SELECT agreed_clock($10))))::double precision < $5) IS FALSE
        )
    )
    FOR SHARE OF queues
)

-- fragment: waiting_jobs
-- The first jobs in line of each open queue, as many as are wanted, without those that others are just taking. `n` is the place
-- of the job's owner in $4. A job that has its place in the line (order_at) is due, and stays so if the clock goes back. Jobs of a
-- paused task, and those that have expired, are soon put out of the line by others (pause.sql, expire.sql): few are passed over.
waiting AS MATERIALIZED (
    SELECT first.id, o.before + first.place AS n, first.order_at, o.want_no
    FROM open_queues o
    CROSS JOIN LATERAL (
        SELECT line.id, line.order_at, row_number() OVER () AS place
        FROM (
            SELECT jobs.id, jobs.order_at FROM jobs
            WHERE jobs.queue = o.queue AND jobs.order_at IS NOT NULL AND NOT jobs.cancel_requested
                AND jobs.task <> ALL (ARRAY(SELECT name FROM paused_tasks))
                AND (jobs.expires_at IS NULL OR (jobs.expires_at <= (SELECT agreed_clock($10))) IS NOT TRUE OR jobs.started_at IS NOT NULL)
            ORDER BY jobs.order_at, jobs.id LIMIT o.most FOR UPDATE SKIP LOCKED
        ) line
    ) first
)

-- fragment: start_picked
-- Turns the jobs of `picked` (id, n, order_at) into running ones.
UPDATE jobs SET
    status = 'running', order_at = NULL, due_at = NULL,
    attempt_no = attempt_no + 1, attempt_count = attempt_count + 1, version = version + 1,
    started_at = coalesce(started_at, clock($10)), updated_at = clock($10)
FROM picked
WHERE jobs.id = ANY (ARRAY[picked.id]) AND jobs.status = 'queued' AND NOT jobs.cancel_requested
RETURNING
    jobs.id, jobs.task, jobs.queue, jobs.payload, jobs.enqueue_id, jobs.version, jobs.attempt_no, jobs.attempt_count,
    jobs.max_attempts, jobs.timeout_s, jobs.ttl_s, jobs.updated_at,
    id_at($6, 2 * picked.n - 1) AS attempt_id, id_at($6, 2 * picked.n) AS lease_token,
    clock($10) + make_interval(secs => of_task(jobs.task, $8, $9, $5)) AS lease_expires_at,
    of_task(jobs.task, $8, $9, NULL) AS lease_ttl_s, ($4::text[])[picked.n] AS owner_id, jobs.traceparent, jobs.tracestate,
    date_part('epoch', jobs.updated_at - jobs.run_after) AS waited_s, jobs.waits_for IS NOT NULL AS has_inputs,
    jobs.counts_start, jobs.limit_key, picked.order_at AS turn_at

-- fragment: leased_jobs
-- A lease for each of `taken`, and a note of those whose starts count (0026_takes_of_limited_jobs.sql).
leased AS (
    INSERT INTO leases (
        resource_id, resource_type, owner_id, lease_token, lease_expires_at, heartbeat_at, acquired_at, attempt_id,
        attempt_no, ttl_s
    )
    SELECT
        id, 'JOB', owner_id, lease_token, lease_expires_at, updated_at, updated_at, attempt_id, attempt_no, lease_ttl_s
    FROM taken
),
-- include: noted_starts

-- fragment: noted_starts
noted AS (
    INSERT INTO limit_takes (queue, job_ids, keys, attempts, turn_at, at)
    SELECT queue, array_agg(id), array_agg(limit_key), array_agg(attempt_no), max(turn_at), max(updated_at)
    FROM taken WHERE counts_start GROUP BY queue
)

-- fragment: counted_takes
-- What is published of `taken`, and the counters of its queues.
outboxed AS (
    INSERT INTO outbox (at, event, job_ids, versions, attempts, streams)
    SELECT
        min(updated_at), 'running', array_agg(id), array_agg(version), array_agg(attempt_no),
        array_agg(''::text)  -- no message brought it, so one that was offered is of no use
    FROM taken HAVING count(*) > 0
),
counted AS (
    INSERT INTO queue_counts (queue, shard, queued, running)
    SELECT queue, shard(), -count(*), count(*) FROM taken GROUP BY queue ORDER BY queue
    ON CONFLICT (queue, shard) DO UPDATE SET
        queued = queue_counts.queued + excluded.queued, running = queue_counts.running + excluded.running
)

-- fragment: claim_columns
-- Of a job that is taken; in the order of ClaimRow.
id AS job_id, task, queue, payload::text AS payload, enqueue_id, attempt_id, attempt_no, attempt_count, max_attempts,
lease_token, lease_expires_at, timeout_s, ttl_s, owner_id, NULL::text AS stream, NULL::text AS message_id, lease_ttl_s,
traceparent, tracestate, waited_s, has_inputs

-- fragment: no_claim
-- The same columns of a row that is about something else.
NULL::uuid AS job_id, NULL AS task, NULL AS queue, NULL AS payload, NULL::integer AS enqueue_id, NULL::uuid AS attempt_id,
NULL::integer AS attempt_no, NULL::integer AS attempt_count, NULL::integer AS max_attempts, NULL::uuid AS lease_token,
NULL::timestamptz AS lease_expires_at, NULL::double precision AS timeout_s, NULL::integer AS ttl_s, NULL AS owner_id,
NULL AS stream, NULL AS message_id, NULL::double precision AS lease_ttl_s, NULL AS traceparent, NULL AS tracestate,
NULL::double precision AS waited_s, NULL::boolean AS has_inputs

-- name: take_jobs
-- The first due jobs of the wanted queues, without any message, each for an owner of its own.
-- $1 queues text[] (in order), $2 owners of other queues before int[], $3 jobs wanted int[], $4 owners text[] (of one queue
-- after the other), $5 ttl_s float8, $6 fresh ids bytea (two for each owner), $7 also in stream mode bool,
-- $8 tasks text[] whose leases last otherwise, $9 how long float8[], $10 now timestamptz or null (tests only)
WITH
-- include: open_queues
,
-- include: waiting_jobs
,
picked AS (SELECT id, n, order_at FROM waiting),
taken AS (
-- include: start_picked
),
-- include: leased_jobs
,
-- include: counted_takes
SELECT
-- include: claim_columns
FROM taken;

-- name: stray_claims
-- Claims that stand for an owner, without those that it knows: what came of takes whose answer was lost. Reads only.
-- $1 owner text, $2 lease tokens that it knows uuid[], $3 now timestamptz or null (tests only)
SELECT
    jobs.id AS job_id, jobs.task, jobs.queue, jobs.payload::text AS payload, jobs.enqueue_id, l.attempt_id, l.attempt_no,
    jobs.attempt_count, jobs.max_attempts, l.lease_token, l.lease_expires_at, jobs.timeout_s, jobs.ttl_s, l.owner_id,
    l.stream, l.message_id, l.ttl_s AS lease_ttl_s, jobs.traceparent, jobs.tracestate,
    date_part('epoch', l.acquired_at - jobs.run_after) AS waited_s, jobs.waits_for IS NOT NULL AS has_inputs,
    extract(epoch FROM clock($3) - l.heartbeat_at)::double precision AS renewed_s  -- so long ago
FROM (
    SELECT * FROM leases
    WHERE resource_type = 'JOB' AND owner_id = $1 AND lease_token <> ALL ($2::uuid[])
    OFFSET 0  -- the leases first, then their jobs
) l
JOIN jobs ON jobs.id = ANY (ARRAY[l.resource_id]) AND jobs.status = 'running';
