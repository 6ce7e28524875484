-- fragment: end_of_attempt
-- The end of attempts, the same for fail, release, reap and a claim that takes over: the attempts are closed, jobs in
-- error become dead letters, the outbox has a row for each kind of event, and the queues' counters move. It goes by the
-- rows of `moved`, one for each job, with
--   id, queue, task, status, version, updated_at    the job as it is now
--   ended_no, attempt_id, lease_token, owner_id, acquired_at, stream, message_id    the attempt that ended
--   attempt_due_at                  when that attempt could have started
--   event_n, outcome, outcome_hash, attempt_error, led_to    and how
--   reason                          why it is a dead letter, if its status is error
--   event, attempt_no, has_gap      what the outbox row says
--   settled_stream, settled_message    the message that is settled by it
closed AS (
    INSERT INTO attempts (
        job_id, number, attempt_id, lease_token, owner_id, outcome, outcome_hash, error, started_at, ended_at, stream,
        message_id, led_to, event_n
    )
    SELECT
        id, ended_no, attempt_id, lease_token, owner_id, outcome, outcome_hash, attempt_error, acquired_at, updated_at,
        stream, message_id, led_to, event_n
    FROM moved
),
dead_lettered AS (
    INSERT INTO dead_letters (job_id, queue, task, reason, at)
    SELECT id, queue, task, reason, updated_at FROM moved WHERE status = 'error'
),
outboxed AS (
    INSERT INTO outbox (at, event, job_ids, versions, attempts, event_ns, has_gap, streams, message_ids)
    SELECT
        min(updated_at), event, array_agg(id), array_agg(version), array_agg(attempt_no), array_agg(event_n),
        bool_or(has_gap), array_agg(settled_stream), array_agg(settled_message)
    FROM moved GROUP BY event
),
counted AS (
    INSERT INTO queue_counts (queue, shard, running, queued, error, canceled)
    SELECT
        queue, shard(), -count(*), count(*) FILTER (WHERE status = 'queued'),
        count(*) FILTER (WHERE status = 'error'), count(*) FILTER (WHERE status = 'canceled')
    FROM moved WHERE status <> 'running' GROUP BY queue ORDER BY queue
    ON CONFLICT (queue, shard) DO UPDATE SET
        running = queue_counts.running + excluded.running, queued = queue_counts.queued + excluded.queued,
        error = queue_counts.error + excluded.error, canceled = queue_counts.canceled + excluded.canceled
),
ended AS (
    SELECT queue, task, status, updated_at AS at, outcome, attempt_due_at AS due_at, acquired_at FROM moved
),
-- include: rolled_up

-- fragment: lease_expired_error
-- Why a job failed whose holder fell silent; LEASE_EXPIRED in job/history.py says the same.
jsonb_build_object('code', 'lease_expired', 'message', 'the worker fell silent', 'retryable', true)

-- fragment: interrupted_error
-- The same of a job whose node stopped, and which is run again: INTERRUPTED in job/history.py.
jsonb_build_object('code', 'interrupted', 'message', 'jobd stopped or stood still while the job ran', 'retryable', true)

-- fragment: interruptions_exhausted_error
-- And which is not: INTERRUPTIONS_EXHAUSTED in job/history.py.
jsonb_build_object(
    'code', 'interruptions_exhausted',
    'message', 'jobd stopped or stood still more than max_interruptions times while the job ran', 'retryable', true
)

-- fragment: ended_columns
-- Of `moved`, for the tally.
queue, task, outcome, date_part('epoch', updated_at - acquired_at) AS run_s
