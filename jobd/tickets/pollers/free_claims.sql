-- name: free_claims
-- Deletes the leases of owners that are known to be dead, so that nobody has to wait for their expiry; and leases that
-- expired long ago and were never taken over, since their event or work order is finished.
-- $1 owner_ids text[], $2 long ago in s float8
DELETE FROM leases
WHERE resource_type IN ('EVENT', 'WORKORDER')
    AND (owner_id = ANY ($1::text[]) OR lease_expires_at < (SELECT agreed_clock(NULL)) - make_interval(secs => $2))
RETURNING resource_id;
