-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see jobd/lifecycle/claim.sql. So does `IS TRUE`: without
-- it, an index on the status offers itself, and all that stand there would be compared with the whole batch.

-- name: find_ready_events
-- Events that wait and that nobody holds, the oldest first. Reads only.
-- $1 most int
SELECT event_id FROM ticket_events e
WHERE NOT processed
    AND (SELECT lease_expires_at > clock(NULL) FROM leases l WHERE l.resource_id = e.event_id) IS NOT TRUE
ORDER BY created_at, event_id LIMIT $1::integer;

-- name: read_for_schedule
-- Events with their tickets, and what those are blocked on and is not DONE (one that is not there any more was DONE); no
-- row for one that is processed. Reads only.
-- $1 event_ids uuid[]
SELECT
    t.*, e.event_id, e.ticket_id AS event_ticket_id, e.todo_no AS event_todo_no,
    ARRAY(
        SELECT b.ticket_id FROM unnest(t.blocked_on) AS b (ticket_id)
        WHERE (SELECT status FROM tickets o WHERE o.ticket_id = b.ticket_id) <> 'DONE'
    ) AS unfinished
FROM unnest($1::uuid[]) AS a (event_id)
JOIN ticket_events e ON e.event_id = ANY (ARRAY[a.event_id])
LEFT JOIN tickets t ON t.ticket_id = ANY (ARRAY[e.ticket_id])
WHERE (NOT e.processed) IS TRUE;

-- name: schedule_if_held
-- Ends events: with a snapshot, a work order and a ticket IN_PROGRESS; with a BLOCKED ticket and its pause; or with nothing
-- but the reason. All of it for those whose lease the caller holds, which it thereby gives up; none of it for others, and
-- none for a ticket that was changed since it was read.
-- $1 event_ids uuid[], $2 lease_tokens uuid[], $3 ticket_ids uuid[], $4 versions of the tickets int[] (null: it is missing),
-- $5 reasons text[], $6 snapshot_ids uuid[], $7 work_order_ids uuid[], $8 job_ids uuid[], $9 prompts text[],
-- $10 payloads text[], $11 repo_commit_shas text[], $12 branch_names text[], $13 blocked_reasons text[],
-- $14 pause_ids uuid[], $15 actions text[] (JSON)
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest(
        $1::uuid[], $2::uuid[], $3::uuid[], $4::integer[], $5::text[], $6::uuid[], $7::uuid[], $8::uuid[], $9::text[],
        $10::text[], $11::text[], $12::text[], $13::text[], $14::uuid[], $15::text[]
    ) AS a (
        event_id, lease_token, ticket_id, ticket_version, reason, snapshot_id, work_order_id, job_id, prompt, payload,
        sha, branch_name, blocked_reason, pause_id, actions
    )
),
held AS (
    DELETE FROM leases l USING asked a
    WHERE l.resource_id = ANY (ARRAY[a.event_id]) AND l.resource_type = 'EVENT' AND l.lease_token = a.lease_token
        AND (l.lease_expires_at > (SELECT agreed_clock(NULL))) IS NOT FALSE
    RETURNING a.*
),
moved AS (
    UPDATE tickets t SET
        status = CASE h.reason WHEN 'SCHEDULED' THEN 'IN_PROGRESS' ELSE 'BLOCKED' END,
        step = CASE h.reason WHEN 'SCHEDULED' THEN 'RUN' END,
        run_count = t.run_count + (h.reason = 'SCHEDULED')::integer,
        blocked_reason = h.blocked_reason, waits_for_tickets = h.reason = 'BLOCKED',
        version = t.version + 1, updated_at = clock(NULL)
    FROM held h
    WHERE t.ticket_id = ANY (ARRAY[h.ticket_id]) AND h.reason IN ('SCHEDULED', 'BLOCKED')
        AND (t.status = 'TODO') IS TRUE AND t.version = h.ticket_version
        AND (SELECT NOT e.processed FROM ticket_events e WHERE e.event_id = h.event_id)
    RETURNING
        h.*, t.title, t.acceptance_criteria, t.repo_ref, t.base_branch, t.task, t.gates, t.budget_ms, t.updated_at
),
marked AS (
    UPDATE ticket_events e SET processed = true, reason = m.reason, processed_at = clock(NULL)
    FROM (
        SELECT event_id, reason FROM moved
        UNION ALL
        SELECT event_id, reason FROM held WHERE reason IN ('MISSING_TICKET', 'NON_EXECUTABLE_STATUS')
    ) m
    WHERE e.event_id = ANY (ARRAY[m.event_id]) AND (NOT e.processed) IS TRUE
    RETURNING e.event_id, e.reason
),
remembered AS (
    INSERT INTO context_snapshots (
        snapshot_id, ticket_id, title, acceptance_criteria, full_prompt_text, repo_ref, base_branch, repo_commit_sha, task,
        payload, gates, created_at
    )
    SELECT
        snapshot_id, ticket_id, title, acceptance_criteria, prompt, repo_ref, base_branch, sha, task, payload::jsonb,
        gates, updated_at
    FROM moved WHERE reason = 'SCHEDULED'
),
ordered AS (
    INSERT INTO workorders (
        work_order_id, event_id, ticket_id, diazotroph_type, context_snapshot_id, branch_name, budget_ms, job_id,
        created_at
    )
    SELECT work_order_id, event_id, ticket_id, task, snapshot_id, branch_name, budget_ms, job_id, updated_at
    FROM moved WHERE reason = 'SCHEDULED'
),
paused AS (
    INSERT INTO pause_states (pause_id, ticket_id, event_id, reason, prioritized_actions, created_at)
    SELECT
        pause_id, ticket_id, event_id, 'BLOCKED', ARRAY(SELECT jsonb_array_elements_text(actions::jsonb)), updated_at
    FROM moved WHERE reason = 'BLOCKED'
)
SELECT event_id, reason FROM marked;
