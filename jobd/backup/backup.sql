-- name: prepare_backup
-- Nothing may cut a backup short that only takes its time: not the limits that stuck statements have, nor the one for idle
-- sessions, since this one waits while pg_dump works. Counting reads whole tables.
SELECT
    set_config('statement_timeout', '0', false), set_config('lock_timeout', '0', false),
    set_config('idle_in_transaction_session_timeout', '0', false), set_config('enable_seqscan', 'on', false);

-- name: hold_back_janitor
-- As long as this session lasts no job is pruned, so no file goes that a row of the snapshot names. Several backups can
-- hold it at once.
-- $1 key bigint
SELECT pg_advisory_lock_shared($1::bigint);

-- name: export_snapshot
-- What all of the backup is about: the rows as they are now.
SELECT
    pg_export_snapshot() AS snapshot,
    (SELECT max(number) FROM jobd.schema_migrations) AS schema,
    current_setting('server_version_num')::integer / 10000 AS postgres,
    clock_timestamp() AS made_at,
    (SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
        WHERE relnamespace = 'jobd'::regnamespace AND relkind = 'r') AS database_bytes;

-- name: count_statement
-- The statement that counts the rows of every table of the schema, whichever there are.
SELECT
    string_agg(
        format('SELECT %L AS name, count(*) AS rows FROM jobd.%I', relname, relname), ' UNION ALL ' ORDER BY relname
    )
FROM pg_class WHERE relnamespace = 'jobd'::regnamespace AND relkind IN ('r', 'p');

-- name: count_jobs
SELECT status, count(*) AS jobs FROM jobd.jobs GROUP BY status ORDER BY status;

-- name: result_files
-- The result files that rows name.
SELECT result_ref FROM jobd.jobs WHERE result_ref IS NOT NULL ORDER BY id;

-- name: files_table
-- Whether there are files of clients and batches: a database of an older jobd has no table for them.
SELECT to_regclass('jobd.files') IS NOT NULL;

-- name: client_files
-- The files of clients and batches.
SELECT ref FROM jobd.files ORDER BY id;

-- name: other_tables
-- Tables that someone put beside jobd's own; they are not part of a backup.
SELECT format('%I.%I', nspname, relname) AS name
FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE relkind IN ('r', 'p') AND relpersistence <> 't' AND nspname NOT IN ('jobd', 'pg_catalog', 'information_schema')
    AND nspname NOT LIKE 'pg\_toast%' AND nspname NOT LIKE 'pg\_temp%'
ORDER BY 1;

-- name: dump_bytes_at_most
-- A dump has no indexes and no empty space, and is compressed: it is never larger than the tables.
SELECT coalesce(sum(pg_table_size(oid)), 0)::bigint AS bytes FROM pg_class
WHERE relnamespace = to_regnamespace('jobd') AND relkind = 'r';
