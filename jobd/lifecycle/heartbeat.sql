-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: heartbeat_leases
-- Extends every lease its caller still holds and tells whether its job is to be canceled; a token without a row back is
-- lost. A caller that shows a version also loses if it has moved. The expiry never goes backwards.
-- A lease that was given a time of its own is extended by that.
-- $1 job_ids uuid[] (in order), $2 lease_tokens uuid[], $3 claim_versions int[] (null: any), $4 ttl_s float8,
-- $5 now timestamptz or null (tests only)
UPDATE leases l SET
    lease_expires_at = greatest(l.lease_expires_at, clock($5) + make_interval(secs => coalesce(l.ttl_s, $4))),
    heartbeat_at = clock($5),
    claim_version = l.claim_version + 1
FROM unnest($1::uuid[], $2::uuid[], $3::integer[]) AS a (job_id, lease_token, claim_version)
WHERE l.resource_id = ANY (ARRAY[a.job_id]) AND l.lease_token = a.lease_token
    AND (a.claim_version IS NULL OR l.claim_version = a.claim_version)
RETURNING
    l.resource_id AS job_id, l.lease_token, l.lease_expires_at, l.claim_version, l.ttl_s AS lease_ttl_s,
    (SELECT cancel_requested FROM jobs WHERE jobs.id = l.resource_id) AS cancel_requested;
