-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- fragment: finished_jobs
-- Ends each attempt whose token and attempt are current, and its job with it: done. The lease's expiry does not matter as
-- long as nobody took it over. `n` is the place of the report in the arrays, from 1.
asked AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::bytea[]) WITH ORDINALITY
        AS a (job_id, attempt_id, lease_token, result, result_ref, outcome_hash, n)
),
freed AS (
    DELETE FROM leases l USING asked a
    WHERE l.resource_id = ANY (ARRAY[a.job_id]) AND l.lease_token = a.lease_token AND l.attempt_id = a.attempt_id
    RETURNING
        l.resource_id, l.attempt_id, l.attempt_no, l.lease_token, l.owner_id, l.acquired_at, l.stream, l.message_id,
        l.event_n + 1 AS event_n, a.result, a.result_ref, a.outcome_hash, a.n
),
closed AS (
    INSERT INTO attempts (
        job_id, number, attempt_id, lease_token, owner_id, outcome, outcome_hash, started_at, ended_at, stream, message_id,
        led_to, event_n
    )
    SELECT
        resource_id, attempt_no, attempt_id, lease_token, owner_id, 'done', outcome_hash, acquired_at, clock($7), stream,
        message_id, 'done', event_n
    FROM freed
),
finished AS (
    UPDATE jobs SET
        status = 'done', result = f.result::jsonb, result_ref = f.result_ref, error = NULL,
        finished_at = clock($7), updated_at = clock($7), version = version + 1
    FROM freed f
    WHERE jobs.id = ANY (ARRAY[f.resource_id]) AND jobs.status = 'running'
    RETURNING
        jobs.id, jobs.queue, jobs.task, jobs.version, jobs.updated_at, f.stream, f.message_id, f.attempt_no, f.event_n, f.n,
        jobs.run_after, f.acquired_at, date_part('epoch', jobs.updated_at - f.acquired_at) AS run_s
),
ended AS (
    SELECT queue, task, 'done' AS status, updated_at AS at, 'done' AS outcome, run_after AS due_at, acquired_at FROM finished
)

-- name: complete_if_leased
-- Answers for each queue and task with the places of the reports whose job is done by them, and for how many seconds each ran;
-- another one was not this caller's to finish.
-- $1 job_ids uuid[] (in order), $2 attempt_ids uuid[], $3 lease_tokens uuid[], $4 results text[] (null: none),
-- $5 result_refs text[], $6 outcome_hashes bytea[], $7 now timestamptz or null (tests only)
WITH
-- include: finished_jobs
,
outboxed AS (
    INSERT INTO outbox (at, event, job_ids, versions, attempts, event_ns, streams, message_ids)
    SELECT
        min(updated_at), 'done', array_agg(id), array_agg(version), array_agg(attempt_no), array_agg(event_n),
        array_agg(stream), array_agg(message_id)
    FROM finished HAVING count(*) > 0
),
counted AS (
    INSERT INTO queue_counts (queue, shard, running, done)
    SELECT queue, shard(), -count(*), count(*) FROM finished GROUP BY queue ORDER BY queue
    ON CONFLICT (queue, shard) DO UPDATE SET
        running = queue_counts.running + excluded.running, done = queue_counts.done + excluded.done
),
-- include: rolled_up
SELECT queue AS done_queue, task AS done_task, array_agg(n) AS finished, array_agg(run_s) AS run_s FROM finished
GROUP BY queue, task;

-- name: complete_and_take
-- The same, and in the same commit the first jobs of the queues that are wanted: take_jobs in take.sql. Rows without a
-- job_id are about the reports, each other one is a job.
-- Parameters as in take_jobs, then as in complete_if_leased.
WITH
-- include: finished_jobs +10
,
-- include: open_queues
,
-- include: waiting_jobs
,
picked AS (SELECT id, n, order_at FROM waiting),
taken AS (
-- include: start_picked
),
-- include: leased_jobs
,
outboxed AS (
    INSERT INTO outbox (at, event, job_ids, versions, attempts, event_ns, streams, message_ids)
    SELECT
        min(updated_at), 'done', array_agg(id), array_agg(version), array_agg(attempt_no), array_agg(event_n),
        array_agg(stream), array_agg(message_id)
    FROM finished HAVING count(*) > 0
    UNION ALL
    SELECT
        min(updated_at), 'running', array_agg(id), array_agg(version), array_agg(attempt_no), NULL,
        array_agg(''::text), NULL  -- no message brought it, so one that was offered is of no use
    FROM taken HAVING count(*) > 0
),
counted AS (
    INSERT INTO queue_counts (queue, shard, queued, running, done)
    SELECT queue, shard(), -sum(taken), sum(taken) - sum(done), sum(done)
    FROM (SELECT queue, 0 AS taken, 1 AS done FROM finished UNION ALL SELECT queue, 1, 0 FROM taken) moved
    GROUP BY queue ORDER BY queue
    ON CONFLICT (queue, shard) DO UPDATE SET
        queued = queue_counts.queued + excluded.queued, running = queue_counts.running + excluded.running,
        done = queue_counts.done + excluded.done
),
-- include: rolled_up
SELECT
    queue AS done_queue, task AS done_task, array_agg(n) AS finished, array_agg(run_s) AS run_s,
-- include: no_claim
FROM finished GROUP BY queue, task
UNION ALL
SELECT
    NULL, NULL, NULL, NULL,
-- include: claim_columns
FROM taken;

-- name: explain_reports
-- How the attempts ended that could not be ended again. Reads only.
-- $1 job_ids uuid[], $2 attempt_ids uuid[]
SELECT
    a.job_id, a.attempt_id, attempts.lease_token, attempts.outcome, attempts.outcome_hash, attempts.number,
    jobs.status, jobs.attempt_no
FROM unnest($1::uuid[], $2::uuid[]) AS a (job_id, attempt_id)
JOIN attempts ON attempts.job_id = ANY (ARRAY[a.job_id]) AND attempts.attempt_id = a.attempt_id
JOIN jobs ON jobs.id = ANY (ARRAY[a.job_id]);
