-- name: look_at_schedules
-- When the next one is due, and whether occurrences wait or jobs have not ended. Reads only.
-- $1 now timestamptz or null (tests only)
SELECT
    clock($1::timestamptz) AS now,
    (SELECT next_at FROM schedules WHERE NOT is_paused AND next_at IS NOT NULL ORDER BY next_at LIMIT 1) AS next_at,
    EXISTS (SELECT FROM schedules WHERE NOT is_paused AND buffered <> '{}') AS has_buffered,
    EXISTS (SELECT FROM schedules WHERE open_jobs <> '{}') AS has_open;

-- name: lock_due_schedules
-- Those whose time has come, the longest due first; none while the clock shows what no clock that is right can show. A node passes
-- by what another has locked.
-- $1 now timestamptz or null (tests only), $2 the earliest time that can be right timestamptz, $3 most int
SELECT moment.now, due.*
FROM (SELECT clock($1::timestamptz) AS now OFFSET 0) moment
CROSS JOIN LATERAL (
    SELECT
-- include: schedule_columns
    FROM schedules
    WHERE NOT is_paused AND next_at IS NOT NULL AND next_at <= moment.now AND moment.now >= $2::timestamptz
    ORDER BY next_at LIMIT $3::int FOR UPDATE SKIP LOCKED
) due;

-- name: lock_buffered_schedules
-- Those of which occurrences wait.
-- $1 now timestamptz or null (tests only), $2 after name text, $3 most int
SELECT moment.now, waiting.*
FROM (SELECT clock($1::timestamptz) AS now OFFSET 0) moment
CROSS JOIN LATERAL (
    SELECT
-- include: schedule_columns
    FROM schedules WHERE NOT is_paused AND buffered <> '{}' AND name > $2::text
    ORDER BY name LIMIT $3::int FOR UPDATE SKIP LOCKED
) waiting;

-- name: lock_open_schedules
-- Those with jobs that have not been seen to end.
-- $1 now timestamptz or null (tests only), $2 after name text, $3 most int
SELECT moment.now, unsettled.*
FROM (SELECT clock($1::timestamptz) AS now OFFSET 0) moment
CROSS JOIN LATERAL (
    SELECT
-- include: schedule_columns
    FROM schedules WHERE open_jobs <> '{}' AND name > $2::text
    ORDER BY name LIMIT $3::int FOR UPDATE SKIP LOCKED
) unsettled;

-- name: lock_schedule
-- One schedule by its name, locked: the caller waits for another transaction that holds it.
-- $1 now timestamptz or null (tests only), $2 name text
SELECT
    clock($1::timestamptz) AS now,
-- include: schedule_columns
FROM schedules WHERE name = $2::text FOR UPDATE;

-- name: read_statuses
-- Reads only. A job that retention has deleted is missing.
-- $1 job_ids uuid[]
SELECT found.id, found.status
FROM unnest($1::uuid[]) AS a (id)
CROSS JOIN LATERAL (SELECT id, status FROM jobs WHERE jobs.id = a.id OFFSET 0) found;

-- name: save_schedules
-- Writes how schedules stand, each only if it is as it was read: by its version. Answers with their names.
-- $1 names text[], $2 versions bigint[], $3 occurrences timestamptz[], $4 next_at timestamptz[], $5 decided_at timestamptz[],
-- $6 handled text[], $7 buffered text[], $8 open_jobs text[] (each an array as text), $9 failures int[], $10 started bigint[],
-- $11 skipped bigint[], $12 missed bigint[] (each by how many more), $13 paused_why text[] (null: not paused by this)
UPDATE schedules s SET
    version = s.version + 1, occurrence = a.occurrence, next_at = a.next_at, decided_at = a.decided_at,
    handled = a.handled::bigint[], buffered = a.buffered::timestamptz[], open_jobs = a.open_jobs::uuid[],
    failures = a.failures, started = s.started + a.started, skipped = s.skipped + a.skipped,
    missed = s.missed + a.missed, is_paused = s.is_paused OR a.paused_why IS NOT NULL,
    paused_why = coalesce(a.paused_why, s.paused_why)
FROM unnest(
    $1::text[], $2::bigint[], $3::timestamptz[], $4::timestamptz[], $5::timestamptz[], $6::text[], $7::text[], $8::text[],
    $9::int[], $10::bigint[], $11::bigint[], $12::bigint[], $13::text[]
) AS a (
    name, version, occurrence, next_at, decided_at, handled, buffered, open_jobs, failures, started, skipped, missed,
    paused_why
)
WHERE s.name = ANY (ARRAY[a.name]) AND s.version = a.version
RETURNING s.name;

-- name: plan_again_after_step_back
-- Of those that were decided about at a later time than the clock shows, the next occurrence is to be found again. None while the
-- clock shows what no clock that is right can show.
-- $1 now timestamptz or null (tests only), $2 the earliest time that can be right timestamptz, $3 tolerance in s float8
UPDATE schedules SET version = version + 1, occurrence = NULL, next_at = 'epoch', decided_at = moment.now
FROM (SELECT clock($1::timestamptz) AS now OFFSET 0) moment
WHERE name >= '' AND decided_at > moment.now + make_interval(secs => $3::float8) AND moment.now >= $2::timestamptz
    AND next_at IS NOT NULL
RETURNING name;
