-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- fragment: is_output
-- Whether the file of the job's result is the output of a ticket, which keeps it.
(
    jobs.result_ref IS NOT NULL
    AND (
        SELECT true FROM output_bundles b WHERE b.job_id = jobs.id AND b.output_ref IS NOT NULL LIMIT 1
    ) IS TRUE
)

-- fragment: is_input
-- Whether a job that has not ended depends on it, and may read its result.
(
    SELECT true FROM dependencies d
    WHERE d.on_id = jobs.id AND (SELECT s.finished_at IS NULL FROM jobs s WHERE s.id = d.job_id) LIMIT 1
) IS TRUE

-- fragment: is_of_open_batch
-- Whether a batch that has not ended will read its result.
(jobs.group_id IS NOT NULL AND is_batch_open(jobs.group_id))

-- fragment: pruned_jobs
-- Deletes the jobs of `old` (id), with all that belongs to them, and remembers their ids. They are locked; one that a submit has
-- come to depend on since the statement began stays. $1 steady time or null.
pruned AS (DELETE FROM jobs USING old
    WHERE jobs.id = ANY (ARRAY[old.id]) AND jobs.finished_at IS NOT NULL AND NOT is_needed(old.id)
    RETURNING jobs.id, jobs.queue, jobs.status, jobs.spec_hash, jobs.result_ref, jobs.labels, jobs.owner,
        jobs.version, jobs.group_id, jobs.waits_for),
unspecified AS (
    DELETE FROM job_specs USING pruned
    WHERE job_specs.spec = ANY (ARRAY[id_at(pruned.spec_hash, 1)]) AND job_specs.job_id = pruned.id
),
unlabelled AS (
    DELETE FROM job_labels USING (
        SELECT (l.pair).key AS name, (l.pair).value AS value, l.id
        FROM (SELECT jsonb_each_text(p.labels) AS pair, p.id FROM pruned p WHERE p.labels IS NOT NULL) l
        UNION ALL
        SELECT '', p.owner, p.id FROM pruned p WHERE p.owner IS NOT NULL
        UNION ALL
        SELECT '@group', p.group_id::text, p.id FROM pruned p WHERE p.group_id IS NOT NULL
    ) had
    WHERE job_labels.name = ANY (ARRAY[had.name]) AND job_labels.value = had.value AND job_labels.job_id = had.id
),
independent AS (
    DELETE FROM dependencies USING (SELECT p.id FROM pruned p WHERE p.waits_for IS NOT NULL) had
    WHERE dependencies.job_id = ANY (ARRAY[had.id])
),
without_attempts AS (DELETE FROM attempts USING pruned WHERE attempts.job_id = ANY (ARRAY[pruned.id])),
without_events AS (DELETE FROM event_log USING pruned WHERE event_log.job_id = ANY (ARRAY[pruned.id])),
unburied AS (DELETE FROM dead_letters USING pruned WHERE dead_letters.job_id = ANY (ARRAY[pruned.id])),
remembered AS (INSERT INTO gone_jobs (job_id, gone_at, owner) SELECT id, (SELECT steady($1)), owner FROM pruned),
counted AS (
    INSERT INTO queue_counts (queue, shard, done, error, canceled)
    SELECT
        queue, shard(), -count(*) FILTER (WHERE status = 'done'), -count(*) FILTER (WHERE status = 'error'),
        -count(*) FILTER (WHERE status = 'canceled')
    FROM pruned GROUP BY queue ORDER BY queue
    ON CONFLICT (queue, shard) DO UPDATE SET
        done = queue_counts.done + excluded.done, error = queue_counts.error + excluded.error,
        canceled = queue_counts.canceled + excluded.canceled
)

-- fragment: pruned_numbers
SELECT
    count(*) AS jobs, coalesce(array_agg(result_ref) FILTER (WHERE result_ref IS NOT NULL), '{}') AS result_refs
FROM pruned

-- name: prune_jobs
-- Deletes one small batch of jobs that finished before the cutoff, with all that belongs to them, and remembers their ids.
-- Answers how many, and the files of their results, which are to go after the commit. A job whose file is the output of a
-- ticket stays for as long as the ticket does, and one that others depend on for as long as they may read its result.
-- $1 keep_s float8, $2 most int, $3 now timestamptz or null (tests only), $4 cutoff timestamptz (null: keep_s ago by the
-- clock), stretches before the cutoff that are not to be touched: $5 from timestamptz[], $6 to timestamptz[]
WITH old AS MATERIALIZED (
    SELECT id FROM jobs WHERE finished_at < (SELECT coalesce($4, clock($3) - make_interval(secs => $1)))
        AND (
            SELECT true FROM unnest($5::timestamptz[], $6::timestamptz[]) AS k (low, high)
            WHERE jobs.finished_at BETWEEN k.low AND k.high LIMIT 1
        ) IS NOT TRUE
        AND NOT
-- include: is_output
        AND NOT
-- include: is_input
        AND NOT
-- include: is_of_open_batch
    LIMIT $2::integer FOR UPDATE SKIP LOCKED
),
-- include: pruned_jobs +2
-- include: pruned_numbers
;

-- name: delete_jobs
-- Deletes those of the jobs that are final, as retention does. A job whose file is the output of a ticket stays, and so does one whose
-- end a ticket has not taken over yet, and one whose result another job may read. Redis forgets what it has of them: a row of the outbox about a job that is gone says so.
-- $1 job_ids uuid[] (in order), $2 steady time timestamptz (null: as Postgres knows it)
WITH old AS MATERIALIZED (
    SELECT jobs.id FROM unnest($1::uuid[]) AS a (job_id) JOIN jobs ON jobs.id = ANY (ARRAY[a.job_id])
    WHERE (jobs.finished_at IS NOT NULL) IS TRUE AND NOT  -- plainly said, it would offer the index of retention
-- include: is_output
        AND NOT
-- include: is_input
        AND NOT
-- include: is_of_open_batch
        AND (SELECT true FROM workorders w WHERE w.job_id = jobs.id AND (w.status = 'CREATED') IS TRUE) IS NOT TRUE
    FOR UPDATE OF jobs SKIP LOCKED
),
-- include: pruned_jobs +1
,
outboxed AS (
    INSERT INTO outbox (at, event, job_ids, versions)
    SELECT clock(NULL), 'seen', array_agg(id), array_agg(version + 1) FROM pruned HAVING count(*) > 0
)
-- include: pruned_numbers
;

-- name: prune_memories
-- Forgets gone ids and idempotency keys whose time is over.
-- $1 keep_gone_s float8, $2 most int, $3 steady time timestamptz (null: as Postgres knows it)
WITH keys AS (
    DELETE FROM idempotency_keys k USING (
        SELECT principal, key FROM idempotency_keys WHERE expires_at < (SELECT steady($3))
        ORDER BY expires_at LIMIT $2::integer FOR UPDATE SKIP LOCKED
    ) old
    WHERE k.principal = ANY (ARRAY[old.principal]) AND k.key = old.key
    RETURNING 1
),
gone AS (
    DELETE FROM gone_jobs g USING (
        SELECT job_id FROM gone_jobs WHERE gone_at < (SELECT steady($3) - make_interval(secs => $1))
        ORDER BY gone_at LIMIT $2::integer FOR UPDATE SKIP LOCKED
    ) old
    WHERE g.job_id = ANY (ARRAY[old.job_id])
    RETURNING 1
)
SELECT (SELECT count(*) FROM keys) + (SELECT count(*) FROM gone);

-- name: read_result_refs
-- The result files that rows name, of these jobs. Reads only.
-- $1 job_ids uuid[]
SELECT jobs.result_ref FROM unnest($1::uuid[]) AS a (job_id)
JOIN jobs ON jobs.id = ANY (ARRAY[a.job_id])
WHERE jobs.result_ref IS NOT NULL;

-- name: read_installation
-- The id that this database was given when it was made. Reads only.
SELECT id::text FROM installation;
