-- name: edit_if_new
-- Changes a NEW ticket, unless it was changed since it was read (compare-and-set on the version).
-- $1 ticket_id uuid, $2 title text, $3 acceptance_criteria text (JSON), $4 blocked_on uuid[], $5 repo_ref text,
-- $6 base_branch text, $7 task text, $8 payload text, $9 gates text (JSON), $10 budget_ms bigint, $11 max_runs int,
-- $12 version int, $13 edited_by text or null (nobody knows)
UPDATE tickets SET
    title = $2, acceptance_criteria = ($3::text)::jsonb, blocked_on = $4::uuid[], repo_ref = $5, base_branch = $6,
    task = $7, payload = ($8::text)::jsonb, gates = ($9::text)::jsonb, budget_ms = $10, max_runs = $11,
    edited_by = CASE WHEN $13 = ANY (edited_by) THEN edited_by ELSE array_remove(edited_by || $13::text, NULL) END,
    version = version + 1, updated_at = clock(NULL)
WHERE ticket_id = $1 AND status = 'NEW' AND version = $12
RETURNING *;

-- name: waits_for_itself
-- Whether a ticket that is blocked on these would wait for itself, directly or through other tickets. Reads only.
-- $1 ticket_id uuid, $2 blocked_on uuid[]
WITH RECURSIVE ahead (ticket_id) AS (
    SELECT unnest($2::uuid[])
    UNION
    SELECT unnest(t.blocked_on) FROM ahead JOIN tickets t ON t.ticket_id = ANY (ARRAY[ahead.ticket_id])
)
SELECT EXISTS (SELECT FROM ahead WHERE ticket_id = $1) AS is_so;
