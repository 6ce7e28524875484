-- name: open_session
-- Makes a session for a token, which it does not outlive, and deletes the oldest ones of that token when they are many.
-- $1 sha256 bytea, $2 token_id text or null, $3 token_sha256 bytea or null, $4 life_s float8, $5 most int, $6 actor text
WITH crowded AS (
    DELETE FROM sessions WHERE sha256 IN (
        SELECT sha256 FROM sessions
        WHERE token_id IS NOT DISTINCT FROM $2::text AND token_sha256 IS NOT DISTINCT FROM $3::bytea
        ORDER BY created_at DESC OFFSET $5::integer - 1
    )
),
audited AS (INSERT INTO audit (actor, action, subject) VALUES ($6::text, 'session.open', coalesce($2::text, 'configured')))
INSERT INTO sessions (sha256, token_id, token_sha256, expires_at)
VALUES (
    $1::bytea, $2::text, $3::bytea,
    least(latest_clock() + make_interval(secs => $4::float8), (SELECT expires_at FROM tokens WHERE id = $2::text))
)
RETURNING
    sha256, token_id, token_sha256, expires_at,
    extract(epoch FROM expires_at - latest_clock())::float8 AS expires_in_s;

-- name: open_session_by_code
-- Uses up a login code and makes a session without a token; no row back: the code is unknown, was used or is too old.
-- $1 code_sha256 bytea, $2 sha256 bytea, $3 life_s float8, $4 actor text
WITH used AS (DELETE FROM login_codes WHERE sha256 = $1::bytea RETURNING expires_at),
audited AS (
    INSERT INTO audit (actor, action, subject)
    SELECT $4::text, 'session.open', 'code' FROM used WHERE used.expires_at > latest_clock()
)
INSERT INTO sessions (sha256, expires_at)
SELECT $2::bytea, latest_clock() + make_interval(secs => $3::float8) FROM used WHERE used.expires_at > latest_clock()
RETURNING
    sha256, token_id, token_sha256, expires_at,
    extract(epoch FROM expires_at - latest_clock())::float8 AS expires_in_s;

-- name: read_sessions
-- Those of these sessions that are in force.
-- $1 sha256s bytea[]
SELECT
    sha256, token_id, token_sha256, expires_at,
    extract(epoch FROM expires_at - latest_clock())::float8 AS expires_in_s
FROM sessions
WHERE sha256 = ANY ($1::bytea[]) AND expires_at > (SELECT latest_clock());

-- name: close_session
-- $1 sha256 bytea
DELETE FROM sessions WHERE sha256 = $1::bytea;

-- name: create_login_code
-- $1 sha256 bytea, $2 life_s float8
INSERT INTO login_codes (sha256, expires_at) VALUES ($1::bytea, latest_clock() + make_interval(secs => $2::float8));

-- name: prune_sessions
-- Forgets sessions and login codes whose time is over by what is known for certain: a clock that was set decades ahead
-- signs nobody out for good. Answers how many.
WITH known AS MATERIALIZED (
    SELECT coalesce((SELECT known_at FROM clock_eras ORDER BY no DESC LIMIT 1), clock(NULL)) AS at
),
closed AS (DELETE FROM sessions WHERE expires_at < (SELECT at FROM known) RETURNING 1),
unused AS (DELETE FROM login_codes WHERE expires_at < (SELECT at FROM known) RETURNING 1)
SELECT (SELECT count(*) FROM closed) + (SELECT count(*) FROM unused);
