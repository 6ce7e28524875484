-- name: unblock_if_blocked
-- A person sets a BLOCKED ticket going: to TODO, or to NEW if nobody's approval stands.
-- $1 ticket_id uuid, $2 decision_id uuid, $3 by text, $4 why text,
-- $5 version that was seen int (null: any), $6 now timestamptz or null (tests only)
WITH moved AS (
    UPDATE tickets SET
        status = CASE WHEN approved_by IS NULL THEN 'NEW' ELSE 'TODO' END,
        todo_no = todo_no + (approved_by IS NOT NULL)::integer,
        todo_at = CASE WHEN approved_by IS NULL THEN todo_at ELSE clock($6) END,
        blocked_reason = NULL, waits_for_tickets = false, run_count = 0, version = version + 1, updated_at = clock($6)
    WHERE ticket_id = $1 AND status = 'BLOCKED' AND ($5::integer IS NULL OR version = $5)
    RETURNING *
),
decided AS (
    INSERT INTO ticket_decisions (
        decision_id, ticket_id, kind, decided_by, why, from_status, to_status, decided_at
    )
    SELECT $2, ticket_id, 'UNBLOCK', $3, $4, 'BLOCKED', status, updated_at FROM moved
)
SELECT * FROM moved;
