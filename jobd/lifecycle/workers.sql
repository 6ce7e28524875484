-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: list_workers
-- Who holds leases of jobs, the longest silent first, and how many there are in all. Goes through all leases, of which
-- there are as many as jobs in progress. Reads only.
-- $1 most int
SELECT
    owner_id, count(*) AS jobs, min(acquired_at) AS oldest_lease_at, max(heartbeat_at) AS heartbeat_at,
    min(lease_expires_at) AS lease_expires_at, count(*) OVER () AS total
FROM leases WHERE resource_type = 'JOB'
GROUP BY owner_id ORDER BY max(heartbeat_at), owner_id LIMIT $1::integer;

-- name: list_held_jobs
-- Jobs in progress, the longest held first, with the newest progress among the last chunks of each. Reads only.
-- $1 most int, $2 most chunks of a job int, $3 owner text (null: any)
SELECT
    held.resource_id AS job_id, jobs.task, jobs.queue, held.owner_id, held.attempt_no, held.acquired_at,
    jobs.cancel_requested, progress.event ->> 'step' AS step, (progress.event -> 'data')::text AS data
FROM (
    SELECT resource_id, owner_id, attempt_no, acquired_at FROM leases
    WHERE resource_type = 'JOB' AND (
        $3::text IS NULL
        OR (SELECT true FROM job_labels l WHERE l.name = '' AND l.value = $3 AND l.job_id = resource_id) IS TRUE
    )
    ORDER BY acquired_at, resource_id LIMIT $1::integer
) held
JOIN jobs ON jobs.id = ANY (ARRAY[held.resource_id])
LEFT JOIN LATERAL (
    SELECT one.event
    FROM (
        SELECT first_n, events FROM event_log
        WHERE event_log.job_id = held.resource_id AND event_log.attempt_no = held.attempt_no
        ORDER BY first_n DESC LIMIT $2::integer
    ) recent CROSS JOIN LATERAL jsonb_array_elements(recent.events) WITH ORDINALITY AS one (event, n)
    WHERE one.event ->> 'type' = 'progress' ORDER BY recent.first_n DESC, one.n DESC LIMIT 1
) progress ON true
ORDER BY held.acquired_at, held.resource_id;
