-- name: group_dead_letters
-- The newest dead letters by the code of their error and their task; the group with the newest letter first. `looked_at` is
-- how many letters there were in the stretch, `groups` how many groups they make. Reads only.
-- A LATERAL with OFFSET 0 finds each job by its id, whatever the planner believes about the size of the tables.
-- $1 stretch int, $2 most groups int, $3 characters of an example's message int
WITH letters AS MATERIALIZED (
    SELECT job_id, task, at, redriven_to FROM dead_letters
    WHERE job_id <= 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid ORDER BY job_id DESC LIMIT $1::integer
),
coded AS MATERIALIZED (
    SELECT letters.*, found.code FROM letters
    CROSS JOIN LATERAL (SELECT coalesce(error->>'code', '') AS code FROM jobs WHERE jobs.id = letters.job_id OFFSET 0) found
),
grouped AS MATERIALIZED (
    SELECT
        code, task, count(*) AS number, count(*) FILTER (WHERE redriven_to IS NULL) AS open, min(at) AS first_at,
        max(at) AS last_at, (array_agg(job_id ORDER BY job_id DESC))[1] AS example_id
    FROM coded GROUP BY code, task
)
SELECT
    code, task, number, open, first_at, last_at, example_id, found.message,
    (SELECT count(*) FROM letters) AS looked_at, count(*) OVER () AS groups
FROM grouped
CROSS JOIN LATERAL (
    SELECT coalesce(left(error->>'message', $3::integer), '') AS message FROM jobs WHERE jobs.id = grouped.example_id OFFSET 0
) found
ORDER BY example_id DESC LIMIT $2::integer;
