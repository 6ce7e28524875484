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
-- How far the era has come. The newest mark counts, whoever makes it.
-- $1 no int, $2 wall, $3 steady, $4 known (seconds since 1970), $5 boot_id text, $6 boot_s float8
UPDATE clock_eras SET
    wall_to = to_timestamp($2::float8), steady_to = to_timestamp($3::float8), known_at = to_timestamp($4::float8),
    boot_id = $5, boot_s = $6
WHERE no = $1 AND steady_to < to_timestamp($3::float8);
