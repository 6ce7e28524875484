-- name: reject_if_waiting
-- A person sends a ticket away that is not in progress; an approval that it had is gone with that, and it waits for no
-- other ticket any more.
-- $1 ticket_id uuid, $2 decision_id uuid, $3 by text, $4 why text,
-- $5 version that was seen int (null: any), $6 now timestamptz or null (tests only)
WITH old AS MATERIALIZED (
    SELECT ticket_id, status FROM tickets
    WHERE ticket_id = $1 AND (status IN ('NEW', 'TODO') OR status = 'BLOCKED' AND approved_by IS NOT NULL)
        AND ($5::integer IS NULL OR version = $5)
    FOR UPDATE
),
moved AS (
    UPDATE tickets SET
        status = 'BLOCKED', approved_by = NULL, waits_for_tickets = false,
        blocked_reason = 'rejected by ' || $3::text || CASE $4::text WHEN '' THEN '' ELSE ': ' || $4 END,
        version = version + 1, updated_at = clock($6)
    FROM old WHERE tickets.ticket_id = old.ticket_id
    RETURNING tickets.*
),
decided AS (
    INSERT INTO ticket_decisions (
        decision_id, ticket_id, kind, decided_by, why, from_status, to_status, decided_at
    )
    SELECT $2, moved.ticket_id, 'REJECT', $3, $4, old.status, moved.status, moved.updated_at FROM moved CROSS JOIN old
)
SELECT * FROM moved;
