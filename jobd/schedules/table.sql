-- fragment: schedule_columns
name, origin, definition::text AS definition, created_by, version, is_paused, paused_why, occurrence, next_at, decided_at, handled,
buffered, open_jobs, failures, started, skipped, missed, created_at, updated_at

-- name: read_schedule
-- Reads only.
-- $1 name text
SELECT
-- include: schedule_columns
FROM schedules WHERE name = $1::text;

-- name: list_schedules
-- By name. Reads only.
-- $1 after name text, $2 most int
SELECT
-- include: schedule_columns
FROM schedules WHERE name > $1::text ORDER BY name LIMIT $2::int;

-- name: read_schedule_events
-- Newest first. Reads only.
-- $1 schedule text, $2 most int
SELECT schedule, at, kind, first_for, last_for, number, detail
FROM schedule_events WHERE schedule = $1::text ORDER BY id DESC LIMIT $2::int;

-- name: append_schedule_events
-- Adds events, and deletes those of the same schedules that are older than the newest 100.
-- $1 schedules text[], $2 at timestamptz[], $3 kinds text[], $4 first_for timestamptz[], $5 last_for timestamptz[],
-- $6 numbers bigint[], $7 details text[]
WITH added AS (
    INSERT INTO schedule_events (schedule, at, kind, first_for, last_for, number, detail)
    SELECT * FROM unnest(
        $1::text[], $2::timestamptz[], $3::text[], $4::timestamptz[], $5::timestamptz[], $6::bigint[], $7::text[]
    )
)
DELETE FROM schedule_events e
USING (
    SELECT older.schedule, older.id
    FROM (SELECT DISTINCT schedule FROM unnest($1::text[]) AS a (schedule)) named
    CROSS JOIN LATERAL (
        SELECT o.schedule, o.id FROM schedule_events o WHERE o.schedule = named.schedule ORDER BY o.id DESC OFFSET 99
    ) older
) old
WHERE e.schedule = ANY (ARRAY[old.schedule]) AND e.id = ANY (ARRAY[old.id]);

-- name: read_clock_for_schedules
-- $1 now timestamptz or null (tests only)
SELECT clock($1::timestamptz) AS now;
