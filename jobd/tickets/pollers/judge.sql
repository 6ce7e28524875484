-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see jobd/lifecycle/claim.sql. So does `IS TRUE`: without
-- it, an index on the status offers itself, and all that stand there would be compared with the whole batch.

-- name: find_executed_workorders
-- Work orders to be judged that nobody holds and that wait for no person, the oldest first. Reads only.
-- $1 most int
SELECT work_order_id FROM workorders w
WHERE status = 'EXECUTED' AND judged_at IS NULL AND NOT awaits_sign_off
    AND (SELECT lease_expires_at > clock(NULL) FROM leases l WHERE l.resource_id = w.work_order_id) IS NOT TRUE
ORDER BY executed_at, work_order_id LIMIT $1::integer;

-- name: read_for_judge
-- What is judged: the output, the gates as they were when the run was scheduled, and a person's decision. Reads only.
-- $1 work_order_ids uuid[]
SELECT
    t.*, w.work_order_id, w.gate_results::text AS gate_results_so_far, s.gates::text AS gates_then, b.outcome,
    b.output::text AS output, b.output_ref, b.error::text AS error, d.kind AS sign_off, d.decided_by, d.why
FROM unnest($1::uuid[]) AS a (work_order_id)
JOIN workorders w ON w.work_order_id = ANY (ARRAY[a.work_order_id])
JOIN output_bundles b ON b.work_order_id = ANY (ARRAY[w.work_order_id])
JOIN context_snapshots s ON s.snapshot_id = ANY (ARRAY[w.context_snapshot_id])
JOIN tickets t ON t.ticket_id = ANY (ARRAY[w.ticket_id])
LEFT JOIN ticket_decisions d ON d.work_order_id = ANY (ARRAY[w.work_order_id])
WHERE (w.judged_at IS NULL AND NOT w.awaits_sign_off) IS TRUE;

-- name: await_sign_off_if_held
-- Leaves work orders to a person: what the other gates said is kept, and the lease is given up until there is an answer.
-- $1 work_order_ids uuid[], $2 lease_tokens uuid[], $3 gate_results text[] (JSON)
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[]) AS a (work_order_id, lease_token, gate_results)
),
-- include: held_workorders
asking AS (
    UPDATE workorders w SET awaits_sign_off = true, gate_results = h.gate_results::jsonb FROM held h
    WHERE w.work_order_id = ANY (ARRAY[h.work_order_id]) AND (w.status = 'EXECUTED' AND w.judged_at IS NULL) IS TRUE
    RETURNING w.work_order_id, w.ticket_id
),
stepped AS (
    UPDATE tickets t SET step = 'SIGN_OFF', version = t.version + 1, updated_at = clock(NULL) FROM asking a
    WHERE t.ticket_id = ANY (ARRAY[a.ticket_id]) AND (t.status = 'IN_PROGRESS') IS TRUE
)
SELECT work_order_id FROM asking;

-- name: judge_if_held
-- Writes the one run record of each work order, moves its ticket and says why it rests, for those whose lease the caller
-- holds, which it thereby gives up. One that was judged before stays as it is.
-- $1 work_order_ids uuid[], $2 lease_tokens uuid[], $3 run_ids uuid[], $4 gate_results of all text[],
-- $5 gate_reasons text[], $6 single gate results text[] (JSON), $7 ticket statuses text[], $8 blocked_reasons text[],
-- $9 pause_ids uuid[], $10 pause reasons text[], $11 actions text[] (JSON)
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest(
        $1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::uuid[],
        $10::text[], $11::text[]
    ) AS a (
        work_order_id, lease_token, run_id, gate_result, gate_reason, gate_results, ticket_status, blocked_reason,
        pause_id, pause_reason, actions
    )
),
-- include: held_workorders
judged AS (
    UPDATE workorders w SET judged_at = clock(NULL) FROM held h
    WHERE w.work_order_id = ANY (ARRAY[h.work_order_id]) AND (w.status = 'EXECUTED' AND w.judged_at IS NULL) IS TRUE
    RETURNING h.*, w.ticket_id, w.judged_at
),
recorded AS (
    INSERT INTO run_records (
        run_id, work_order_id, ticket_id, output_id, gate_result, gate_reason, gate_results, ticket_status, created_at
    )
    SELECT
        run_id, work_order_id, ticket_id,
        (SELECT b.output_id FROM output_bundles b WHERE b.work_order_id = judged.work_order_id),
        gate_result, gate_reason, gate_results::jsonb, ticket_status, judged_at
    FROM judged
    ON CONFLICT (work_order_id) DO NOTHING
),
moved AS (
    UPDATE tickets t SET
        status = j.ticket_status, step = NULL, blocked_reason = j.blocked_reason,
        todo_no = t.todo_no + (j.ticket_status = 'TODO')::integer,
        todo_at = CASE j.ticket_status WHEN 'TODO' THEN j.judged_at ELSE t.todo_at END,
        version = t.version + 1, updated_at = j.judged_at
    FROM judged j WHERE t.ticket_id = ANY (ARRAY[j.ticket_id]) AND (t.status = 'IN_PROGRESS') IS TRUE
),
paused AS (
    INSERT INTO pause_states (pause_id, ticket_id, work_order_id, reason, prioritized_actions, created_at)
    SELECT
        pause_id, ticket_id, work_order_id, pause_reason, ARRAY(SELECT jsonb_array_elements_text(actions::jsonb)),
        judged_at
    FROM judged
)
SELECT work_order_id, ticket_status FROM judged;
