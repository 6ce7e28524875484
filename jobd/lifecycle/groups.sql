-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- fragment: group_columns
id, name, labels::text AS labels, owner, sealed, members, done, error, canceled, retried, callback_id, created_at, finished_at

-- name: create_group
-- Without a row back there is a group of this id already.
-- $1 id uuid, $2 name text, $3 labels text (a JSON object of strings; null: none), $4 owner text, $5 callback_id uuid,
-- $6 now timestamptz or null (tests only)
INSERT INTO groups (id, name, labels, owner, callback_id, created_at) VALUES ($1, $2, $3::text::jsonb, $4, $5, clock($6))
ON CONFLICT (id) DO NOTHING
RETURNING id;

-- name: seal_group
-- No more members come. A group whose members have all ended is finished by it.
-- $1 id uuid, $2 now timestamptz or null (tests only)
WITH moved AS (
    UPDATE groups SET sealed = true, finished_at = CASE WHEN members = done + error + canceled THEN clock($2) END
    WHERE id = $1 AND NOT sealed
    RETURNING id, finished_at, error - retried + canceled > 0 AS has_failures
),
finished AS (
    INSERT INTO settled (id, status)
    SELECT id, CASE WHEN has_failures THEN 'error' ELSE 'done' END FROM moved WHERE finished_at IS NOT NULL
)
SELECT id FROM moved;

-- name: read_group
-- Reads only.
-- $1 id uuid
SELECT
-- include: group_columns
FROM groups WHERE id = $1;

-- name: list_groups
-- Newest first. Reads only.
-- $1 before uuid (null: from the newest), $2 most int, $3 owner text (null: any)
SELECT
-- include: group_columns
FROM groups
WHERE (created_at, id) < (
    SELECT coalesce((SELECT g.created_at FROM groups g WHERE g.id = $1), 'infinity'),
        coalesce($1, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
)
AND ($3::text IS NULL OR owner = $3)
ORDER BY created_at DESC, id DESC LIMIT $2::integer;

-- name: prune_groups
-- Deletes groups that finished before the cutoff, whose members are gone, and for which nobody waits.
-- $1 keep_s float8, $2 most int, $3 now timestamptz or null (tests only), $4 cutoff timestamptz (null: keep_s ago by the clock),
-- stretches before the cutoff that are not to be touched: $5 from timestamptz[], $6 to timestamptz[]
WITH old AS MATERIALIZED (
    SELECT g.id FROM groups g WHERE g.finished_at < (SELECT coalesce($4, clock($3) - make_interval(secs => $1)))
        AND (
            SELECT true FROM unnest($5::timestamptz[], $6::timestamptz[]) AS k (low, high)
            WHERE g.finished_at BETWEEN k.low AND k.high LIMIT 1
        ) IS NOT TRUE
        AND (SELECT true FROM job_labels l WHERE l.name = '@group' AND l.value = g.id::text LIMIT 1) IS NOT TRUE
        AND (SELECT true FROM dependencies d WHERE d.on_id = g.id LIMIT 1) IS NOT TRUE
    ORDER BY g.finished_at LIMIT $2::integer FOR UPDATE SKIP LOCKED
),
pruned AS (DELETE FROM groups USING old WHERE groups.id = ANY (ARRAY[old.id]) AND NOT is_needed(old.id) RETURNING groups.id)
SELECT count(*) AS groups FROM pruned;
