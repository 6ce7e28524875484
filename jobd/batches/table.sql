-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- fragment: batch_columns
b.id, b.owner, b.endpoint, b.input_file_id, b.metadata::text AS metadata, b.keep_output_s, b.status, b.ending, b.errors::text AS errors,
b.model, b.total, b.read_bytes, b.read_lines, b.completed, b.failed, b.usage::text AS usage, b.output_file_id, b.error_file_id,
b.created_at, b.expires_at, b.in_progress_at, b.finalizing_at, b.cancelling_at, b.finished_at,
coalesce(g.members, 0) AS members, coalesce(g.done, 0) AS done, coalesce(g.error, 0) AS error, coalesce(g.canceled, 0) AS canceled,
coalesce(g.sealed, false) AS is_sealed, g.finished_at IS NOT NULL AS is_settled, 
-- while the clock shows what it cannot show, no window is over
coalesce(b.expires_at <= (SELECT agreed_clock(NULL)), false) AS is_over

-- name: create_batch
-- Without a row back there is no such file any more.
-- $1 id uuid, $2 owner text, $3 endpoint text, $4 input_file_id uuid, $5 metadata text (a JSON object of strings; null: none),
-- $6 keep_output_s float8, $7 window_s float8, $8 now timestamptz or null (tests only)
WITH input AS MATERIALIZED (SELECT f.id FROM files f WHERE f.id = $4 FOR SHARE)
INSERT INTO batches (id, owner, endpoint, input_file_id, metadata, keep_output_s, status, created_at, expires_at)
SELECT $1, $2, $3, input.id, $5::text::jsonb, $6, 'validating', made.at, made.at + make_interval(secs => $7)
FROM input CROSS JOIN (SELECT clock($8) AS at) made
RETURNING id;

-- name: read_batch
-- Reads only.
-- $1 id uuid
SELECT
-- include: batch_columns
FROM batches b LEFT JOIN groups g ON g.id = ANY (ARRAY[b.id]) WHERE b.id = $1;

-- name: list_batches
-- Newest first. Reads only.
-- $1 after uuid (null: from the newest), $2 most int, $3 owner text (null: any)
SELECT
-- include: batch_columns
FROM batches b LEFT JOIN groups g ON g.id = ANY (ARRAY[b.id])
WHERE (b.created_at, b.id) < (
    SELECT coalesce((SELECT o.created_at FROM batches o WHERE o.id = $1), 'infinity'),
        coalesce($1, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
)
AND ($3::text IS NULL OR b.owner = $3)
ORDER BY b.created_at DESC, b.id DESC LIMIT $2::integer;

-- name: list_open_batches
-- Those that have not ended, oldest first. Reads only.
-- $1 most int
SELECT b.id FROM batches b WHERE b.finished_at IS NULL ORDER BY b.created_at LIMIT $1::integer;

-- name: fail_batch
-- Some of its lines cannot become jobs, or its input is lost.
-- $1 id uuid, $2 errors text (a JSON array), $3 total int, $4 now timestamptz or null (tests only)
UPDATE batches SET status = 'failed', errors = $2::text::jsonb, total = $3, finished_at = clock($4)
WHERE id = $1 AND status NOT IN ('failed', 'completed', 'expired', 'cancelled') RETURNING id;

-- name: begin_batch
-- All lines can become jobs.
-- $1 id uuid, $2 total int, $3 model text, $4 now timestamptz or null (tests only)
UPDATE batches SET status = 'in_progress', total = $2, model = $3, in_progress_at = clock($4)
WHERE id = $1 AND status = 'validating' RETURNING id;

-- name: advance_batch
-- Lines up to here have become jobs, in the same transaction. Without a row back somebody else did it, or has cancelled the batch.
-- $1 id uuid, $2 from_bytes bigint, $3 read_bytes bigint, $4 read_lines int
UPDATE batches SET read_bytes = $3, read_lines = $4
WHERE id = $1 AND status = 'in_progress' AND read_bytes = $2 RETURNING id;

-- name: finalize_batch
-- No more lines become jobs: all have, or its window is over.
-- $1 id uuid, $2 ending text, $3 now timestamptz or null (tests only)
UPDATE batches SET status = 'finalizing', ending = $2, finalizing_at = clock($3)
WHERE id = $1 AND status IN ('validating', 'in_progress') RETURNING id;

-- name: cancel_batch
-- $1 id uuid, $2 now timestamptz or null (tests only)
UPDATE batches SET status = 'cancelling', ending = 'cancelled', cancelling_at = clock($2)
WHERE id = $1 AND status IN ('validating', 'in_progress') RETURNING id;

-- name: finish_batch
-- Its files are made, and their rows are in the same transaction.
-- $1 id uuid, $2 completed int, $3 failed int, $4 usage text (a JSON object), $5 output_file_id uuid, $6 error_file_id uuid,
-- $7 now timestamptz or null (tests only)
UPDATE batches SET
    status = ending, completed = $2, failed = $3, usage = $4::text::jsonb, output_file_id = $5, error_file_id = $6,
    finished_at = clock($7)
WHERE id = $1 AND status IN ('finalizing', 'cancelling') RETURNING id;

-- name: prune_batches
-- Deletes batches that ended before the cutoff; their files and jobs go by themselves.
-- $1 keep_s float8, $2 most int, $3 now timestamptz or null (tests only), $4 cutoff timestamptz (null: keep_s ago by the clock),
-- stretches before the cutoff that are not to be touched: $5 from timestamptz[], $6 to timestamptz[]
WITH old AS MATERIALIZED (
    SELECT b.id FROM batches b WHERE b.finished_at < (SELECT coalesce($4, clock($3) - make_interval(secs => $1)))
        AND (
            SELECT true FROM unnest($5::timestamptz[], $6::timestamptz[]) AS k (low, high)
            WHERE b.finished_at BETWEEN k.low AND k.high LIMIT 1
        ) IS NOT TRUE
    ORDER BY b.finished_at LIMIT $2::integer FOR UPDATE SKIP LOCKED
)
DELETE FROM batches USING old WHERE batches.id = ANY (ARRAY[old.id]) RETURNING batches.id;

-- name: read_line_ends
-- What jobs of lines have ended with. Reads only.
-- $1 job_ids uuid[]
SELECT
    jobs.id, jobs.status, jobs.result::text AS result, jobs.result_ref, jobs.error::text AS error,
    (extract(epoch FROM jobs.updated_at) * 1000)::bigint AS ended_ms
FROM unnest($1::uuid[]) AS a (job_id) JOIN jobs ON jobs.id = ANY (ARRAY[a.job_id]);
