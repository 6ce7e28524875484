-- What happened in each minute, by queue and task, so that charts survive a restart and outlive the jobs.
CREATE TABLE jobd.rollups (
    minute timestamptz NOT NULL,
    queue text NOT NULL,
    task text NOT NULL,
    -- jobs that ended
    done bigint NOT NULL,
    error bigint NOT NULL,
    canceled bigint NOT NULL,
    -- attempts that failed, and whose lease expired; their jobs may have been queued again
    failed bigint NOT NULL,
    expired bigint NOT NULL,
    -- Of each attempt that ended, other than by a release: seconds from due to start and from start to end, their sums, and how
    -- many fell into each bucket of jobd.bucket_of.
    wait_s double precision NOT NULL,
    run_s double precision NOT NULL,
    waits bigint[] NOT NULL,
    runs bigint[] NOT NULL,
    PRIMARY KEY (minute, queue, task)
) WITH (
    -- Room for new versions of the rows of the present minute.
    fillfactor = 50
);

-- What commits have added and the rollups do not have yet. The statements that end attempts or jobs insert a row for each queue and
-- task, in the same commit; every few seconds the rows are deleted and added to the rollups, in one commit. To add to the rollups
-- at once would make commits wait for each other, and takes a tenth longer for a statement about one job.
CREATE TABLE jobd.rollup_parts (
    at timestamptz NOT NULL,
    queue text NOT NULL,
    task text NOT NULL,
    status text NOT NULL,
    -- of the attempts that ended; null: none did
    outcome text,
    number bigint NOT NULL,
    wait_s double precision,
    run_s double precision,
    -- the bucket of each attempt; a byte each, so that a row of a large batch stays in its page
    waits "char"[],
    runs "char"[]
) WITH (
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE jobd.rollup_parts ALTER COLUMN waits SET STORAGE MAIN, ALTER COLUMN runs SET STORAGE MAIN;

-- The bucket of a duration in seconds, 0 to 13; BOUNDS_S in lifecycle/rollups.py has the same numbers. A bound belongs to the bucket
-- above it.
CREATE FUNCTION jobd.bucket_of(seconds double precision) RETURNS integer LANGUAGE sql IMMUTABLE
RETURN width_bucket(
    seconds, '{0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200}'::double precision[]
);
