-- The artifacts of one ticket, each oldest first. All of them only read; the caller reads them in one snapshot.

-- name: read_events
-- $1 ticket_id uuid
SELECT event_id, type, ticket_id, todo_no, processed, reason, created_at, processed_at
FROM ticket_events WHERE ticket_id = $1 ORDER BY todo_no;

-- name: read_snapshots
-- $1 ticket_id uuid
SELECT * FROM context_snapshots WHERE ticket_id = $1 ORDER BY created_at, snapshot_id;

-- name: read_workorders
-- $1 ticket_id uuid
SELECT
    work_order_id, event_id, ticket_id, diazotroph_type, context_snapshot_id, branch_name, budget_ms, status, job_id,
    created_at, executed_at
FROM workorders WHERE ticket_id = $1 ORDER BY created_at, work_order_id;

-- name: read_bundles
-- $1 ticket_id uuid
SELECT * FROM output_bundles WHERE ticket_id = $1 ORDER BY created_at, output_id;

-- name: read_run_records
-- $1 ticket_id uuid
SELECT * FROM run_records WHERE ticket_id = $1 ORDER BY created_at, run_id;

-- name: read_pauses
-- $1 ticket_id uuid
SELECT * FROM pause_states WHERE ticket_id = $1 ORDER BY created_at, pause_id;

-- name: read_decisions
-- $1 ticket_id uuid
SELECT * FROM ticket_decisions WHERE ticket_id = $1 ORDER BY decided_at, decision_id;

-- name: read_log
-- What happened to tickets after a given line of each. Reads only.
-- $1 ticket_ids uuid[], $2 after versions int[], $3 most for each int
SELECT line.* FROM unnest($1::uuid[], $2::integer[]) AS a (ticket_id, after)
CROSS JOIN LATERAL (
    SELECT ticket_id, version, type, data, at FROM ticket_log l
    WHERE l.ticket_id = a.ticket_id AND l.version > a.after ORDER BY l.version LIMIT $3::integer
) line
ORDER BY line.ticket_id, line.version;
