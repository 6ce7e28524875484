-- A LATERAL with OFFSET 0 finds each job by its id, whatever the planner believes about the size of the tables.

-- fragment: summary_columns
id, task, queue, status, priority, run_after, attempt_count, max_attempts, created_at, updated_at, finished_at,
labels::text AS labels, owner

-- fragment: fits
-- Whether a job of the stretch fits the filter.
($4::text[] IS NULL OR status = ANY ($4)) AND ($5::text IS NULL OR task = $5) AND ($6::text IS NULL OR queue = $6)
    AND ($7::text IS NULL OR error->>'code' = $7)
    AND ($8::text IS NULL OR strpos(lower(error->>'message'), lower($8)) > 0)
    AND ($9::text IS NULL OR labels @> $9::text::jsonb) AND ($10::text IS NULL OR owner = $10) AS fits

-- fragment: searched_jobs
-- Those of a bounded stretch of jobs that fit, so that a rare one costs no more than a common one. The last of the stretch is
-- always there, fitting or not: the next page goes on from it.
SELECT
-- include: summary_columns
, fits
FROM (
    SELECT
        *, row_number() OVER (ORDER BY id DESC) = count(*) OVER () AS is_last,
-- include: fits
    FROM stretch
) looked
WHERE fits OR is_last
ORDER BY id DESC;

-- fragment: counted_jobs
-- How many jobs of the stretch fit, and where the next stretch begins: null if this one had no row.
SELECT count(*) FILTER (WHERE fits) AS fitting, (array_agg(id ORDER BY id))[1] AS next_before
FROM (
    SELECT
        id,
-- include: fits
    FROM stretch
) looked;

-- fragment: stretch_of_all
stretch AS (
    SELECT * FROM jobs WHERE id < $1 AND id >= $2 ORDER BY id DESC LIMIT $3::integer
)

-- fragment: stretch_of_dead
letters AS MATERIALIZED (
    SELECT job_id FROM dead_letters WHERE job_id < $1 AND job_id >= $2 ORDER BY job_id DESC LIMIT $3::integer
),
stretch AS (
    SELECT found.* FROM letters
    CROSS JOIN LATERAL (SELECT * FROM jobs WHERE jobs.id = letters.job_id OFFSET 0) found
)

-- fragment: stretch_of_running
-- There are as many as there are hands.
held AS MATERIALIZED (
    SELECT resource_id FROM leases WHERE resource_type = 'JOB' AND resource_id < $1 AND resource_id >= $2
    ORDER BY resource_id DESC LIMIT $3::integer
),
stretch AS (
    SELECT found.* FROM held
    CROSS JOIN LATERAL (SELECT * FROM jobs WHERE jobs.id = held.resource_id OFFSET 0) found
)

-- fragment: stretch_of_waiting
-- To be used while few jobs wait.
waiting AS MATERIALIZED (
    (SELECT id FROM jobs WHERE order_at IS NOT NULL ORDER BY queue, order_at, id LIMIT $3::integer)
    UNION ALL
    (SELECT id FROM jobs WHERE due_at IS NOT NULL ORDER BY due_at, id LIMIT $3)
),
stretch AS (
    SELECT found.*
    FROM (SELECT id FROM waiting WHERE id < $1 AND id >= $2 ORDER BY id DESC LIMIT $3) wanted
    CROSS JOIN LATERAL (SELECT * FROM jobs WHERE jobs.id = wanted.id OFFSET 0) found
)

-- fragment: stretch_of_live
-- Those that wait and those that run; to be used while few wait.
live AS MATERIALIZED (
    (SELECT id FROM jobs WHERE order_at IS NOT NULL ORDER BY queue, order_at, id LIMIT $3::integer)
    UNION ALL
    (SELECT id FROM jobs WHERE due_at IS NOT NULL ORDER BY due_at, id LIMIT $3)
    UNION ALL
    (
        SELECT resource_id FROM leases WHERE resource_type = 'JOB' AND resource_id < $1 AND resource_id >= $2
        ORDER BY resource_id DESC LIMIT $3
    )
),
stretch AS (
    SELECT found.*
    FROM (SELECT id FROM live WHERE id < $1 AND id >= $2 ORDER BY id DESC LIMIT $3) wanted
    CROSS JOIN LATERAL (SELECT * FROM jobs WHERE jobs.id = wanted.id OFFSET 0) found
)

-- fragment: stretch_of_labelled
entries AS MATERIALIZED (
    SELECT job_id FROM job_labels WHERE name = $11 AND value = $12 AND job_id < $1 AND job_id >= $2
    ORDER BY job_id DESC LIMIT $3::integer
),
stretch AS (
    SELECT found.* FROM entries
    CROSS JOIN LATERAL (SELECT * FROM jobs WHERE jobs.id = entries.job_id OFFSET 0) found
)

-- name: search_jobs
-- One page of jobs, newest first. Reads only.
-- $1 before uuid, $2 from uuid (ids order by creation time), $3 stretch int, then each null for any: $4 statuses text[],
-- $5 task text, $6 queue text, $7 code of the error text, $8 part of the error's message text, in any case of letters,
-- $9 labels text (a JSON object: all of them), $10 owner text
WITH
-- include: stretch_of_all
-- include: searched_jobs

-- name: search_dead_jobs
-- The same for jobs that ended in error. Reads only.
-- Parameters as in search_jobs
WITH
-- include: stretch_of_dead
-- include: searched_jobs

-- name: search_running_jobs
-- The same for jobs that run. Reads only.
-- Parameters as in search_jobs
WITH
-- include: stretch_of_running
-- include: searched_jobs

-- name: search_waiting_jobs
-- The same for jobs that wait. Reads only.
-- Parameters as in search_jobs
WITH
-- include: stretch_of_waiting
-- include: searched_jobs

-- name: search_live_jobs
-- The same for jobs that wait or run. Reads only.
-- Parameters as in search_jobs
WITH
-- include: stretch_of_live
-- include: searched_jobs

-- name: search_labelled_jobs
-- The same for jobs with a label, or of an owner. Reads only.
-- Parameters as in search_jobs, then $11 name of the label text ('': the owner), $12 its value text
WITH
-- include: stretch_of_labelled
-- include: searched_jobs

-- name: count_jobs
-- How many jobs of one stretch fit. Reads only.
-- Parameters as in search_jobs
WITH
-- include: stretch_of_all
-- include: counted_jobs

-- name: count_dead_jobs
-- The same for jobs that ended in error. Reads only.
-- Parameters as in search_jobs
WITH
-- include: stretch_of_dead
-- include: counted_jobs

-- name: count_running_jobs
-- The same for jobs that run. Reads only.
-- Parameters as in search_jobs
WITH
-- include: stretch_of_running
-- include: counted_jobs

-- name: count_waiting_jobs
-- The same for jobs that wait. Reads only.
-- Parameters as in search_jobs
WITH
-- include: stretch_of_waiting
-- include: counted_jobs

-- name: count_live_jobs
-- The same for jobs that wait or run. Reads only.
-- Parameters as in search_jobs
WITH
-- include: stretch_of_live
-- include: counted_jobs

-- name: count_labelled_jobs
-- The same for jobs with a label, or of an owner. Reads only.
-- Parameters as in search_jobs, then $11 name of the label text ('': the owner), $12 its value text
WITH
-- include: stretch_of_labelled
-- include: counted_jobs

-- name: waiting_number
-- How many jobs wait in all queues, by counters. Reads only.
SELECT coalesce(sum(queued), 0)::bigint AS number FROM queue_counts;

-- name: list_by_spec
-- Jobs of one specification, newest first. Reads only.
-- $1 spec_hash bytea, $2 before uuid, $3 most int, $4 owner text (null: any), which others do not fit
SELECT
-- include: summary_columns
, $4::text IS NULL OR (owner = $4) IS TRUE AS fits
FROM job_specs JOIN jobs ON jobs.id = ANY (ARRAY[job_specs.job_id]) AND jobs.spec_hash = $1
WHERE job_specs.spec = id_at($1, 1) AND job_id < $2
ORDER BY job_id DESC LIMIT $3::integer;
