-- name: sign_off_if_awaited
-- A person says what they think of an output that waits for them; the gate goes on from there.
-- $1 ticket_id uuid, $2 decision_id uuid, $3 by text, $4 why text, $5 accept bool, $6 four_eyes bool,
-- $7 version that was seen int (null: any), $8 now timestamptz or null (tests only)
WITH moved AS (
    UPDATE tickets SET step = 'GATE', version = version + 1, updated_at = clock($8)
    WHERE ticket_id = $1 AND step = 'SIGN_OFF' AND (NOT $6::boolean OR NOT $5::boolean OR created_by <> $3 AND $3 <> ALL (edited_by))
        AND ($7::integer IS NULL OR version = $7)
    RETURNING *
),
answered AS (
    UPDATE workorders w SET awaits_sign_off = false FROM moved
    WHERE w.ticket_id = ANY (ARRAY[moved.ticket_id]) AND w.awaits_sign_off
    RETURNING w.work_order_id
),
decided AS (
    INSERT INTO ticket_decisions (
        decision_id, ticket_id, kind, decided_by, why, from_status, to_status, work_order_id, decided_at
    )
    SELECT
        $2, moved.ticket_id, CASE WHEN $5 THEN 'SIGN_OFF' ELSE 'REFUSE' END, $3, $4, moved.status, moved.status,
        answered.work_order_id, moved.updated_at
    FROM moved CROSS JOIN answered
)
SELECT * FROM moved;
