-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: leased_messages
-- The messages of a stream whose jobs have a lease. Reads only.
-- $1 stream text
SELECT message_id FROM leases WHERE stream = $1;

-- name: queued_among
-- Those of the jobs that wait in the queue. Reads only.
-- $1 job_ids uuid[]
SELECT id AS job_id FROM jobs WHERE id = ANY($1::uuid[]) AND status = 'queued';

-- name: held_among
-- Those of the jobs whose lease has not expired. Reads only.
-- $1 job_ids uuid[]
SELECT resource_id AS job_id FROM leases
WHERE resource_id = ANY($1::uuid[]) AND (lease_expires_at < agreed_clock(NULL)) IS NOT TRUE;
