-- name: read_tokens
-- All tokens that ever were, for the doorkeeper and the list; expires_in_s by the latest time that is
-- known.
SELECT id, name, sha256, scopes, queues, own_jobs, created_at, expires_at,
       extract(epoch FROM expires_at - latest_clock())::float8 AS expires_in_s,
       revoked_at
FROM tokens
ORDER BY id;

-- name: create_token
-- $1 id text, $2 name text, $3 sha256 bytea, $4 scopes text[], $5 queues text[] or null, $6 days until it expires
-- float8 or null, $7 own_jobs bool
INSERT INTO tokens (id, name, sha256, scopes, queues, expires_at, own_jobs)
VALUES ($1::text, $2::text, $3::bytea, $4::text[], $5::text[], latest_clock() + $6::float8 * interval '1 day', $7::bool);

-- name: revoke_tokens
-- By id or by name; a name takes all that have it.
-- $1 name_or_id text
UPDATE tokens
SET revoked_at = clock(NULL)
WHERE (id = $1::text OR name = $1::text) AND revoked_at IS NULL
RETURNING id, name;

-- name: append_audit
-- $1 actor text, $2 action text, $3 subject text
INSERT INTO audit (actor, action, subject) VALUES ($1::text, $2::text, $3::text);

-- name: read_audit
-- Newest first, along the primary key.
-- $1 before bigint or null, $2 most int
SELECT id, at, actor, action, subject
FROM audit
WHERE $1::bigint IS NULL OR id < $1::bigint
ORDER BY id DESC
LIMIT $2::int;
