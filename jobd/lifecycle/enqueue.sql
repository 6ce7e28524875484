-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- fragment: accepted_jobs
-- The jobs of a batch for which their queues have room, each with its place in the line (order_at) or, if it is not due yet,
-- with its time (due_at). One with a limit_key is held until it is admitted (admit.sql). `n` is its place in the batch.
SELECT
    n, id, task, queue, payload::jsonb AS payload, priority, starts_at AS run_after,
    CASE WHEN starts_at <= now AND limit_key IS NULL THEN place(starts_at, priority) END AS order_at,
    CASE WHEN starts_at > now THEN starts_at WHEN limit_key IS NOT NULL THEN 'infinity' END AS due_at,
    CASE WHEN starts_at <= now AND limit_key IS NOT NULL THEN 'limited' END AS held,
    max_attempts, timeout_s, ttl_s, spec_hash, coalesce(run_after > now, false) AS at_instant, now,
    labels::jsonb AS labels, owner, traceparent, tracestate, limit_key,
    coalesce(expires_at, now + make_interval(secs => expires_in_s)) AS expires_at
FROM (
    SELECT a.*, m.now, greatest(a.run_after, m.now) + make_interval(secs => a.delay_s) AS starts_at
    FROM (SELECT clock($13) AS now OFFSET 0) m CROSS JOIN unnest(
        $1::uuid[], $2::text[], $3::text[], $4::text[], $5::integer[], $6::timestamptz[], $7::double precision[],
        $8::integer[], $9::double precision[], $10::integer[], $11::bytea[], $14::integer[], $15::integer[],
        $17::text[], $18::text[], $19::text[], $20::text[], $21::text[], $22::timestamptz[], $23::double precision[]
    ) WITH ORDINALITY AS a (
        id, task, queue, payload, priority, run_after, delay_s, max_attempts, timeout_s, ttl_s, spec_hash, queue_no,
        nth_of_queue, labels, owner, traceparent, tracestate, limit_key, expires_at, expires_in_s, n
    )
) timed
WHERE $12::integer IS NULL OR nth_of_queue <= (
-- include: room_in_queues
)[queue_no]

-- fragment: booked_keys
-- Books the idempotency keys of the jobs for which there is room even if every job before them is new; a key that is taken
-- answers with the job that it stands for. Its statement waits only for a moment for a key that another transaction holds.
booked AS (
    INSERT INTO idempotency_keys AS k (principal, key, job_id, body_hash, expires_at)
    SELECT a.principal, a.key, a.job_id, a.body_hash, m.now + make_interval(secs => a.life_s)
    FROM (SELECT steady($13) AS now, set_config('lock_timeout', $32, true) OFFSET 0) m CROSS JOIN unnest(
        $24::text[], $25::text[], $26::uuid[], $27::bytea[], $28::double precision[], $29::integer[], $30::integer[]
    ) AS a (principal, key, job_id, body_hash, life_s, queue_no, nth_of_queue)
    WHERE $12::integer IS NULL OR a.nth_of_queue <= (
-- include: room_in_queues
    )[a.queue_no]
    ORDER BY a.principal, a.key
    ON CONFLICT (principal, key) DO UPDATE SET job_id = k.job_id
    RETURNING k.principal, k.key, k.job_id, k.body_hash
),
accepted AS MATERIALIZED (
    SELECT * FROM (
-- include: accepted_jobs
    ) fits
    -- IS TRUE keeps this from being a join of two lists, which takes time by the square of their length
    WHERE NOT ($31::boolean[])[n] OR (id IN (SELECT b.job_id FROM booked b)) IS TRUE
),
known_keys AS MATERIALIZED (
    SELECT principal, key, job_id, body_hash FROM booked WHERE (job_id IN (SELECT a.id FROM accepted a)) IS NOT TRUE
)

-- fragment: room_in_queues
-- How many more jobs each queue of the batch may have.
ARRAY(
    SELECT $12 - coalesce((SELECT sum(c.queued)::bigint FROM queue_counts c WHERE c.queue = q.queue), 0)
    FROM unnest($16::text[]) AS q (queue)
)

-- fragment: added_jobs
-- Inserts the jobs of `accepted`, all of them queued.
added AS (
    INSERT INTO jobs (
        id, task, queue, payload, priority, run_after, order_at, due_at, max_attempts, timeout_s, ttl_s, spec_hash,
        at_instant, created_at, updated_at, labels, owner, traceparent, tracestate, limit_key, expires_at, held
    )
    SELECT
        id, task, queue, payload, priority, run_after, order_at, due_at, max_attempts, timeout_s, ttl_s, spec_hash,
        at_instant, now, now, labels, owner, traceparent, tracestate, limit_key, expires_at, held
    FROM accepted
),
specified AS (
    INSERT INTO job_specs (spec, job_id) SELECT id_at(spec_hash, 1), id FROM accepted WHERE spec_hash IS NOT NULL
),
-- include: labelled_jobs
outboxed AS (
    INSERT INTO outbox (at, event, job_ids, versions)
    SELECT min(now), 'queued', array_agg(id), array_agg(1) FROM accepted HAVING count(*) > 0
),
counted AS (
    INSERT INTO queue_counts (queue, shard, queued)
    SELECT queue, shard(), count(*) FROM accepted GROUP BY queue ORDER BY queue
    ON CONFLICT (queue, shard) DO UPDATE SET queued = queue_counts.queued + excluded.queued
)

-- fragment: labelled_jobs
-- Makes the jobs of `accepted` known by their labels, and by their owner under the name ''.
labelled AS (
    INSERT INTO job_labels (name, value, job_id)
    SELECT (l.pair).key, (l.pair).value, l.id
    FROM (SELECT jsonb_each_text(a.labels) AS pair, a.id FROM accepted a WHERE a.labels IS NOT NULL) l
    UNION ALL
    SELECT '', a.owner, a.id FROM accepted a WHERE a.owner IS NOT NULL
),

-- fragment: added_and_taken_jobs
-- Inserts the jobs of `accepted`, and takes what is wanted: of those that wait and the new ones, whichever are first in line.
-- `owner_n` is the place of a taken job's owner in $4. A new job that is taken is running from the start.
-- include: open_queues
,
-- include: waiting_jobs
,
placed AS MATERIALIZED (
    SELECT
        *, CASE WHEN place <= ($3::integer[])[want_no] THEN ($2::integer[])[want_no] + place END AS owner_n
    FROM (
        SELECT *, row_number() OVER (PARTITION BY want_no ORDER BY order_at, id) AS place
        FROM (
            SELECT
                w.want_no, w.id, w.order_at, NULL::bigint AS n, NULL AS task, NULL AS queue, NULL::jsonb AS payload,
                NULL::integer AS priority, NULL::timestamptz AS run_after, NULL::timestamptz AS due_at,
                NULL::integer AS max_attempts, NULL::double precision AS timeout_s, NULL::integer AS ttl_s,
                NULL::bytea AS spec_hash, NULL::boolean AS at_instant, NULL::timestamptz AS now, NULL::jsonb AS labels,
                NULL AS owner, NULL AS traceparent, NULL AS tracestate, NULL AS limit_key, NULL::timestamptz AS expires_at,
                NULL AS held
            FROM waiting w
            UNION ALL
            SELECT
                CASE
                    WHEN order_at IS NOT NULL AND array_position($1, queue) = ANY (ARRAY(SELECT o.want_no FROM open_queues o))
                        AND task <> ALL (ARRAY(SELECT name FROM paused_tasks)) AND (expires_at <= now) IS NOT TRUE
                    THEN array_position($1, queue)
                END,
                id, order_at, n, task, queue, payload, priority, run_after, due_at, max_attempts, timeout_s, ttl_s,
                spec_hash, at_instant, now, labels, owner, traceparent, tracestate, limit_key, expires_at, held
            FROM accepted
        ) all_jobs
    ) ranked
),
picked AS (SELECT id, owner_n AS n, order_at FROM placed WHERE n IS NULL AND owner_n IS NOT NULL),
moved AS (
-- include: start_picked
),
added AS (
    INSERT INTO jobs (
        id, task, queue, payload, priority, run_after, order_at, due_at, max_attempts, timeout_s, ttl_s, spec_hash,
        at_instant, created_at, updated_at, status, version, attempt_no, attempt_count, started_at, labels, owner,
        traceparent, tracestate, limit_key, expires_at, held
    )
    SELECT
        id, task, queue, payload, priority, run_after, CASE WHEN owner_n IS NULL THEN order_at END, due_at, max_attempts,
        timeout_s, ttl_s, spec_hash, at_instant, now, now, CASE WHEN owner_n IS NULL THEN 'queued' ELSE 'running' END,
        CASE WHEN owner_n IS NULL THEN 1 ELSE 2 END, CASE WHEN owner_n IS NULL THEN 0 ELSE 1 END,
        CASE WHEN owner_n IS NULL THEN 0 ELSE 1 END, CASE WHEN owner_n IS NOT NULL THEN now END, labels, owner,
        traceparent, tracestate, limit_key, expires_at, held
    FROM placed WHERE n IS NOT NULL
),
specified AS (
    INSERT INTO job_specs (spec, job_id)
    SELECT id_at(spec_hash, 1), id FROM placed WHERE n IS NOT NULL AND spec_hash IS NOT NULL
),
-- include: labelled_jobs
taken AS MATERIALIZED (
    SELECT * FROM moved
    UNION ALL
    SELECT
        id, task, queue, payload, 1, 2, 1, 1, max_attempts, timeout_s, ttl_s, now, id_at($6, 2 * owner_n - 1),
        id_at($6, 2 * owner_n), now + make_interval(secs => of_task(task, $8, $9, $5)), of_task(task, $8, $9, NULL),
        ($4::text[])[owner_n], traceparent, tracestate, 0.0, false, false, limit_key, order_at
    FROM placed WHERE n IS NOT NULL AND owner_n IS NOT NULL
),
-- include: leased_jobs
,
outboxed AS (
    INSERT INTO outbox (at, event, job_ids, versions, attempts, streams)
    SELECT min(now), 'queued', array_agg(id), array_agg(1), NULL, NULL
    FROM placed WHERE n IS NOT NULL HAVING count(*) > 0
    UNION ALL
    SELECT
        min(updated_at), 'running', array_agg(id), array_agg(version), array_agg(attempt_no),
        array_agg(''::text)  -- no message brought it, so one that was offered is of no use
    FROM taken HAVING count(*) > 0
),
counted AS (
    INSERT INTO queue_counts (queue, shard, queued, running)
    SELECT queue, shard(), sum(queued), sum(running)
    FROM (
        SELECT queue, (owner_n IS NULL)::integer AS queued, (owner_n IS NOT NULL)::integer AS running
        FROM placed WHERE n IS NOT NULL
        UNION ALL
        SELECT queue, -1, 1 FROM moved
    ) changed
    GROUP BY queue ORDER BY queue
    ON CONFLICT (queue, shard) DO UPDATE SET
        queued = queue_counts.queued + excluded.queued, running = queue_counts.running + excluded.running
)

-- name: enqueue_jobs
-- Inserts new jobs up to each queue's limit. Answers with the time and with the places of the new jobs in the batch, from 1;
-- another one found its queue full.
-- $1 ids uuid[], $2 tasks text[], $3 queues text[], $4 payloads text[], $5 priorities int[],
-- $6 run_after timestamptz[] (null: now; the past counts as now), $7 delay_s float8[], $8 max_attempts int[],
-- $9 timeout_s float8[], $10 ttl_s int[], $11 spec_hashes bytea[],
-- $12 most queued jobs a queue may have int (null: no limit), $13 now timestamptz or null (tests only),
-- $14 numbers of the queues int[], $15 places among the jobs of the same queue int[], $16 queues by number text[],
-- $17 labels text[] (JSON objects of strings; null: none), $18 owners text[], $19 traceparents text[], $20 tracestates text[],
-- $21 limit_keys text[], $22 expires_at timestamptz[], $23 the same in s from now float8[] (each null: none)
WITH accepted AS MATERIALIZED (
-- include: accepted_jobs
),
-- include: added_jobs
SELECT min(now) AS created_at, array_agg(n) AS accepted FROM accepted;

-- name: enqueue_keyed_jobs
-- The same for jobs with idempotency keys, each key once. Answers also with the keys that stand for jobs already, in four arrays,
-- and does nothing about a job that has no room, or has it only if some key before it stands for another job.
-- Parameters as in enqueue_jobs, then of the jobs with keys
-- $24 principals text[], $25 keys text[], $26 job_ids uuid[], $27 body_hashes bytea[], $28 lifetimes in s float8[],
-- $29 numbers of the queues int[], $30 places among the jobs of the same queue int[], then of all
-- $31 whether each has a key bool[], and $32 how many ms to wait for a key that another transaction holds text
WITH
-- include: booked_keys
,
-- include: added_jobs
SELECT
    min(now) AS created_at, array_agg(n) AS accepted,
    ARRAY(SELECT k.principal FROM known_keys k) AS principals, ARRAY(SELECT k.key FROM known_keys k) AS keys,
    ARRAY(SELECT k.job_id FROM known_keys k) AS job_ids, ARRAY(SELECT k.body_hash FROM known_keys k) AS body_hashes
FROM accepted;

-- name: enqueue_and_take
-- Enqueues, and in the same commit takes the first jobs of the queues that are wanted, as take_jobs in take.sql. The first row has
-- the time and the places of the new jobs, each other one a job that is taken.
-- Parameters as in take_jobs, then as in enqueue_jobs.
WITH accepted AS MATERIALIZED (
-- include: accepted_jobs +10
),
-- include: added_and_taken_jobs
SELECT
    min(now) AS created_at, array_agg(n) AS accepted,
-- include: no_claim
FROM placed WHERE n IS NOT NULL
UNION ALL
SELECT
    NULL, NULL,
-- include: claim_columns
FROM taken;

-- name: enqueue_keyed_and_take
-- The same for jobs with idempotency keys. Parameters as in take_jobs, then as in enqueue_keyed_jobs.
WITH
-- include: booked_keys +10
,
-- include: added_and_taken_jobs
SELECT
    min(now) AS created_at, array_agg(n) AS accepted,
    ARRAY(SELECT k.principal FROM known_keys k) AS principals, ARRAY(SELECT k.key FROM known_keys k) AS keys,
    ARRAY(SELECT k.job_id FROM known_keys k) AS job_ids, ARRAY(SELECT k.body_hash FROM known_keys k) AS body_hashes,
-- include: no_claim
FROM placed WHERE n IS NOT NULL
UNION ALL
SELECT
    NULL, NULL, NULL, NULL, NULL, NULL,
-- include: claim_columns
FROM taken;

-- name: take_keys
-- Books idempotency keys for new jobs; a key that is taken answers with the job it stands for. It is valid as long as it
-- is there: retention deletes it, by steady time, and no clock ends it.
-- $1 principals text[], $2 keys text[], $3 job_ids uuid[], $4 body_hashes bytea[], $5 lifetimes in s float8[],
-- $6 now timestamptz or null (tests only), $7 how many ms to wait for a key that another transaction holds text: the lock
-- timeout of the transaction from here on
WITH moment AS MATERIALIZED (SELECT steady($6) AS now, set_config('lock_timeout', $7, true))
INSERT INTO idempotency_keys AS k (principal, key, job_id, body_hash, expires_at)
SELECT principal, key, job_id, body_hash, now + make_interval(secs => life_s)
FROM moment CROSS JOIN unnest($1::text[], $2::text[], $3::uuid[], $4::bytea[], $5::double precision[])
    AS a (principal, key, job_id, body_hash, life_s)
ORDER BY principal, key
ON CONFLICT (principal, key) DO UPDATE SET job_id = k.job_id
RETURNING principal, key, job_id, body_hash;

-- name: point_keys
-- Points keys at the jobs that turned out to answer for them, or drops those whose job was not accepted (null).
-- $1 principals text[], $2 keys text[], $3 job_ids uuid[]
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::uuid[]) AS a (principal, key, job_id)
),
dropped AS (
    DELETE FROM idempotency_keys k USING asked a
    WHERE k.principal = ANY (ARRAY[a.principal]) AND k.key = a.key AND a.job_id IS NULL
)
UPDATE idempotency_keys k SET job_id = a.job_id FROM asked a
WHERE k.principal = ANY (ARRAY[a.principal]) AND k.key = a.key AND a.job_id IS NOT NULL;

-- name: lock_specs
-- Makes those who ask for a twin of the same job wait for each other, until commit.
-- $1 spec_hashes bytea[]
SELECT pg_advisory_xact_lock(number) FROM (
    SELECT DISTINCT ('x' || encode(substring(h FROM 1 FOR 8), 'hex'))::bit(64)::bigint AS number
    FROM unnest($1::bytea[]) AS a (h) ORDER BY number
) numbers;

-- name: find_twins
-- The newest job of the same task, queue and payload that is queued or running, or with `also_done` is done.
-- $1 spec_hashes bytea[], $2 also_done bool[], $3 owners text[] (null: any)
SELECT a.n, twin.id
FROM unnest($1::bytea[], $2::boolean[], $3::text[]) WITH ORDINALITY AS a (spec_hash, also_done, owner, n)
CROSS JOIN LATERAL (
    SELECT jobs.id FROM job_specs JOIN jobs ON jobs.id = ANY (ARRAY[job_specs.job_id]) AND jobs.spec_hash = a.spec_hash
    WHERE job_specs.spec = id_at(a.spec_hash, 1)
        AND (jobs.status IN ('queued', 'running') AND NOT cancel_requested OR a.also_done AND jobs.status = 'done')
        AND (a.owner IS NULL OR jobs.owner = a.owner)
    ORDER BY job_specs.job_id DESC LIMIT 1
) twin;
