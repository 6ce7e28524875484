-- name: find_work
-- For each poller, whether it has work now: the conditions of mark_ready, find_ready_events, find_open_workorders and
-- find_executed_workorders. Reads only.
SELECT
    (
        SELECT true FROM tickets WHERE status = 'TODO' AND ready_no < todo_no ORDER BY todo_at, ticket_id LIMIT 1
    ) IS TRUE OR (
        SELECT true FROM tickets t
        WHERE waits_for_tickets AND (
            SELECT true FROM unnest(t.blocked_on) AS b (ticket_id)
            WHERE (SELECT status FROM tickets o WHERE o.ticket_id = b.ticket_id) <> 'DONE' LIMIT 1
        ) IS NOT TRUE
        ORDER BY ticket_id LIMIT 1
    ) IS TRUE AS readiness,
    (
        SELECT true FROM ticket_events e
        WHERE NOT processed
            AND (SELECT lease_expires_at > clock(NULL) FROM leases l WHERE l.resource_id = e.event_id) IS NOT TRUE
        ORDER BY created_at, event_id LIMIT 1
    ) IS TRUE AS scheduler,
    (
        SELECT true FROM workorders w
        WHERE status = 'CREATED'
            AND (SELECT lease_expires_at > clock(NULL) FROM leases l WHERE l.resource_id = w.work_order_id) IS NOT TRUE
        ORDER BY created_at, work_order_id LIMIT 1
    ) IS TRUE AS runner,
    (
        SELECT true FROM workorders w
        WHERE status = 'EXECUTED' AND judged_at IS NULL AND NOT awaits_sign_off
            AND (SELECT lease_expires_at > clock(NULL) FROM leases l WHERE l.resource_id = w.work_order_id) IS NOT TRUE
        ORDER BY executed_at, work_order_id LIMIT 1
    ) IS TRUE AS gate;
