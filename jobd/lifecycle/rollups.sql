-- fragment: rolled_up
-- Says to the rollups what has ended. It goes by the rows of `ended`, one for each job, with
--   queue, task, status, at         the job as it is now, and when it became so
--   outcome                         of the attempt that ended; null: none did
--   due_at, acquired_at             when that attempt could have started, and when it did
-- A release is no end to be counted: the job starts again from its old place.
rolled_up AS (
    INSERT INTO rollup_parts (at, queue, task, status, outcome, number, wait_s, run_s, waits, runs)
    SELECT
        min(at), queue, task, status, outcome, count(*), sum(wait_s), sum(run_s),
        array_agg(bucket_of(wait_s)::"char"), array_agg(bucket_of(run_s)::"char")
    FROM (
        SELECT
            queue, task, status, at, outcome, greatest(date_part('epoch', acquired_at - due_at), 0) AS wait_s,
            greatest(date_part('epoch', at - acquired_at), 0) AS run_s
        FROM ended WHERE (outcome = 'released') IS NOT TRUE
    ) measured
    GROUP BY queue, task, status, outcome
)

-- name: roll_up_parts
-- Moves a page of what commits have added into the rollups; answers how many rows it took. Nothing waits for the disk: a crash that
-- undoes the one part undoes the other.
-- $1 most int
WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true) AS setting),
parts AS MATERIALIZED (
    DELETE FROM rollup_parts
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM rollup_parts LIMIT $1::integer FOR UPDATE SKIP LOCKED))
        AND (SELECT setting FROM relaxed) = 'off'
    RETURNING date_trunc('minute', at) AS minute, queue, task, status, outcome, number, wait_s, run_s, waits, runs
),
-- There are at most 196 for each minute, queue and task.
buckets AS MATERIALIZED (
    SELECT minute, queue, task, b.wait_no::integer AS wait_no, b.run_no::integer AS run_no, count(*) AS number
    FROM parts CROSS JOIN LATERAL unnest(waits, runs) AS b (wait_no, run_no)
    WHERE outcome IS NOT NULL GROUP BY minute, queue, task, b.wait_no, b.run_no
),
rolled AS (
    INSERT INTO rollups (
        minute, queue, task, done, error, canceled, failed, expired, wait_s, run_s, waits, runs
    )
    SELECT
        minute, queue, task,
        coalesce(sum(number) FILTER (WHERE status = 'done'), 0), coalesce(sum(number) FILTER (WHERE status = 'error'), 0),
        coalesce(sum(number) FILTER (WHERE status = 'canceled'), 0), coalesce(sum(number) FILTER (WHERE outcome = 'failed'), 0),
        coalesce(sum(number) FILTER (WHERE outcome IN ('expired', 'interrupted')), 0),
        coalesce(sum(wait_s) FILTER (WHERE outcome IS NOT NULL), 0), coalesce(sum(run_s) FILTER (WHERE outcome IS NOT NULL), 0),
        ARRAY[
            coalesce(sum(number) FILTER (WHERE wait_no = 0), 0), coalesce(sum(number) FILTER (WHERE wait_no = 1), 0),
            coalesce(sum(number) FILTER (WHERE wait_no = 2), 0), coalesce(sum(number) FILTER (WHERE wait_no = 3), 0),
            coalesce(sum(number) FILTER (WHERE wait_no = 4), 0), coalesce(sum(number) FILTER (WHERE wait_no = 5), 0),
            coalesce(sum(number) FILTER (WHERE wait_no = 6), 0), coalesce(sum(number) FILTER (WHERE wait_no = 7), 0),
            coalesce(sum(number) FILTER (WHERE wait_no = 8), 0), coalesce(sum(number) FILTER (WHERE wait_no = 9), 0),
            coalesce(sum(number) FILTER (WHERE wait_no = 10), 0), coalesce(sum(number) FILTER (WHERE wait_no = 11), 0),
            coalesce(sum(number) FILTER (WHERE wait_no = 12), 0), coalesce(sum(number) FILTER (WHERE wait_no = 13), 0)
        ],
        ARRAY[
            coalesce(sum(number) FILTER (WHERE run_no = 0), 0), coalesce(sum(number) FILTER (WHERE run_no = 1), 0),
            coalesce(sum(number) FILTER (WHERE run_no = 2), 0), coalesce(sum(number) FILTER (WHERE run_no = 3), 0),
            coalesce(sum(number) FILTER (WHERE run_no = 4), 0), coalesce(sum(number) FILTER (WHERE run_no = 5), 0),
            coalesce(sum(number) FILTER (WHERE run_no = 6), 0), coalesce(sum(number) FILTER (WHERE run_no = 7), 0),
            coalesce(sum(number) FILTER (WHERE run_no = 8), 0), coalesce(sum(number) FILTER (WHERE run_no = 9), 0),
            coalesce(sum(number) FILTER (WHERE run_no = 10), 0), coalesce(sum(number) FILTER (WHERE run_no = 11), 0),
            coalesce(sum(number) FILTER (WHERE run_no = 12), 0), coalesce(sum(number) FILTER (WHERE run_no = 13), 0)
        ]
    FROM (
        SELECT
            minute, queue, task, status, outcome, wait_s, run_s, NULL::integer AS wait_no, NULL::integer AS run_no, number
        FROM parts
        UNION ALL
        SELECT minute, queue, task, NULL, NULL, NULL, NULL, wait_no, run_no, number FROM buckets
    ) added
    GROUP BY minute, queue, task
    ORDER BY minute, queue, task  -- one lock order for all nodes
    ON CONFLICT (minute, queue, task) DO UPDATE SET
        done = rollups.done + excluded.done, error = rollups.error + excluded.error,
        canceled = rollups.canceled + excluded.canceled, failed = rollups.failed + excluded.failed,
        expired = rollups.expired + excluded.expired, wait_s = rollups.wait_s + excluded.wait_s,
        run_s = rollups.run_s + excluded.run_s,
        waits = ARRAY(SELECT a + b FROM unnest(rollups.waits, excluded.waits) WITH ORDINALITY AS u (a, b, n) ORDER BY n),
        runs = ARRAY(SELECT a + b FROM unnest(rollups.runs, excluded.runs) WITH ORDINALITY AS u (a, b, n) ORDER BY n)
)
SELECT count(*) AS parts FROM parts;

-- name: read_rollups
-- Rollups of a stretch of time, added up by steps. It reads a bounded number of rows along the index; the row without a queue says
-- how many there were (`done`), and of which minute the last was. Reads only.
-- $1 from timestamptz, $2 to timestamptz, $3 queue text, $4 task text (each null: any), $5 step text (minute or hour),
-- $6 most rows int
WITH stretch AS MATERIALIZED (
    SELECT * FROM rollups WHERE minute >= $1 AND minute < $2 ORDER BY minute, queue, task LIMIT $6::integer
)
SELECT
    date_trunc($5::text, minute, 'UTC') AS at, queue, task, sum(done)::bigint AS done, sum(error)::bigint AS error,
    sum(canceled)::bigint AS canceled, sum(failed)::bigint AS failed, sum(expired)::bigint AS expired,
    sum(wait_s) AS wait_s, sum(run_s) AS run_s,
    ARRAY[
        sum(waits[1]), sum(waits[2]), sum(waits[3]), sum(waits[4]), sum(waits[5]), sum(waits[6]), sum(waits[7]), sum(waits[8]),
        sum(waits[9]), sum(waits[10]), sum(waits[11]), sum(waits[12]), sum(waits[13]), sum(waits[14])
    ]::bigint[] AS waits,
    ARRAY[
        sum(runs[1]), sum(runs[2]), sum(runs[3]), sum(runs[4]), sum(runs[5]), sum(runs[6]), sum(runs[7]), sum(runs[8]),
        sum(runs[9]), sum(runs[10]), sum(runs[11]), sum(runs[12]), sum(runs[13]), sum(runs[14])
    ]::bigint[] AS runs
FROM stretch WHERE ($3::text IS NULL OR queue = $3) AND ($4::text IS NULL OR task = $4)
GROUP BY 1, queue, task
UNION ALL
SELECT max(minute), NULL, NULL, count(*), 0, 0, 0, 0, 0, 0, '{}', '{}' FROM stretch
ORDER BY at, queue, task;

-- name: read_run_times
-- How many attempts of each queue ended in the latest minutes, and how long they ran in all. Reads only.
-- $1 from timestamptz
SELECT queue, sum(run_s) AS run_s, sum((SELECT sum(u.number) FROM unnest(runs) AS u (number)))::bigint AS attempts
FROM rollups WHERE minute >= $1 GROUP BY queue;

-- name: prune_rollups
-- Deletes a batch of rollups of minutes before the cutoff; answers how many.
-- $1 most int, $2 cutoff timestamptz, stretches before it that are not to be touched: $3 from timestamptz[], $4 to timestamptz[]
WITH pruned AS (
    DELETE FROM rollups r USING (
        SELECT minute, queue, task FROM rollups
        WHERE minute < $2 AND (
            SELECT true FROM unnest($3::timestamptz[], $4::timestamptz[]) AS k (low, high)
            WHERE rollups.minute BETWEEN k.low AND k.high LIMIT 1
        ) IS NOT TRUE
        ORDER BY minute, queue, task LIMIT $1::integer FOR UPDATE SKIP LOCKED
    ) old
    WHERE r.minute = ANY (ARRAY[old.minute]) AND r.queue = old.queue AND r.task = old.task
    RETURNING 1
)
SELECT count(*) AS rollups FROM pruned;
