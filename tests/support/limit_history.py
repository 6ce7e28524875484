"""What the rows of attempts and leases tell about limits per key: how many ran at once, and how often they started.

By the clock of Postgres: an attempt ends there before its end is committed, and the next one is admitted after that.
"""

from __future__ import annotations

#: Keys that had more than $1 attempts under way at some time.
RAN_TOO_MANY = """
SELECT queue, limit_key, max(running) FROM (
    SELECT queue, limit_key, sum(step) OVER (PARTITION BY queue, limit_key ORDER BY at, step) AS running
    FROM (
        SELECT job_id, started_at AS at, 1 AS step FROM jobd.attempts
        UNION ALL SELECT job_id, ended_at, -1 FROM jobd.attempts
        UNION ALL SELECT resource_id, acquired_at, 1 FROM jobd.leases
    ) steps JOIN jobd.jobs ON jobs.id = job_id
) history
GROUP BY 1, 2 HAVING max(running) > $1
"""
#: Keys of queue $1 that had more than $2 starts within less than $3 seconds.
STARTED_TOO_OFTEN = """
SELECT limit_key, started_at, nth_after FROM (
    SELECT
        limit_key, starts.at AS started_at,
        lead(starts.at, $2::integer) OVER (PARTITION BY limit_key ORDER BY starts.at) AS nth_after
    FROM (
        SELECT job_id, started_at AS at FROM jobd.attempts
        UNION ALL SELECT resource_id, acquired_at FROM jobd.leases
    ) starts JOIN jobd.jobs ON jobs.id = job_id
    WHERE queue = $1
) history
WHERE nth_after - started_at < make_interval(secs => $3::double precision)
"""
