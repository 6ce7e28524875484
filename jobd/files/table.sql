-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- fragment: file_columns
id, owner, filename, purpose, bytes, ref, created_at, expires_at

-- name: create_file
-- $1 id uuid, $2 owner text, $3 filename text, $4 purpose text, $5 bytes bigint, $6 ref text,
-- $7 keep_s float8 (null: until it is deleted), $8 now timestamptz or null (tests only)
INSERT INTO files (id, owner, filename, purpose, bytes, ref, created_at, expires_at)
SELECT $1, $2, $3, $4, $5, $6, made.at, made.at + make_interval(secs => $7::float8)
FROM (SELECT clock($8) AS at) made
RETURNING
-- include: file_columns
;

-- name: read_file
-- One that has expired is not there, though its row may be. While the clock shows what it cannot show, none has. Reads only.
-- $1 id uuid, $2 now timestamptz or null (tests only)
SELECT
-- include: file_columns
FROM files WHERE id = $1 AND (expires_at <= (SELECT agreed_clock($2))) IS NOT TRUE;

-- name: list_newest_files
-- Newest first. Reads only.
-- $1 after uuid (null: from the newest), $2 most int, $3 owner text (null: any), $4 purpose text (null: any),
-- $5 now timestamptz or null (tests only)
SELECT
-- include: file_columns
FROM files
WHERE (created_at, id) < (
    SELECT coalesce((SELECT f.created_at FROM files f WHERE f.id = $1), 'infinity'),
        coalesce($1, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
)
AND ($3::text IS NULL OR owner = $3) AND ($4::text IS NULL OR purpose = $4) AND (expires_at <= (SELECT agreed_clock($5))) IS NOT TRUE
ORDER BY created_at DESC, id DESC LIMIT $2::integer;

-- name: list_oldest_files
-- Oldest first. Reads only.
-- $1 after uuid (null: from the oldest), $2 most int, $3 owner text (null: any), $4 purpose text (null: any),
-- $5 now timestamptz or null (tests only)
SELECT
-- include: file_columns
FROM files
WHERE (created_at, id) > (
    SELECT coalesce((SELECT f.created_at FROM files f WHERE f.id = $1), '-infinity'),
        coalesce($1, '00000000-0000-0000-0000-000000000000'::uuid)
)
AND ($3::text IS NULL OR owner = $3) AND ($4::text IS NULL OR purpose = $4) AND (expires_at <= (SELECT agreed_clock($5))) IS NOT TRUE
ORDER BY created_at, id LIMIT $2::integer;

-- name: delete_file
-- Without a row back there is no such file, or a batch that has not ended reads it.
-- $1 id uuid
WITH old AS MATERIALIZED (SELECT f.id FROM files f WHERE f.id = $1 FOR UPDATE)
DELETE FROM files USING old WHERE files.id = ANY (ARRAY[old.id]) AND NOT is_batch_input(old.id) RETURNING files.ref;

-- name: prune_files
-- Deletes some files that have expired, but none that a batch reads which has not ended; the bytes are to go after the commit.
-- $1 most int, $2 now timestamptz or null (tests only)
WITH old AS MATERIALIZED (
    SELECT f.id FROM files f WHERE f.expires_at < (SELECT agreed_clock($2))
    ORDER BY f.expires_at LIMIT $1::integer FOR UPDATE SKIP LOCKED
)
DELETE FROM files USING old WHERE files.id = ANY (ARRAY[old.id]) AND NOT is_batch_input(old.id) RETURNING files.ref;

-- name: read_file_refs
-- The files that rows name, of these ids. Reads only.
-- $1 file_ids uuid[]
SELECT files.ref FROM unnest($1::uuid[]) AS a (file_id) JOIN files ON files.id = ANY (ARRAY[a.file_id]);
