-- A step of the clock moves the ends of waits and leases along; see jobd/store/clock.sql.

-- Whether a delayed job waits for an instant of the clock (`run_after`), and not for a time to pass (a delay, a backoff).
ALTER TABLE jobd.jobs ADD COLUMN at_instant boolean NOT NULL DEFAULT false;

-- The clock, for decisions that a wrong one would spoil; null, so that nothing is decided, while it shows what it cannot
-- show by the last mark. Marks are made every 30 s (MARK_S in jobd/clock.py).
CREATE FUNCTION jobd.agreed_clock(at timestamptz) RETURNS timestamptz LANGUAGE sql VOLATILE
RETURN CASE
    WHEN at IS NOT NULL THEN at
    WHEN EXISTS (SELECT FROM jobd.clock_eras) THEN (
        SELECT CASE
            WHEN jobd.clock(NULL) BETWEEN era.wall_to - interval '5 seconds' AND era.wall_to + interval '45 seconds'
            THEN jobd.clock(NULL)
        END
        FROM (SELECT wall_to FROM jobd.clock_eras ORDER BY no DESC LIMIT 1) era
    )
    ELSE jobd.clock(NULL)
END;

-- The latest time that is known: tokens do not come back to life while the clock is behind.
CREATE FUNCTION jobd.latest_clock() RETURNS timestamptz LANGUAGE sql VOLATILE
RETURN greatest(jobd.clock(NULL), (SELECT known_at FROM jobd.clock_eras ORDER BY no DESC LIMIT 1));
