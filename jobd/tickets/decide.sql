-- name: decide_if_allowed
-- A person decides about a ticket: it moves from where the decision applies, and the decision is kept with name and
-- reason. No row back: the ticket is elsewhere, has changed since that version, or four_eyes asks for another person.
-- What a column is set to where the decision does not touch it is what the constraints of the table demand there anyway.
-- $1 ticket_id uuid, $2 decision_id uuid, $3 kind text (as in ticket_decisions), $4 by text, $5 why text,
-- $6 four_eyes bool (a decision in favour needs another person than the authors),
-- $7 version that was seen int (null: any)
WITH old AS MATERIALIZED (
    SELECT
        ticket_id, status,
        CASE $3::text
            WHEN 'APPROVE' THEN 'TODO'
            WHEN 'REOPEN' THEN 'TODO'
            WHEN 'REJECT' THEN 'BLOCKED'
            -- a rejection took the approval away, and unblocking does not bring it back
            WHEN 'UNBLOCK' THEN CASE WHEN approved_by IS NULL THEN 'NEW' ELSE 'TODO' END
            ELSE status
        END AS to_status
    FROM tickets
    WHERE ticket_id = $1
        AND CASE $3::text
            WHEN 'APPROVE' THEN status = 'NEW'
            WHEN 'REJECT' THEN status IN ('NEW', 'TODO') OR status = 'BLOCKED' AND approved_by IS NOT NULL
            WHEN 'UNBLOCK' THEN status = 'BLOCKED'
            WHEN 'REOPEN' THEN status = 'DONE'
            WHEN 'SIGN_OFF' THEN step = 'SIGN_OFF'
            WHEN 'REFUSE' THEN step = 'SIGN_OFF'
        END
        AND (
            NOT $6::boolean OR $3::text NOT IN ('APPROVE', 'REOPEN', 'SIGN_OFF')
            OR created_by <> $4::text AND $4::text <> ALL (edited_by)
        )
        AND ($7::integer IS NULL OR version = $7)
    FOR UPDATE
),
moved AS (
    UPDATE tickets t SET
        status = old.to_status,
        step = CASE WHEN old.to_status = 'IN_PROGRESS' THEN 'GATE' END,
        approved_by = CASE
            WHEN $3::text IN ('APPROVE', 'REOPEN') THEN $4::text
            WHEN $3::text <> 'REJECT' THEN t.approved_by
        END,
        todo_no = t.todo_no + (old.to_status = 'TODO')::integer,
        todo_at = CASE WHEN old.to_status = 'TODO' THEN clock(NULL) ELSE t.todo_at END,
        run_count = CASE WHEN old.to_status IN ('NEW', 'TODO') THEN 0 ELSE t.run_count END,
        blocked_reason = CASE WHEN $3::text = 'REJECT' THEN
            'rejected by ' || $4::text || CASE $5::text WHEN '' THEN '' ELSE ': ' || $5 END
        END,
        waits_for_tickets = false,
        version = t.version + 1, updated_at = clock(NULL)
    FROM old WHERE t.ticket_id = ANY (ARRAY[old.ticket_id])
    RETURNING t.*
),
answered AS (
    UPDATE workorders w SET awaits_sign_off = false FROM moved
    WHERE w.ticket_id = ANY (ARRAY[moved.ticket_id]) AND w.awaits_sign_off AND $3::text IN ('SIGN_OFF', 'REFUSE')
    RETURNING w.work_order_id
),
decided AS (
    INSERT INTO ticket_decisions (
        decision_id, ticket_id, kind, decided_by, why, from_status, to_status, work_order_id, decided_at
    )
    SELECT $2, moved.ticket_id, $3, $4, $5, old.status, moved.status, answered.work_order_id, moved.updated_at
    FROM moved CROSS JOIN old LEFT JOIN answered ON true
    WHERE ($3::text IN ('SIGN_OFF', 'REFUSE')) = (answered.work_order_id IS NOT NULL)
)
SELECT * FROM moved;
