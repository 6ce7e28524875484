-- name: read_clock
-- Postgres' clock and the present era. Reads only.
SELECT extract(epoch FROM clock(NULL))::float8 AS wall, era.*
FROM (SELECT) AS one LEFT JOIN (
    SELECT
        no, extract(epoch FROM wall_from)::float8 AS wall_from, extract(epoch FROM steady_from)::float8 AS steady_from,
        extract(epoch FROM wall_to)::float8 AS wall_to, extract(epoch FROM steady_to)::float8 AS steady_to,
        extract(epoch FROM known_at)::float8 AS known, boot_id, boot_s
    FROM clock_eras ORDER BY no DESC LIMIT 1
) era ON true;

-- name: read_eras
-- All of them, the first first. Reads only.
SELECT
    no, extract(epoch FROM wall_from)::float8 AS wall_from, extract(epoch FROM steady_from)::float8 AS steady_from,
    extract(epoch FROM wall_to)::float8 AS wall_to, extract(epoch FROM steady_to)::float8 AS steady_to,
    extract(epoch FROM known_at)::float8 AS known, boot_id, boot_s
FROM clock_eras ORDER BY no;

-- name: begin_era
-- No row back: another node was first.
-- $1 no int, $2 wall_from, $3 steady_from, $4 wall_to, $5 steady_to, $6 known (seconds since 1970), $7 boot_id text,
-- $8 boot_s float8
INSERT INTO clock_eras (no, wall_from, steady_from, wall_to, steady_to, known_at, boot_id, boot_s)
VALUES (
    $1, to_timestamp($2::float8), to_timestamp($3::float8), to_timestamp($4::float8), to_timestamp($5::float8),
    to_timestamp($6::float8), $7, $8
)
ON CONFLICT (no) DO NOTHING RETURNING no;

-- name: mark_era
-- How far the era has come. The newest mark counts, of whichever node. One that a crash undoes is not missed: so no wait for
-- the disk.
-- $1 no int, $2 wall, $3 steady, $4 known (seconds since 1970), $5 boot_id text, $6 boot_s float8
WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true) AS setting)
UPDATE clock_eras SET
    wall_to = to_timestamp($2::float8), steady_to = to_timestamp($3::float8), known_at = to_timestamp($4::float8),
    boot_id = $5, boot_s = $6
FROM relaxed WHERE relaxed.setting = 'off' AND no = $1 AND steady_to < to_timestamp($3::float8);

-- name: shift_leases
-- The first of the statements that move what was stamped before a step along with the clock. They run in the commit
-- that writes the step down; nobody decides by the new clock before. What was stamped since the step is left alone:
-- from $2 on, with a second of grace. A renewal since then has moved the end of its lease forward already, but never back.
-- $1 step_s float8, $2 since when the clock may be so, float8 (seconds since 1970)
WITH since AS MATERIALIZED (SELECT to_timestamp($2::float8 - 1) AS low, clock(NULL) + interval '1 second' AS high),
old AS MATERIALIZED (
    SELECT
        resource_id, acquired_at NOT BETWEEN low AND high AS was_acquired,
        heartbeat_at NOT BETWEEN low AND high AS was_beaten
    FROM leases CROSS JOIN since ORDER BY resource_id FOR UPDATE OF leases
)
UPDATE leases SET
    lease_expires_at = lease_expires_at + make_interval(
        secs => CASE WHEN CASE WHEN $1::float8 > 0 THEN was_beaten ELSE was_acquired END THEN $1::float8 ELSE 0 END
    ),
    heartbeat_at = heartbeat_at + make_interval(secs => CASE WHEN was_beaten THEN $1::float8 ELSE 0 END),
    acquired_at = acquired_at + make_interval(secs => CASE WHEN was_acquired THEN $1::float8 ELSE 0 END)
FROM old WHERE leases.resource_id = ANY (ARRAY[old.resource_id]);

-- name: shift_expiries
-- When waiting jobs expire. What counts is the time that has passed since their submit, so that no step ends them. It comes before
-- shift_waits, which moves updated_at of the jobs that it is about.
-- $1 step_s float8, $2 since when the clock may be so, float8 (seconds since 1970)
UPDATE jobs SET
    expires_at = expires_at + make_interval(secs => $1::float8),
    updated_at = updated_at + make_interval(secs => CASE WHEN due_at IS NULL OR at_instant THEN $1::float8 ELSE 0 END)
WHERE expires_at IS NOT NULL AND started_at IS NULL AND (order_at IS NOT NULL OR due_at IS NOT NULL)
    AND updated_at NOT BETWEEN to_timestamp($2::float8 - 1) AND clock(NULL) + interval '1 second';

-- name: shift_waits
-- Delays and backoffs; what waits for an instant of the clock goes on to do so.
-- $1 step_s float8, $2 since when the clock may be so, float8 (seconds since 1970)
UPDATE jobs SET
    due_at = due_at + make_interval(secs => $1::float8), run_after = run_after + make_interval(secs => $1::float8),
    updated_at = updated_at + make_interval(secs => $1::float8)
WHERE due_at IS NOT NULL AND NOT at_instant
    AND updated_at NOT BETWEEN to_timestamp($2::float8 - 1) AND clock(NULL) + interval '1 second';

-- name: shift_budgets
-- When tickets' jobs began, from which their budgets count, and when they ended.
-- $1 step_s float8, $2 since when the clock may be so, float8 (seconds since 1970)
WITH since AS MATERIALIZED (SELECT to_timestamp($2::float8 - 1) AS low, clock(NULL) + interval '1 second' AS high)
UPDATE jobs SET
    created_at = jobs.created_at
        + make_interval(secs => CASE WHEN jobs.created_at NOT BETWEEN low AND high THEN $1::float8 ELSE 0 END),
    finished_at = finished_at
        + make_interval(secs => CASE WHEN finished_at NOT BETWEEN low AND high THEN $1::float8 ELSE 0 END)
FROM since CROSS JOIN workorders w
WHERE w.status = 'CREATED' AND jobs.id = ANY (ARRAY[w.job_id]);

-- name: shift_queues
-- When raw workers were last seen.
-- $1 step_s float8, $2 since when the clock may be so, float8 (seconds since 1970)
UPDATE queues SET raw_seen_at = raw_seen_at + make_interval(secs => $1::float8)
WHERE raw_seen_at NOT BETWEEN to_timestamp($2::float8 - 1) AND clock(NULL) + interval '1 second';

-- name: shift_starts
-- When jobs of keys with a rate have started, and when the next ones may.
-- $1 step_s float8, $2 since when the clock may be so, float8 (seconds since 1970)
WITH since AS MATERIALIZED (SELECT to_timestamp($2::float8 - 1) AS low, clock(NULL) + interval '1 second' AS high),
keys AS (
    UPDATE limit_keys SET next_at = next_at + make_interval(secs => $1::float8) WHERE next_at IS NOT NULL
),
-- starts that nobody has worked off yet
takes AS (
    UPDATE limit_takes SET at = at + make_interval(secs => $1::float8) FROM since WHERE at NOT BETWEEN low AND high
)
UPDATE limit_starts SET started_at = started_at + make_interval(secs => $1::float8)
FROM since WHERE started_at NOT BETWEEN low AND high;

-- name: shift_batches
-- When the windows of batches end.
-- $1 step_s float8, $2 since when the clock may be so, float8 (seconds since 1970)
UPDATE batches SET expires_at = expires_at + make_interval(secs => $1::float8)
WHERE finished_at IS NULL AND created_at NOT BETWEEN to_timestamp($2::float8 - 1) AND clock(NULL) + interval '1 second';

-- name: shift_files
-- When files expire.
-- $1 step_s float8, $2 since when the clock may be so, float8 (seconds since 1970)
UPDATE files SET expires_at = expires_at + make_interval(secs => $1::float8)
WHERE expires_at IS NOT NULL AND created_at NOT BETWEEN to_timestamp($2::float8 - 1) AND clock(NULL) + interval '1 second';

-- name: shift_line
-- Moves jobs in line along that stand far in the future since the clock went back, so that new ones do not go before
-- them for ever. One small batch; how many.
-- $1 step_s float8 (negative), $2 most int
WITH ahead AS MATERIALIZED (
    SELECT first.id FROM (SELECT DISTINCT queue FROM queue_counts) q
    CROSS JOIN LATERAL (
        SELECT id FROM jobs
        WHERE jobs.queue = q.queue AND order_at > clock(NULL) - make_interval(secs => $1::float8 / 2)
        ORDER BY order_at, id LIMIT $2::integer FOR UPDATE SKIP LOCKED
    ) first
    LIMIT $2::integer
),
moved AS (
    UPDATE jobs SET
        order_at = order_at + make_interval(secs => $1::float8),
        run_after = run_after + make_interval(secs => $1::float8)
    FROM ahead WHERE jobs.id = ANY (ARRAY[ahead.id])
    RETURNING 1
)
SELECT count(*) FROM moved;
