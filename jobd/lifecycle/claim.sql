-- In a join, `= ANY (ARRAY[x])` says `= x` in a form for which the planner has no plan but to look up each x in the index.
-- With `=` it may also walk through the whole table and search the batch for every row of it, which is what it does when
-- the table was empty when it planned; and a session keeps its plan while the table grows.

-- name: claim_jobs
-- Compare-and-swap: takes each job that its message still speaks of (same enqueue_id, queued, due, not canceled).
-- A job without a row back is not to be had this way. A job that has its place (order_at) is due and
-- stays so: a clock that goes back keeps no job from its worker. A job that has expired is not to be had.
-- $1 job_ids uuid[] (in order), $2 enqueue_ids int[], $3 owners text[], $4 streams text[], $5 message_ids text[],
-- $6 ttl_s float8, $7 now timestamptz or null (tests only), $8 fresh ids bytea (two for each job),
-- $9 tasks text[] whose leases last otherwise, $10 how long float8[]
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::text[], $5::text[]) WITH ORDINALITY
        AS a (job_id, enqueue_id, owner_id, stream, message_id, n)
),
taken AS (
    UPDATE jobs SET
        status = 'running', order_at = NULL, due_at = NULL,
        attempt_no = attempt_no + 1, attempt_count = attempt_count + 1, version = version + 1,
        started_at = coalesce(started_at, clock($7)), updated_at = clock($7)
    FROM asked a
    WHERE jobs.id = ANY (ARRAY[a.job_id]) AND jobs.enqueue_id = a.enqueue_id AND jobs.status = 'queued'
        AND (jobs.order_at IS NOT NULL OR jobs.due_at <= (SELECT agreed_clock($7))) IS TRUE AND NOT jobs.cancel_requested
        AND (jobs.expires_at IS NULL OR (jobs.expires_at <= (SELECT agreed_clock($7))) IS NOT TRUE OR jobs.started_at IS NOT NULL)
        AND (jobs.limit_key IS NULL OR jobs.order_at IS NOT NULL)  -- it has been admitted
    RETURNING
        jobs.id, jobs.task, jobs.queue, jobs.payload, jobs.enqueue_id, jobs.version, jobs.attempt_no, jobs.attempt_count,
        jobs.max_attempts, jobs.timeout_s, jobs.ttl_s, jobs.updated_at, a.owner_id, a.stream, a.message_id,
        id_at($8, 2 * a.n - 1) AS attempt_id, id_at($8, 2 * a.n) AS lease_token,
        clock($7) + make_interval(secs => of_task(jobs.task, $9, $10, $6)) AS lease_expires_at,
        of_task(jobs.task, $9, $10, NULL) AS lease_ttl_s, jobs.traceparent, jobs.tracestate,
        date_part('epoch', jobs.updated_at - jobs.run_after) AS waited_s, jobs.waits_for IS NOT NULL AS has_inputs, a.n,
        jobs.counts_start, jobs.limit_key,
        CASE WHEN jobs.counts_start THEN (SELECT before.order_at FROM jobs before WHERE before.id = jobs.id) END AS turn_at
),
leased AS (
    INSERT INTO leases (
        resource_id, resource_type, owner_id, lease_token, lease_expires_at, heartbeat_at, acquired_at, attempt_id,
        attempt_no, stream, message_id, ttl_s
    )
    SELECT
        id, 'JOB', owner_id, lease_token, lease_expires_at, updated_at, updated_at, attempt_id, attempt_no, stream,
        message_id, lease_ttl_s
    FROM taken
),
-- include: noted_starts
,
outboxed AS (
    INSERT INTO outbox (at, event, job_ids, versions, attempts)
    SELECT
        min(updated_at), CASE WHEN starts_with(owner_id, 'redis:') THEN 'taken' ELSE 'running' END,
        array_agg(id), array_agg(version), array_agg(attempt_no)
    FROM taken GROUP BY 2
),
counted AS (
    INSERT INTO queue_counts (queue, shard, queued, running)
    SELECT queue, shard(), -count(*), count(*) FROM taken GROUP BY queue ORDER BY queue
    ON CONFLICT (queue, shard) DO UPDATE SET
        queued = queue_counts.queued + excluded.queued, running = queue_counts.running + excluded.running
)
SELECT
    id AS job_id, task, queue, payload::text AS payload, enqueue_id, attempt_id, attempt_no, attempt_count, max_attempts,
    lease_token, lease_expires_at, timeout_s, ttl_s, owner_id, stream, message_id, lease_ttl_s, traceparent, tracestate,
    waited_s, has_inputs, n
FROM taken;

-- name: take_over_jobs
-- For messages whose job is still running under a worker's lease that has expired: ends the old attempt and starts the next,
-- or ends the job if it has no attempt left or was to be canceled. The message stays the job's message. What the slots of a
-- node held is left to the reaper: it counts interruptions.
-- Parameters as in claim_jobs.
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::text[], $5::text[]) WITH ORDINALITY
        AS a (job_id, enqueue_id, owner_id, stream, message_id, n)
),
expired AS (
    DELETE FROM leases l USING asked a
    WHERE l.resource_id = ANY (ARRAY[a.job_id]) AND l.lease_expires_at < (SELECT agreed_clock($7))
        AND NOT starts_with(l.owner_id, 'slots:')
        AND EXISTS (
            SELECT FROM jobs
            WHERE jobs.id = ANY (ARRAY[a.job_id]) AND jobs.enqueue_id = a.enqueue_id AND jobs.status = 'running'
        )
    RETURNING
        l.resource_id, l.attempt_id, l.attempt_no, l.lease_token, l.owner_id, l.acquired_at, l.stream, l.message_id,
        l.event_n + 2 AS event_n,  -- a gap, then the end
        a.owner_id AS new_owner, a.stream AS new_stream, a.message_id AS new_message, a.n
),
moved AS (
    UPDATE jobs SET
        status = CASE
            WHEN cancel_requested THEN 'canceled' WHEN attempt_count >= max_attempts THEN 'error' ELSE 'running'
        END,
        attempt_no = jobs.attempt_no + (NOT cancel_requested AND attempt_count < max_attempts)::integer,
        attempt_count = attempt_count + (NOT cancel_requested AND attempt_count < max_attempts)::integer,
        error = CASE
            WHEN NOT cancel_requested AND attempt_count >= max_attempts THEN
-- include: lease_expired_error
            ELSE error
        END,
        finished_at = CASE WHEN cancel_requested OR attempt_count >= max_attempts THEN clock($7) END,
        version = version + 1, updated_at = clock($7)
    FROM expired e
    WHERE jobs.id = ANY (ARRAY[e.resource_id]) AND jobs.status = 'running'
    RETURNING
        jobs.id, jobs.task, jobs.queue, jobs.payload, jobs.enqueue_id, jobs.version, jobs.attempt_no, jobs.attempt_count,
        jobs.max_attempts, jobs.timeout_s, jobs.ttl_s, jobs.updated_at, jobs.status,
        e.attempt_no AS ended_no, e.attempt_id, e.lease_token, e.owner_id, e.acquired_at, e.stream, e.message_id, e.event_n,
        jobs.run_after AS attempt_due_at, 'expired' AS outcome, NULL::bytea AS outcome_hash, NULL::jsonb AS attempt_error,
        CASE jobs.status WHEN 'running' THEN 'queued' ELSE jobs.status END AS led_to, 'attempts_exhausted' AS reason,
        CASE
            WHEN jobs.status = 'running' AND starts_with(e.new_owner, 'redis:') THEN 'taken' ELSE jobs.status
        END AS event, true AS has_gap,
        CASE WHEN jobs.status <> 'running' THEN e.new_stream END AS settled_stream, e.new_message AS settled_message,
        e.new_owner, e.new_stream, e.new_message,
        id_at($8, 2 * e.n - 1) AS new_attempt, id_at($8, 2 * e.n) AS new_token,
        clock($7) + make_interval(secs => of_task(jobs.task, $9, $10, $6)) AS lease_expires_at,
        of_task(jobs.task, $9, $10, NULL) AS lease_ttl_s, jobs.traceparent, jobs.tracestate,
        jobs.waits_for IS NOT NULL AS has_inputs, jobs.counts_start, jobs.limit_key
),
noted AS (
    INSERT INTO limit_takes (queue, job_ids, keys, attempts, at)
    SELECT queue, array_agg(id), array_agg(limit_key), array_agg(attempt_no), max(updated_at)
    FROM moved WHERE status = 'running' AND counts_start GROUP BY queue
),
leased AS (
    INSERT INTO leases (
        resource_id, resource_type, owner_id, lease_token, lease_expires_at, heartbeat_at, acquired_at, attempt_id,
        attempt_no, stream, message_id, ttl_s
    )
    SELECT
        id, 'JOB', new_owner, new_token, lease_expires_at, updated_at, updated_at, new_attempt, attempt_no, new_stream,
        new_message, lease_ttl_s
    FROM moved WHERE status = 'running'
),
-- include: end_of_attempt
SELECT
    id AS job_id, task, queue, payload::text AS payload, enqueue_id, new_attempt AS attempt_id, attempt_no, attempt_count,
    max_attempts, new_token AS lease_token, lease_expires_at, timeout_s, ttl_s, new_owner AS owner_id, new_stream AS stream,
    new_message AS message_id, lease_ttl_s, traceparent, tracestate, NULL::double precision AS waited_s, has_inputs, status,
    outcome, date_part('epoch', updated_at - acquired_at) AS run_s
FROM moved;

-- name: explain_claims
-- Where the jobs stand that could not be claimed; one without a row is unknown here. Reads only.
-- $1 job_ids uuid[]
SELECT
    jobs.id AS job_id, jobs.status, jobs.enqueue_id, jobs.cancel_requested,
    (SELECT lease_token FROM leases WHERE leases.resource_id = jobs.id) AS lease_token
FROM unnest($1::uuid[]) AS a (job_id) JOIN jobs ON jobs.id = ANY (ARRAY[a.job_id]);
