-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: append_events
-- Keeps what handlers emitted, one chunk for each job, numbered on from the attempt's last event. A job without a row
-- back is not this holder's any more, or sent the same before; nothing is kept then.
-- Of a job whose events have more bytes than they may, nothing more is kept. What is not kept is counted in one `dropped` event:
-- the last one of the attempt, as long as nothing was kept after it, else a new one.
-- $1 job_ids uuid[] (in order, each once), $2 lease_tokens uuid[], $3 how many events to keep int[], $4 chunks text[] (JSON
-- arrays of those), $5 how many the holder sent before int[] (null: it does not count), $6 event text ('events', or 'seen'
-- if Redis has them already), $7 now timestamptz or null (tests only), $8 how many were sent now int[], $9 most bytes of a
-- job bigint
WITH asked AS MATERIALIZED (
    SELECT
        *, octet_length(chunk) AS size
    FROM unnest($1::uuid[], $2::uuid[], $3::integer[], $4::text[], $5::integer[], $8::integer[]) WITH ORDINALITY
        AS a (job_id, lease_token, number, chunk, told_n, emitted, n)
),
numbered AS (
    UPDATE leases l SET
        told_n = l.told_n + a.emitted,
        -- Counted from the job's earlier attempts on; their bytes are looked up once in an attempt.
        event_bytes = a.size + coalesce(
            l.event_bytes, (SELECT coalesce(sum(e.size), 0) FROM event_log e WHERE e.job_id = l.resource_id)
        ),
        event_n = l.event_n + CASE
            WHEN a.number > 0 AND coalesce(l.event_bytes, 0) < $9::bigint THEN a.number + (a.number < a.emitted)::integer
            WHEN EXISTS (
                SELECT FROM event_log e
                WHERE e.job_id = l.resource_id AND e.attempt_no = l.attempt_no AND e.first_n > l.event_n - 200
                    AND e.last_n = l.event_n AND e.events -> -1 ->> 'type' = 'dropped'
            ) THEN 0
            ELSE 1
        END
    FROM asked a
    WHERE l.resource_id = ANY (ARRAY[a.job_id]) AND l.lease_token = a.lease_token AND l.attempt_no IS NOT NULL
        AND l.told_n = coalesce(a.told_n, l.told_n)
    RETURNING
        a.n, l.resource_id, l.attempt_no, l.event_n AS last_n, a.chunk, a.number, a.emitted,
        -- As above, seen from behind: before the first batch of an attempt nothing had been counted.
        a.number = 0 OR (l.told_n > a.emitted AND l.event_bytes - a.size >= $9::bigint) AS none_kept,
        (l.told_n > a.emitted AND l.event_bytes - a.size >= $9::bigint) AS is_over
),
sorted AS (
    SELECT
        *, none_kept AND EXISTS (
            SELECT FROM event_log e
            WHERE e.job_id = resource_id AND e.attempt_no = numbered.attempt_no AND e.first_n > numbered.last_n - 200
                AND e.last_n = numbered.last_n AND e.events -> -1 ->> 'type' = 'dropped'
        ) AS is_counted_only,
        CASE WHEN none_kept THEN emitted ELSE emitted - number END AS dropped,
        CASE WHEN none_kept THEN '[]' ELSE chunk END AS kept_chunk
    FROM numbered
),
counted AS (
    UPDATE event_log e
    SET events = jsonb_set(
        e.events, '{-1,data,count}', to_jsonb(coalesce((e.events -> -1 -> 'data' ->> 'count')::bigint, 0) + s.dropped)
    )
    FROM sorted s
    WHERE s.is_counted_only AND e.job_id = ANY (ARRAY[s.resource_id]) AND e.attempt_no = s.attempt_no
        AND e.first_n > s.last_n - 200 AND e.last_n = s.last_n
),
fresh AS (
    SELECT
        resource_id, attempt_no, last_n, last_n + 1 - (CASE WHEN none_kept THEN 0 ELSE number END) - (dropped > 0)::integer
            AS first_n,
        CASE WHEN dropped = 0 THEN kept_chunk::jsonb ELSE kept_chunk::jsonb || jsonb_build_object(
            'type', 'dropped', 'ts', (extract(epoch FROM clock($7)) * 1000)::bigint, 'step', '', 'data',
            jsonb_build_object('count', dropped, 'reason', CASE WHEN is_over THEN 'job_events_mb' ELSE 'min_free_mb' END)
        ) END AS events,
        octet_length(kept_chunk) AS size
    FROM sorted WHERE NOT is_counted_only
),
kept AS (
    INSERT INTO event_log (job_id, attempt_no, first_n, last_n, events, size, at)
    SELECT resource_id, attempt_no, first_n, last_n, events, size, clock($7) FROM fresh
),
outboxed AS (
    INSERT INTO outbox (at, event, job_ids, versions, attempts, event_ns)
    SELECT
        clock($7), $6::text, array_agg(resource_id), array_agg(0), array_agg(attempt_no), array_agg(first_n)
    FROM fresh HAVING count(*) > 0
)
SELECT n, attempt_no, last_n FROM numbered;

-- name: emitted_before
-- How many events the holders of these leases have sent; one without a row has lost its lease. Reads only.
-- $1 job_ids uuid[], $2 lease_tokens uuid[]
SELECT a.n, l.attempt_no, l.event_n AS last_n, l.told_n
FROM unnest($1::uuid[], $2::uuid[]) WITH ORDINALITY AS a (job_id, lease_token, n)
JOIN leases l ON l.resource_id = ANY (ARRAY[a.job_id]) AND l.lease_token = a.lease_token;

-- name: read_history
-- What has happened to jobs since the event that each reader knows: the job, its attempts and their chunks of events, as
-- far as they are of use for that. A job without a row is unknown, or gone. Reads only.
-- $1 job_ids uuid[], $2 attempts int[], $3 event numbers int[], $4 most chunks of a job int, $5 most events of a chunk int,
-- $6 bytes of a job's chunks after which no other is taken int
SELECT
    a.n, jobs.status, jobs.task, jobs.queue, jobs.attempt_no,
    (extract(epoch FROM jobs.created_at) * 1000)::bigint AS created_ts,
    (extract(epoch FROM jobs.finished_at) * 1000)::bigint AS finished_ts,
    CASE WHEN jobs.status IN ('error', 'canceled') THEN jobs.error::text END AS error,
    (extract(epoch FROM leases.acquired_at) * 1000)::bigint AS acquired_ts, leases.event_n AS open_n,
    ARRAY(
        SELECT jsonb_build_array(
            number, (extract(epoch FROM started_at) * 1000)::bigint, (extract(epoch FROM ended_at) * 1000)::bigint, outcome,
            led_to, event_n, error
        )::text
        FROM attempts WHERE job_id = jobs.id AND number >= a.attempt ORDER BY number
    ) AS attempts,
    coalesce(log.chunks, '{}') AS chunks, coalesce(log.is_cut, false) AS is_cut
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
) log ON true;

-- name: last_chunks
-- Where the newest chunks of jobs begin that have at most the given bytes together, one chunk at least. A job without a
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
