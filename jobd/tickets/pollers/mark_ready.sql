-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see jobd/lifecycle/claim.sql. So does `IS TRUE`: without
-- it, an index on the status offers itself, and all that stand there would be compared with the whole batch.

-- name: mark_ready
-- Writes a TICKET_READY event once for every time that a ticket became TODO, the oldest first; and lets tickets become TODO again
-- that waited for others which are all DONE now; one that is not there any more was DONE. Skips what others are just
-- working on.
-- $1 most int, $2 event_ids uuid[] (as many, for the new events)
WITH ripe AS MATERIALIZED (
    SELECT ticket_id FROM tickets WHERE status = 'TODO' AND ready_no < todo_no
    ORDER BY todo_at, ticket_id LIMIT $1::integer FOR UPDATE SKIP LOCKED
),
marked AS (
    UPDATE tickets t SET ready_no = t.todo_no, version = t.version + 1, updated_at = clock(NULL) FROM ripe
    WHERE t.ticket_id = ANY (ARRAY[ripe.ticket_id]) AND (t.status = 'TODO' AND t.ready_no < t.todo_no) IS TRUE
    RETURNING t.ticket_id, t.todo_no, t.todo_at
),
created AS (
    INSERT INTO ticket_events (event_id, ticket_id, todo_no, created_at)
    SELECT ($2::uuid[])[row_number() OVER (ORDER BY todo_at, ticket_id)], ticket_id, todo_no, clock(NULL) FROM marked
    ON CONFLICT ON CONSTRAINT one_event_per_transition DO NOTHING
),
freed AS MATERIALIZED (
    SELECT ticket_id FROM tickets t
    WHERE waits_for_tickets AND (
        SELECT true FROM unnest(t.blocked_on) AS b (ticket_id)
        WHERE (SELECT status FROM tickets o WHERE o.ticket_id = b.ticket_id) <> 'DONE' LIMIT 1
    ) IS NOT TRUE
    ORDER BY ticket_id LIMIT $1::integer FOR UPDATE SKIP LOCKED
),
returned AS (
    UPDATE tickets t SET
        status = 'TODO', blocked_reason = NULL, waits_for_tickets = false, todo_no = t.todo_no + 1, todo_at = clock(NULL),
        version = t.version + 1, updated_at = clock(NULL)
    FROM freed WHERE t.ticket_id = ANY (ARRAY[freed.ticket_id]) AND t.waits_for_tickets
    RETURNING t.ticket_id
)
SELECT (SELECT count(*) FROM marked) AS ready, (SELECT count(*) FROM returned) AS returned;
