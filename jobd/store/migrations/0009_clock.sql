-- What is known of the clock, so that one that jumps deletes and repeats nothing; see jobd/clock.py.

-- Stretches in which the clock ran evenly while jobd was there, newest last. `steady` times count only how long jobd ran.
CREATE TABLE jobd.clock_eras (
    no integer PRIMARY KEY,
    wall_from timestamptz NOT NULL,
    steady_from timestamptz NOT NULL,
    -- when it was last seen
    wall_to timestamptz NOT NULL,
    steady_to timestamptz NOT NULL,
    -- the latest time known for certain by then
    known_at timestamptz NOT NULL,
    -- by whom it was last seen: the boot of its machine, and the seconds since
    boot_id text NOT NULL,
    boot_s double precision NOT NULL
) WITH (fillfactor = 50);

-- Steady time now. Between a step of the clock and its notice it is wrong by at most a minute backwards, a day forwards.
CREATE FUNCTION jobd.steady(at timestamptz) RETURNS timestamptz LANGUAGE sql VOLATILE
RETURN coalesce(
    at,
    (
        SELECT greatest(steady_to, least(steady_to + interval '1 day', steady_from + (jobd.clock(NULL) - wall_from)))
        FROM jobd.clock_eras ORDER BY no DESC LIMIT 1
    ),
    jobd.clock(NULL)
);

-- Times that were taken by the clock so far and count steady time from now on; the two start as one.
COMMENT ON COLUMN jobd.idempotency_keys.expires_at IS 'steady time';
COMMENT ON COLUMN jobd.gone_jobs.gone_at IS 'steady time';
COMMENT ON COLUMN jobd.gone_tickets.gone_at IS 'steady time';
