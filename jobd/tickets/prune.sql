-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see jobd/lifecycle/claim.sql.

-- name: prune_tickets
-- Reads the next few tickets that are DONE for long, the oldest first, deletes those that nobody needs with all their
-- artifacts, and remembers their ids. Kept are those that an unfinished ticket is blocked on, and those with an event or
-- a work order that is held or not processed yet. Returns how many were read, how many were deleted, and the place to go
-- on from. It waits for no lock: a row that is locked is left for the next time.
-- $1 keep_s float8, $2 most int, $3 after updated_at timestamptz, $4 after ticket_id uuid (both null: from the oldest),
-- $5 now timestamptz or null (tests only), $6 cutoff timestamptz (null: keep_s ago by the clock), stretches before the
-- cutoff that are not to be touched: $7 from timestamptz[], $8 to timestamptz[]
WITH stretch AS MATERIALIZED (
    SELECT ticket_id, updated_at FROM tickets
    WHERE status = 'DONE' AND updated_at < (SELECT coalesce($6, clock($5) - make_interval(secs => $1)))
        AND (
            SELECT true FROM unnest($7::timestamptz[], $8::timestamptz[]) AS k (low, high)
            WHERE tickets.updated_at BETWEEN k.low AND k.high LIMIT 1
        ) IS NOT TRUE
        AND (updated_at, ticket_id)
            > (coalesce($3, '-infinity'::timestamptz), coalesce($4, '00000000-0000-0000-0000-000000000000'::uuid))
    ORDER BY updated_at, ticket_id LIMIT $2::integer
),
unneeded AS MATERIALIZED (
    SELECT t.ticket_id FROM stretch s JOIN tickets t ON t.ticket_id = ANY (ARRAY[s.ticket_id])
    WHERE (t.status = 'DONE' AND t.updated_at = s.updated_at) IS TRUE
        AND (
            SELECT true FROM tickets o
            WHERE o.status <> 'DONE' AND o.blocked_on <> '{}' AND o.blocked_on @> ARRAY[t.ticket_id] LIMIT 1
        ) IS NOT TRUE
        AND (
            SELECT true FROM ticket_events e
            WHERE e.ticket_id = t.ticket_id
                AND (NOT e.processed OR (SELECT true FROM leases l WHERE l.resource_id = e.event_id)) LIMIT 1
        ) IS NOT TRUE
        AND (
            SELECT true FROM workorders w
            WHERE w.ticket_id = t.ticket_id AND (SELECT true FROM leases l WHERE l.resource_id = w.work_order_id) LIMIT 1
        ) IS NOT TRUE
    FOR UPDATE OF t SKIP LOCKED
),
pruned AS (DELETE FROM tickets t USING unneeded WHERE t.ticket_id = ANY (ARRAY[unneeded.ticket_id]) RETURNING t.ticket_id),
without_log AS (DELETE FROM ticket_log l USING pruned WHERE l.ticket_id = ANY (ARRAY[pruned.ticket_id])),
without_decisions AS (DELETE FROM ticket_decisions d USING pruned WHERE d.ticket_id = ANY (ARRAY[pruned.ticket_id])),
without_pauses AS (DELETE FROM pause_states p USING pruned WHERE p.ticket_id = ANY (ARRAY[pruned.ticket_id])),
without_records AS (DELETE FROM run_records r USING pruned WHERE r.ticket_id = ANY (ARRAY[pruned.ticket_id])),
without_bundles AS (DELETE FROM output_bundles b USING pruned WHERE b.ticket_id = ANY (ARRAY[pruned.ticket_id])),
without_snapshots AS (DELETE FROM context_snapshots s USING pruned WHERE s.ticket_id = ANY (ARRAY[pruned.ticket_id])),
without_orders AS (
    DELETE FROM workorders w USING pruned WHERE w.ticket_id = ANY (ARRAY[pruned.ticket_id]) RETURNING w.work_order_id
),
without_events AS (
    DELETE FROM ticket_events e USING pruned WHERE e.ticket_id = ANY (ARRAY[pruned.ticket_id]) RETURNING e.event_id
),
claimed AS MATERIALIZED (
    SELECT work_order_id AS resource_id FROM without_orders UNION ALL SELECT event_id FROM without_events
),
without_history AS (DELETE FROM claim_history h USING claimed WHERE h.resource_id = ANY (ARRAY[claimed.resource_id])),
remembered AS (INSERT INTO gone_tickets (ticket_id, gone_at) SELECT ticket_id, (SELECT steady($5)) FROM pruned)
SELECT
    count(*) AS looked, (SELECT count(*) FROM pruned) AS tickets, max(updated_at) AS last_at,
    (array_agg(ticket_id ORDER BY updated_at DESC, ticket_id DESC))[1] AS last_id
FROM stretch;

-- name: forget_gone_tickets
-- Deletes remembered ids of deleted tickets after their own retention; returns their number.
-- $1 keep_gone_s float8, $2 most int, $3 steady time timestamptz (null: as Postgres knows it)
WITH old AS MATERIALIZED (
    SELECT ticket_id FROM gone_tickets WHERE gone_at < (SELECT steady($3) - make_interval(secs => $1))
    ORDER BY gone_at LIMIT $2::integer FOR UPDATE SKIP LOCKED
),
forgotten AS (
    DELETE FROM gone_tickets g USING old WHERE g.ticket_id = ANY (ARRAY[old.ticket_id]) RETURNING 1
)
SELECT count(*) FROM forgotten;
