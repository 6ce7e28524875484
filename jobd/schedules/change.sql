-- name: insert_schedule
-- No row back: there is one of this name.
-- $1 name text, $2 origin text, $3 definition text, $4 created_by text, $5 is_paused bool, $6 occurrence timestamptz,
-- $7 next_at timestamptz, $8 now timestamptz
INSERT INTO schedules (
    name, origin, definition, created_by, is_paused, occurrence, next_at, decided_at, created_at, updated_at
)
VALUES ($1, $2, $3::text::jsonb, $4, $5, $6, $7, $8, $8, $8)
ON CONFLICT (name) DO NOTHING
RETURNING
-- include: schedule_columns
;

-- name: redefine_schedule
-- Its caller has locked it.
-- $1 name text, $2 origin text, $3 definition text, $4 occurrence timestamptz, $5 next_at timestamptz, $6 now timestamptz
UPDATE schedules SET
    version = version + 1, origin = $2, definition = $3::text::jsonb, occurrence = $4, next_at = $5, decided_at = $6,
    updated_at = $6
WHERE name = $1
RETURNING
-- include: schedule_columns
;

-- name: pause_schedule
-- Its caller has locked it.
-- $1 name text, $2 now timestamptz
UPDATE schedules SET version = version + 1, is_paused = true, paused_why = NULL, updated_at = $2 WHERE name = $1
RETURNING
-- include: schedule_columns
;

-- name: resume_schedule
-- Its caller has locked it. Failures are counted from the beginning.
-- $1 name text, $2 occurrence timestamptz, $3 next_at timestamptz, $4 now timestamptz
UPDATE schedules SET
    version = version + 1, is_paused = false, paused_why = NULL, failures = 0, occurrence = $2, next_at = $3,
    decided_at = $4, updated_at = $4
WHERE name = $1
RETURNING
-- include: schedule_columns
;

-- name: delete_schedules
-- With their events; jobs stay.
-- $1 names text[]
DELETE FROM schedules WHERE name = ANY ($1::text[]);

-- name: list_configured
-- Schedules of the configuration, by name. Reads only.
-- $1 after name text, $2 most int
SELECT
-- include: schedule_columns
FROM schedules WHERE name > $1::text AND origin = 'config' ORDER BY name LIMIT $2::int;
