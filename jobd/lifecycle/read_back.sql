-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: read_back_claims
-- The claims that stand for these jobs and owners: what came of a claim whose answer was lost. Reads only.
-- $1 job_ids uuid[], $2 owners text[]
SELECT
    jobs.id AS job_id, jobs.task, jobs.queue, jobs.payload::text AS payload, jobs.enqueue_id, l.attempt_id, l.attempt_no,
    jobs.attempt_count, jobs.max_attempts, l.lease_token, l.lease_expires_at, jobs.timeout_s, jobs.ttl_s, l.owner_id,
    l.stream, l.message_id, l.ttl_s AS lease_ttl_s, jobs.traceparent, jobs.tracestate,
    date_part('epoch', l.acquired_at - jobs.run_after) AS waited_s, jobs.waits_for IS NOT NULL AS has_inputs
FROM unnest($1::uuid[], $2::text[]) AS a (job_id, owner_id)
JOIN leases l ON l.resource_id = ANY (ARRAY[a.job_id]) AND l.owner_id = a.owner_id
JOIN jobs ON jobs.id = ANY (ARRAY[a.job_id]) AND jobs.status = 'running';

-- name: read_back_jobs
-- Which of the jobs are there: what came of an enqueue whose answer was lost. Reads only.
-- $1 job_ids uuid[]
SELECT a.job_id AS id FROM unnest($1::uuid[]) AS a (job_id)
WHERE (SELECT true FROM jobs WHERE jobs.id = a.job_id);  -- a join could walk through all of the index
