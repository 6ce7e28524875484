-- name: ensure_queues
-- $1 queues text[] (in order)
INSERT INTO queues (name) SELECT a.queue FROM unnest($1::text[]) AS a (queue) ON CONFLICT (name) DO NOTHING;

-- name: queue_modes
-- A queue is paused, too, while everything is. Reads only.
SELECT
    name, mode, mode_no, paused OR (SELECT true FROM pauses WHERE kind = 'all' AND pauses.paused) IS TRUE AS paused
FROM queues;

-- name: change_mode
-- Compare-and-swap by the number of the mode that is to end; a row back if it was that. The row is locked by takes under way,
-- so the change waits for them. A queue that has no row yet gets one.
-- $1 queue text, $2 mode text, $3 mode_no int
INSERT INTO queues AS q (name, mode, mode_no) VALUES ($1, $2, $3::integer + 1)
ON CONFLICT (name) DO UPDATE SET mode = excluded.mode, mode_no = excluded.mode_no WHERE q.mode_no = $3
RETURNING mode_no;
