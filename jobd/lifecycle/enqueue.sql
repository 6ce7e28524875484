-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: enqueue_jobs
-- Inserts new jobs up to each queue's limit; a job without a row back found its queue full.
-- $1 ids uuid[], $2 tasks text[], $3 queues text[], $4 payloads text[], $5 priorities int[],
-- $6 run_after timestamptz[] (null: now; the past counts as now), $7 delay_s float8[], $8 max_attempts int[],
-- $9 timeout_s float8[], $10 ttl_s int[], $11 spec_hashes bytea[],
-- $12 most queued jobs a queue may have int (null: no limit), $13 now timestamptz or null (tests only)
WITH moment AS MATERIALIZED (SELECT clock($13) AS now),
room AS MATERIALIZED (
    SELECT
        queue,
        $12::integer - coalesce((SELECT sum(c.queued)::bigint FROM queue_counts c WHERE c.queue = q.queue), 0) AS room
    FROM (SELECT DISTINCT queue FROM unnest($3::text[]) AS a (queue)) q
),
added AS (
    INSERT INTO jobs (
        id, task, queue, payload, priority, run_after, order_at, due_at, max_attempts, timeout_s, ttl_s, spec_hash,
        at_instant, created_at, updated_at
    )
    SELECT
        id, task, queue, payload::jsonb, priority, starts_at,
        CASE WHEN starts_at <= now THEN place(starts_at, priority) END,
        CASE WHEN starts_at > now THEN starts_at END,
        max_attempts, timeout_s, ttl_s, spec_hash, coalesce(run_after > now, false), now, now
    FROM (
        SELECT
            a.*, m.now, greatest(a.run_after, m.now) + make_interval(secs => a.delay_s) AS starts_at,
            row_number() OVER (PARTITION BY a.queue ORDER BY a.n) AS place
        FROM moment m CROSS JOIN unnest(
            $1::uuid[], $2::text[], $3::text[], $4::text[], $5::integer[], $6::timestamptz[], $7::double precision[],
            $8::integer[], $9::double precision[], $10::integer[], $11::bytea[]
        ) WITH ORDINALITY AS a (
            id, task, queue, payload, priority, run_after, delay_s, max_attempts, timeout_s, ttl_s, spec_hash, n
        )
    ) placed
    WHERE $12::integer IS NULL OR place <= (SELECT r.room FROM room r WHERE r.queue = placed.queue)
    RETURNING id, queue, version, created_at, spec_hash
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
SELECT id, created_at FROM added;

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
-- $1 spec_hashes bytea[], $2 also_done bool[]
SELECT a.n, twin.id
FROM unnest($1::bytea[], $2::boolean[]) WITH ORDINALITY AS a (spec_hash, also_done, n)
CROSS JOIN LATERAL (
    SELECT jobs.id FROM job_specs JOIN jobs ON jobs.id = ANY (ARRAY[job_specs.job_id]) AND jobs.spec_hash = a.spec_hash
    WHERE job_specs.spec = id_at(a.spec_hash, 1)
        AND (jobs.status IN ('queued', 'running') AND NOT cancel_requested OR a.also_done AND jobs.status = 'done')
    ORDER BY job_specs.job_id DESC LIMIT 1
) twin;
