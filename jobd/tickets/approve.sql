-- name: approve_if_new
-- A person lets a NEW ticket become TODO; with four_eyes it must be another than those who wrote it.
-- $1 ticket_id uuid, $2 decision_id uuid, $3 by text, $4 why text, $5 four_eyes bool,
-- $6 version that was seen int (null: any), $7 now timestamptz or null (tests only)
WITH moved AS (
    UPDATE tickets SET
        status = 'TODO', approved_by = $3, todo_no = todo_no + 1, todo_at = clock($7), run_count = 0,
        version = version + 1, updated_at = clock($7)
    WHERE ticket_id = $1 AND status = 'NEW' AND (NOT $5::boolean OR created_by <> $3 AND $3 <> ALL (edited_by))
        AND ($6::integer IS NULL OR version = $6)
    RETURNING *
),
decided AS (
    INSERT INTO ticket_decisions (
        decision_id, ticket_id, kind, decided_by, why, from_status, to_status, decided_at
    )
    SELECT $2, ticket_id, 'APPROVE', $3, $4, 'NEW', status, updated_at FROM moved
)
SELECT * FROM moved;
