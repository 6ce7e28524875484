-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: append_events
-- Keeps what holders tell, one chunk for each job, numbered on from what its attempt has told before. A job without a row
-- back is not this holder's any more, or was told the same before; nothing is kept then.
-- $1 job_ids uuid[] (in order, each once), $2 lease_tokens uuid[], $3 how many events int[], $4 chunks text[] (JSON arrays),
-- $5 how many the holder told before int[] (null: it does not count), $6 event text ('events', or 'seen' if Redis has them
-- already), $7 now timestamptz or null (tests only)
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::integer[], $4::text[], $5::integer[]) WITH ORDINALITY
        AS a (job_id, lease_token, number, chunk, told_n, n)
),
numbered AS (
    UPDATE leases l SET event_n = l.event_n + a.number, told_n = l.told_n + a.number FROM asked a
    WHERE l.resource_id = ANY (ARRAY[a.job_id]) AND l.lease_token = a.lease_token AND l.attempt_no IS NOT NULL
        AND l.told_n = coalesce(a.told_n, l.told_n)
    RETURNING a.n, l.resource_id, l.attempt_no, l.event_n - a.number + 1 AS first_n, l.event_n AS last_n, a.chunk
),
kept AS (
    INSERT INTO event_log (job_id, attempt_no, first_n, last_n, events, size, at)
    SELECT resource_id, attempt_no, first_n, last_n, chunk::jsonb, octet_length(chunk), clock($7) FROM numbered
),
told AS (
    INSERT INTO outbox (at, event, job_ids, versions, attempts, event_ns)
    SELECT
        clock($7), $6::text, array_agg(resource_id), array_agg(0), array_agg(attempt_no), array_agg(first_n)
    FROM numbered HAVING count(*) > 0
)
SELECT n, attempt_no, last_n FROM numbered;

-- name: told_before
-- How much the holders of these leases have told; one without a row has lost its lease. Reads only.
-- $1 job_ids uuid[], $2 lease_tokens uuid[]
SELECT a.n, l.attempt_no, l.event_n AS last_n, l.told_n
FROM unnest($1::uuid[], $2::uuid[]) WITH ORDINALITY AS a (job_id, lease_token, n)
JOIN leases l ON l.resource_id = ANY (ARRAY[a.job_id]) AND l.lease_token = a.lease_token;

-- name: read_history
-- What has happened to jobs since the event that each reader knows: the job, its attempts and the chunks they told, as
-- far as they are of use for that. A job without a row is unknown, or gone. Reads only.
-- $1 job_ids uuid[], $2 attempts int[], $3 event numbers int[], $4 most chunks of a job int, $5 most events of a chunk int,
-- $6 bytes of a job's chunks after which no other is taken int
SELECT
    a.n, jobs.status, jobs.task, jobs.queue, jobs.attempt_no,
    (extract(epoch FROM jobs.created_at) * 1000)::bigint AS created_ts,
    (extract(epoch FROM jobs.finished_at) * 1000)::bigint AS finished_ts,
    CASE WHEN jobs.status = 'error' THEN jobs.error::text END AS error,
    (extract(epoch FROM leases.acquired_at) * 1000)::bigint AS acquired_ts, leases.event_n AS open_n,
    ARRAY(
        SELECT jsonb_build_array(
            number, (extract(epoch FROM started_at) * 1000)::bigint, (extract(epoch FROM ended_at) * 1000)::bigint, outcome,
            led_to, event_n, error
        )::text
        FROM attempts WHERE job_id = jobs.id AND number >= a.attempt ORDER BY number
    ) AS attempts,
    coalesce(told.chunks, '{}') AS chunks, coalesce(told.is_cut, false) AS is_cut
FROM unnest($1::uuid[], $2::integer[], $3::integer[]) WITH ORDINALITY AS a (job_id, attempt, event_n, n)
JOIN jobs ON jobs.id = ANY (ARRAY[a.job_id])
LEFT JOIN leases ON leases.resource_id = ANY (ARRAY[jobs.id])
LEFT JOIN LATERAL (
    SELECT
        -- Only what is taken is written out, and read from where long values are kept.
        array_agg(jsonb_build_array(attempt_no, first_n, events)::text ORDER BY attempt_no, first_n)
            FILTER (WHERE bytes_before < $6::integer AND place <= $4::integer) AS chunks,
        bool_or(bytes_before >= $6::integer OR place > $4::integer) AS is_cut
    FROM (
        SELECT
            attempt_no, first_n, events, row_number() OVER in_order AS place,
            sum(size) OVER in_order - size AS bytes_before
        FROM (
            -- A chunk from before sizes were kept: a guess from what it takes on disk.
            SELECT attempt_no, first_n, events, coalesce(size, pg_column_size(events) * 4) AS size FROM event_log
            -- The chunk that holds the reader's event begins no further back than a chunk is long.
            WHERE job_id = jobs.id AND (attempt_no, first_n) > (a.attempt, a.event_n - $5::integer)
                AND (attempt_no, last_n) > (a.attempt, a.event_n)
            ORDER BY attempt_no, first_n LIMIT $4::integer + 1
        ) next
        WINDOW in_order AS (ORDER BY attempt_no, first_n)
    ) counted
) told ON true;

-- name: last_chunks
-- Where the newest chunks of jobs begin that have no more than so many bytes together, one chunk at least. A job without a
-- row has no others. Reads only.
-- $1 job_ids uuid[], $2 most chunks of a job int, $3 most bytes int
SELECT a.n, kept.attempt_no, kept.first_n
FROM unnest($1::uuid[]) WITH ORDINALITY AS a (job_id, n)
CROSS JOIN LATERAL (
    SELECT attempt_no, first_n, is_last FROM (
        SELECT
            attempt_no, first_n, row_number() OVER newest_first AS place, sum(size) OVER newest_first AS bytes,
            lead(first_n) OVER newest_first IS NULL AS is_last
        FROM (
            SELECT attempt_no, first_n, coalesce(size, pg_column_size(events) * 4) AS size FROM event_log
            WHERE job_id = a.job_id ORDER BY attempt_no DESC, first_n DESC LIMIT $2::integer + 1
        ) newest
        WINDOW newest_first AS (ORDER BY attempt_no DESC, first_n DESC)
    ) counted
    WHERE place <= $2::integer AND (bytes <= $3::integer OR place = 1)
    ORDER BY attempt_no, first_n LIMIT 1
) kept
WHERE NOT kept.is_last;
