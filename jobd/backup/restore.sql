-- name: read_held
-- Jobs that were in someone's hands: one page.
-- $1 most int
SELECT resource_id AS job_id, attempt_id, lease_token FROM leases WHERE resource_type = 'JOB'
ORDER BY resource_id LIMIT $1::integer;

-- name: drop_leases
-- The leases that are left are of tickets, without attempts to close; the next poller takes that work up.
DELETE FROM leases;

-- name: drop_leaders
DELETE FROM leaders;

-- name: forget_nodes
-- None of them serves this database.
DELETE FROM nodes;

-- name: rename_installation
-- This is another world than the one that the backup was taken from, which may have gone on: a Redis that knows that one
-- must not pass for ours, nor a message in it for one of ours.
UPDATE installation SET id = gen_random_uuid(), epoch = 0;

-- name: analyze_statement
-- The ANALYZE statement for all tables of the schema, whichever there are: the planner needs their statistics.
SELECT 'ANALYZE ' || string_agg(format('jobd.%I', relname), ', ')
FROM pg_class WHERE relnamespace = 'jobd'::regnamespace AND relkind IN ('r', 'p');
