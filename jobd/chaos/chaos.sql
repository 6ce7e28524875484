-- For the drill, which reads whole tables of its own jobs. Only its queue counts: a given data directory has others.

-- name: drill_jobs
-- $1 queue text
SELECT
    jobs.id::text AS id, jobs.queue, jobs.status, payload ->> 'kind' AS kind, (payload ->> 'n')::integer AS number,
    payload ->> 'batch' AS batch, group_id::text AS group_id, (result ->> 'n')::integer AS result, attempt_no, attempt_count,
    max_attempts, interruptions, (SELECT d.reason FROM jobd.dead_letters d WHERE d.job_id = jobs.id) AS reason
FROM jobd.jobs WHERE jobs.queue = $1;

-- name: drill_attempts
-- $1 queue text
SELECT
    job_id::text AS job_id, number, lease_token::text AS lease_token, outcome,
    date_part('epoch', a.started_at) AS started_at, date_part('epoch', ended_at) AS ended_at
FROM jobd.attempts a JOIN jobd.jobs ON jobs.id = job_id WHERE jobs.queue = $1;

-- name: drill_groups
-- $1 group_ids uuid[]
SELECT
    id::text AS id, members::integer AS members, done::integer AS done, error::integer AS error, canceled::integer AS canceled
FROM jobd.groups WHERE id = ANY ($1::uuid[]);

-- name: drill_counts
-- $1 queue text
SELECT q.queue, s.status, sum(s.number)::integer AS number
FROM jobd.queue_counts q CROSS JOIN LATERAL (
    VALUES ('queued', q.queued), ('running', q.running), ('done', q.done), ('error', q.error), ('canceled', q.canceled)
) AS s (status, number)
WHERE q.queue = $1 GROUP BY q.queue, s.status HAVING sum(s.number) <> 0;

-- name: drill_leases
-- $1 queue text
SELECT count(*) FROM jobd.leases JOIN jobd.jobs ON jobs.id = resource_id WHERE jobs.queue = $1;

-- name: drill_unfinished
-- Jobs that have not ended, and ends of which dependent jobs and groups have yet to hear.
-- $1 queue text
SELECT
    (SELECT count(*) FROM jobd.jobs WHERE queue = $1 AND status IN ('queued', 'running'))
    + (SELECT count(*) FROM jobd.settled) AS left_over;
