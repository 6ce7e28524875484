-- name: create_ticket
-- Writes a NEW ticket; no row back: blocked_on names a ticket that does not exist.
-- $1 ticket_id uuid, $2 title text, $3 acceptance_criteria text (JSON), $4 blocked_on uuid[], $5 repo_ref text,
-- $6 base_branch text, $7 task text, $8 payload text, $9 gates text (JSON), $10 budget_ms bigint, $11 max_runs int,
-- $12 created_by text
WITH moment AS MATERIALIZED (SELECT clock(NULL) AS now)
INSERT INTO tickets (
    ticket_id, title, acceptance_criteria, blocked_on, repo_ref, base_branch, task, payload, gates, budget_ms, max_runs,
    created_by, created_at, updated_at
)
SELECT
    $1, $2, ($3::text)::jsonb, $4::uuid[], $5, $6, $7, ($8::text)::jsonb, ($9::text)::jsonb, $10, $11, $12, now, now
FROM moment
WHERE NOT EXISTS (
    SELECT FROM unnest($4::uuid[]) AS a (blocker)
    WHERE NOT EXISTS (SELECT FROM tickets t WHERE t.ticket_id = a.blocker)
)
RETURNING *;

-- name: unknown_blockers
-- Which of the ids are no tickets. Reads only.
-- $1 ticket_ids uuid[]
SELECT a.ticket_id FROM unnest($1::uuid[]) AS a (ticket_id)
WHERE NOT EXISTS (SELECT FROM tickets t WHERE t.ticket_id = a.ticket_id);
