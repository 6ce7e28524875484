-- name: read_tickets
-- Tickets by id; one without a row is unknown. Reads only.
-- $1 ticket_ids uuid[]
SELECT t.* FROM unnest($1::uuid[]) AS a (ticket_id) JOIN tickets t ON t.ticket_id = ANY (ARRAY[a.ticket_id]);

-- name: is_gone_ticket
-- A row if retention has deleted this ticket not long ago. Reads only.
-- $1 ticket_id uuid
SELECT ticket_id FROM gone_tickets WHERE ticket_id = $1;

-- name: list_tickets
-- One page, newest first, out of a bounded stretch of the table, so that a rare author costs no more than a busy one. The
-- last row of the stretch is always there, fitting or not: the next page goes on from it. Reads only.
-- $1 before uuid (null: from the newest), $2 stretch int, $3 task text, $4 created_by text (each null: any)
SELECT * FROM (
    SELECT
        *, row_number() OVER (ORDER BY ticket_id DESC) = count(*) OVER () AS is_last,
        ($3::text IS NULL OR task = $3) AND ($4::text IS NULL OR created_by = $4) AS fits
    FROM (
        SELECT * FROM tickets WHERE ticket_id < coalesce($1, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
        ORDER BY ticket_id DESC LIMIT $2::integer
    ) stretch
) looked
WHERE fits OR is_last
ORDER BY ticket_id DESC;

-- name: list_tickets_in_status
-- The same for those that stand somewhere, which an index knows. Reads only.
-- $1 before uuid (null: from the newest), $2 stretch int, $3 task text, $4 created_by text (each null: any),
-- $5 status text
SELECT * FROM (
    SELECT
        *, row_number() OVER (ORDER BY ticket_id DESC) = count(*) OVER () AS is_last,
        ($3::text IS NULL OR task = $3) AND ($4::text IS NULL OR created_by = $4) AS fits
    FROM (
        SELECT * FROM tickets
        WHERE status = $5::text AND ticket_id < coalesce($1, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
        ORDER BY ticket_id DESC LIMIT $2::integer
    ) stretch
) looked
WHERE fits OR is_last
ORDER BY ticket_id DESC;
