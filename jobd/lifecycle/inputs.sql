-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: read_inputs
-- What the jobs and groups that a job depends on have ended with, in the order of its submit; of a group its counters. Results beyond
-- the limit, counted over those of one job, are left out, as are those in files (result_ref). Reads only.
-- $1 job_ids uuid[], $2 most bytes of results bigint
SELECT
    n, on_id, is_group, ref, status, CASE WHEN sum(bytes) OVER before_it <= $2::bigint THEN result END AS result, error,
    result_ref IS NOT NULL OR sum(bytes) OVER before_it > $2 AS is_large
FROM (
    SELECT
        a.n, d.on_id, d.is_group, d.ref, d.place, p.status, p.result, p.error, p.result_ref,
        coalesce(octet_length(p.result), 0) AS bytes
    FROM unnest($1::uuid[]) WITH ORDINALITY AS a (job_id, n)
    JOIN dependencies d ON d.job_id = ANY (ARRAY[a.job_id])
    CROSS JOIN LATERAL (
        SELECT
            jobs.status, jobs.result::text AS result, jobs.result_ref,
            CASE WHEN jobs.status <> 'done' THEN jobs.error::text END AS error
        FROM jobs WHERE jobs.id = d.on_id AND NOT d.is_group
        UNION ALL
        SELECT
            CASE WHEN g.finished_at IS NULL THEN 'running' WHEN g.error - g.retried + g.canceled > 0 THEN 'error' ELSE 'done' END,
            json_build_object(
                'members', g.members, 'done', g.done, 'error', g.error, 'canceled', g.canceled, 'retried', g.retried
            )::text, NULL, NULL
        FROM groups g WHERE g.id = d.on_id AND d.is_group
    ) p
) found
WINDOW before_it AS (PARTITION BY n ORDER BY place)
ORDER BY n, place;

-- name: read_payloads
-- $1 job_ids uuid[]
SELECT jobs.id AS job_id, jobs.payload::text AS payload FROM jobs WHERE jobs.id = ANY ($1::uuid[]);

-- name: write_payloads
-- $1 job_ids uuid[], $2 payloads text[]
UPDATE jobs SET payload = a.payload::jsonb
FROM unnest($1::uuid[], $2::text[]) AS a (job_id, payload)
WHERE jobs.id = ANY (ARRAY[a.job_id]) AND jobs.status = 'queued';
