-- name: make_floor_tables
-- What the same rows cost at the very least: a table with a key and a payload, and one with nothing at all.
CREATE TABLE jobd.bench_floor (id uuid PRIMARY KEY, payload jsonb NOT NULL);
CREATE TABLE jobd.bench_commits (n integer NOT NULL);

-- name: drop_floor_tables
DROP TABLE IF EXISTS jobd.bench_floor, jobd.bench_commits;

-- name: insert_floor
-- $1 ids uuid[], $2 payloads text[]
INSERT INTO bench_floor (id, payload)
SELECT id, payload::jsonb FROM unnest($1::uuid[], $2::text[]) AS a (id, payload);

-- name: update_floor
-- $1 ids uuid[] (in order), $2 payloads text[]
UPDATE bench_floor SET payload = a.payload::jsonb
FROM unnest($1::uuid[], $2::text[]) AS a (id, payload) WHERE bench_floor.id = a.id;

-- name: commit_one_row
-- $1 n int
INSERT INTO bench_commits (n) VALUES ($1);

-- name: delete_bench_jobs
-- Everything that the jobs of one queue have left behind. An outbox row is of the jobs of one call, so its first job decides.
-- $1 queue text
WITH mine AS MATERIALIZED (DELETE FROM jobs WHERE queue = $1 RETURNING id),
without_leases AS (DELETE FROM leases USING mine WHERE leases.resource_id = mine.id),
without_attempts AS (DELETE FROM attempts USING mine WHERE attempts.job_id = mine.id),
without_specs AS (DELETE FROM job_specs USING mine WHERE job_specs.job_id = mine.id),
without_labels AS (DELETE FROM job_labels USING mine WHERE job_labels.job_id = mine.id),
untold AS (DELETE FROM outbox USING mine WHERE outbox.job_ids[1] = mine.id),
uncounted AS (DELETE FROM queue_counts WHERE queue = $1)
SELECT count(*) FROM mine;

-- name: bench_progress
-- How many of these jobs are done, and the time from the first start to the last end so far.
-- $1 job_ids uuid[]
SELECT count(*) FILTER (WHERE status = 'done') AS done,
       count(*) FILTER (WHERE status IN ('error', 'canceled')) AS ended_badly,
       coalesce(extract(epoch FROM max(finished_at) - min(started_at)), 0)::float8 AS seconds
FROM jobs WHERE id = ANY($1::uuid[]);
