-- name: read_ticket
-- A ticket by its id; no row: it is unknown or deleted. Reads only.
-- $1 ticket_id uuid
SELECT * FROM tickets WHERE ticket_id = $1;

-- name: is_gone_ticket
-- A row if retention has deleted this ticket not long ago. Reads only.
-- $1 ticket_id uuid
SELECT ticket_id FROM gone_tickets WHERE ticket_id = $1;

-- name: list_tickets
-- One page, newest first, out of a bounded stretch of the table, so that a rare author costs no more than a busy one. The
-- last row of the stretch is always there, fitting or not: the next page goes on from it. Reads only.
-- $1 before uuid (null: from the newest), $2 stretch int, $3 task text, $4 created_by text (each null: any)
WITH stretch AS (
    SELECT * FROM tickets WHERE ticket_id < coalesce($1, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
    ORDER BY ticket_id DESC LIMIT $2::integer
)
-- include: fitting_or_last
;

-- name: list_tickets_in_status
-- The same for tickets in one status, by the index on it. Reads only.
-- $1 before uuid (null: from the newest), $2 stretch int, $3 task text, $4 created_by text (each null: any),
-- $5 status text
WITH stretch AS (
    SELECT * FROM tickets
    WHERE status = $5::text AND ticket_id < coalesce($1, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
    ORDER BY ticket_id DESC LIMIT $2::integer
)
-- include: fitting_or_last
;

-- fragment: fitting_or_last
SELECT * FROM (
    SELECT
        *, row_number() OVER (ORDER BY ticket_id DESC) = count(*) OVER () AS is_last,
        ($3::text IS NULL OR task = $3) AND ($4::text IS NULL OR created_by = $4) AS fits
    FROM stretch
) page
WHERE fits OR is_last
ORDER BY ticket_id DESC
