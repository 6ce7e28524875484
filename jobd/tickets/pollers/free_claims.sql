-- name: free_claims
-- Frees what owners hold that are known to be dead, so that nobody has to wait for their claims to end; and what ended
-- long ago without being taken over, since nobody needs it any more.
-- $1 owner_ids text[], $2 long ago in s float8, $3 now timestamptz or null (tests only)
DELETE FROM leases
WHERE resource_type IN ('EVENT', 'WORKORDER')
    AND (owner_id = ANY ($1::text[]) OR lease_expires_at < (SELECT agreed_clock($3)) - make_interval(secs => $2))
RETURNING resource_id;
