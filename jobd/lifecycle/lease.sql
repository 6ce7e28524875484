-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: acquire_leases
-- Takes each resource that is free or whose lease has expired; one without a row back is held by someone else.
-- $1 resource_ids uuid[] (in order), $2 resource_type text, $3 owner text, $4 ttl_s float8,
-- $5 now timestamptz or null (tests only)
INSERT INTO leases AS l (resource_id, resource_type, owner_id, lease_token, lease_expires_at, heartbeat_at, acquired_at)
SELECT
    a.resource_id, $2, $3, gen_random_uuid(), clock($5) + make_interval(secs => $4), clock($5), clock($5)
FROM unnest($1::uuid[]) AS a (resource_id)
ON CONFLICT (resource_id) DO UPDATE SET
    owner_id = excluded.owner_id, lease_token = excluded.lease_token, claim_version = l.claim_version + 1,
    lease_expires_at = clock($5) + make_interval(secs => $4), heartbeat_at = clock($5), acquired_at = clock($5)
WHERE l.lease_expires_at <= (SELECT agreed_clock($5)) AND l.resource_type = excluded.resource_type
RETURNING resource_type, resource_id, owner_id, lease_token, claim_version, lease_expires_at, heartbeat_at;

-- name: renew_leases
-- Extends each lease, of a job or a ticket claim, whose token is current, and whose version is if one is shown; one
-- without a row back is lost. The expiry never goes backwards. A lease that was given a time of its own is extended by
-- that. cancel_requested is null for what is not a job.
-- $1 resource_ids uuid[] (in order), $2 resource_type text, $3 lease_tokens uuid[], $4 claim_versions int[] (null: any),
-- $5 ttl_s float8, $6 now timestamptz or null (tests only)
UPDATE leases l SET
    lease_expires_at = greatest(l.lease_expires_at, clock($6) + make_interval(secs => coalesce(l.ttl_s, $5))),
    heartbeat_at = clock($6), claim_version = l.claim_version + 1
FROM unnest($1::uuid[], $3::uuid[], $4::integer[]) AS a (resource_id, lease_token, claim_version)
WHERE l.resource_id = ANY (ARRAY[a.resource_id]) AND l.resource_type = $2 AND l.lease_token = a.lease_token
    AND (a.claim_version IS NULL OR l.claim_version = a.claim_version)
RETURNING
    l.resource_type, l.resource_id, l.owner_id, l.lease_token, l.claim_version, l.lease_expires_at, l.heartbeat_at,
    l.ttl_s AS lease_ttl_s, (SELECT cancel_requested FROM jobs WHERE jobs.id = l.resource_id) AS cancel_requested;

-- name: release_leases
-- Gives up each lease whose token is current.
-- $1 resource_ids uuid[] (in order), $2 resource_type text, $3 lease_tokens uuid[]
DELETE FROM leases l USING unnest($1::uuid[], $3::uuid[]) AS a (resource_id, lease_token)
WHERE l.resource_id = ANY (ARRAY[a.resource_id]) AND l.resource_type = $2 AND l.lease_token = a.lease_token
RETURNING l.resource_id, l.lease_token;
