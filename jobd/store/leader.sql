-- name: take_lead
-- Takes or renews the lead if it is this holder's, a dead holder's, nobody's, or over; one row says whether it did, and how long
-- the lease that stands is good for. One that ends later than any can was given before the clock was set back: it is over.
-- $1 name text, $2 holder text, $3 ttl_s float8, $4 dead_holders text[], $5 now timestamptz or null (tests only)
WITH taken AS (
    INSERT INTO leaders AS l (name, holder, expires_at)
    SELECT $1, $2, clock($5) + make_interval(secs => $3)
    WHERE NOT EXISTS (  -- so that who stands by writes nothing
        SELECT FROM leaders AS o
        WHERE o.name = $1 AND o.holder <> $2 AND o.holder <> ALL ($4::text[])
            AND o.expires_at > clock($5) AND o.expires_at <= clock($5) + 2 * make_interval(secs => $3)
    )
    ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at
    WHERE l.holder = excluded.holder OR l.holder = ANY ($4::text[])
        OR l.expires_at <= clock($5) OR l.expires_at > clock($5) + 2 * make_interval(secs => $3)
    RETURNING l.expires_at
)
SELECT
    EXISTS (SELECT FROM taken) AS leads,
    coalesce(
        (SELECT extract(epoch FROM o.expires_at - clock($5)) FROM leaders AS o WHERE o.name = $1), 0
    )::float8 AS left_s;

-- name: give_up_lead
-- $1 name text, $2 holder text
DELETE FROM leaders WHERE name = $1 AND holder = $2;
