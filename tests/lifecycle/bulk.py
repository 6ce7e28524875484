"""Very many rows, put into the tables directly: they stand for a long past and a long queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.factories import NOW

if TYPE_CHECKING:
    from jobd.store.session import Session

#: Ids as jobd makes them: the number of milliseconds first, so older jobs have smaller ones.
_ID = """
(
    lpad(to_hex((extract(epoch FROM $2::timestamptz) * 1000)::bigint - $1 + n), 12, '0')
    || '70008' || substr(md5(random()::text), 1, 15)
)::uuid
"""

_FINISHED = f"""
WITH added AS (
    INSERT INTO jobs (
        id, task, queue, payload, status, run_after, version, attempt_no, attempt_count, max_attempts, timeout_s, ttl_s,
        spec_hash, result, created_at, updated_at, started_at, finished_at
    )
    SELECT
        {_ID}, 'embed', 'default', jsonb_build_object('text', repeat('x', 100), 'n', n), 'done', ended, 3, 1, 1, 3, 30,
        3600, sha256(n::text::bytea), '{{"ok": true}}', ended, ended, ended, ended
    FROM generate_series(1, $1::bigint) AS n
    CROSS JOIN LATERAL (SELECT $2::timestamptz - ($1 - n) * interval '1 ms' AS ended) t
    RETURNING id, finished_at
),
closed AS (
    INSERT INTO attempts (
        job_id, number, attempt_id, lease_token, owner_id, outcome, started_at, ended_at, led_to, event_n
    )
    SELECT id, 1, gen_random_uuid(), gen_random_uuid(), 'w', 'done', finished_at, finished_at, 'done', 1 FROM added
)
INSERT INTO queue_counts (queue, shard, done) VALUES ('default', -1, $1)
ON CONFLICT (queue, shard) DO UPDATE SET done = queue_counts.done + excluded.done
"""

_QUEUED = f"""
WITH added AS (
    INSERT INTO jobs (
        id, task, queue, payload, run_after, order_at, due_at, max_attempts, timeout_s, ttl_s, spec_hash, created_at,
        updated_at
    )
    SELECT
        {_ID}, 'embed', 'backlog', jsonb_build_object('text', repeat('x', 100), 'n', n), starts,
        CASE WHEN starts <= $2 THEN starts END, CASE WHEN starts > $2 THEN starts END, 3, 30, 3600,
        sha256((-n)::text::bytea), $2, $2
    FROM generate_series(1, $1::bigint) AS n
    CROSS JOIN LATERAL (
        SELECT $2::timestamptz + CASE WHEN n % 10 = 0 THEN interval '1 day' ELSE interval '-1 day' END
            + n * interval '1 ms' AS starts
    ) t
)
INSERT INTO queue_counts (queue, shard, queued) VALUES ('backlog', -1, $1)
ON CONFLICT (queue, shard) DO UPDATE SET queued = queue_counts.queued + excluded.queued
"""


async def fill(connection: Session, *, finished: int, queued: int) -> None:
    """So many finished jobs with their attempts, and so many that wait in the queue `backlog`, each tenth delayed."""
    await connection.execute("SET statement_timeout = '10min'")
    await connection.execute(_FINISHED, finished, NOW)
    await connection.execute(_QUEUED, queued, NOW)
    await connection.execute("VACUUM ANALYZE")
    await connection.execute("RESET statement_timeout")


_VARIETY = """
WITH added AS (
    INSERT INTO jobs (
        id, task, queue, payload, status, run_after, version, attempt_no, attempt_count, max_attempts, timeout_s, ttl_s,
        spec_hash, result, error, created_at, updated_at, started_at, finished_at, labels, owner
    )
    SELECT
        (
            lpad(to_hex((extract(epoch FROM made) * 1000)::bigint), 12, '0') || '70008'
            || substr(md5(n::text || random()), 1, 15)
        )::uuid,
        CASE WHEN n % 100000 = 7 THEN 'rare' WHEN n % 3 = 0 THEN 'chat' ELSE 'embed' END, 'default',
        jsonb_build_object('text', repeat('x', 100), 'n', n),
        CASE WHEN n % 10 = 1 THEN 'error' WHEN n % 1000 = 2 THEN 'canceled' ELSE 'done' END,
        made, 3, 1, 1, 3, 30, 3600, sha256(n::text::bytea), CASE WHEN n % 10 <> 1 THEN '{"ok": true}'::jsonb END,
        CASE
            WHEN n % 30 = 1 THEN '{"code": "timeout", "message": "it took too long"}'::jsonb
            WHEN n % 10 = 1 THEN '{"code": "boom", "message": "Out of memory"}'
        END,
        made, made, made, made, CASE WHEN n % 4 = 0 THEN jsonb_build_object('team', 'vision', 'one', n::text) END,
        CASE WHEN n % 5 = 0 THEN 'ann' END
    FROM generate_series(1, $1::bigint) AS n
    CROSS JOIN LATERAL (SELECT clock_timestamp() - ($1 - n) * interval '1 ms' AS made) t
    RETURNING id, task, queue, status, finished_at, spec_hash, labels, owner
),
closed AS (
    INSERT INTO attempts (
        job_id, number, attempt_id, lease_token, owner_id, outcome, started_at, ended_at, led_to, event_n
    )
    SELECT
        id, 1, gen_random_uuid(), gen_random_uuid(), 'w', CASE status WHEN 'error' THEN 'failed' ELSE status END,
        finished_at, finished_at, status, 1
    FROM added
),
buried AS (
    INSERT INTO dead_letters (job_id, queue, task, reason, at)
    SELECT id, queue, task, 'not_retryable', finished_at FROM added WHERE status = 'error'
),
specified AS (INSERT INTO job_specs (spec, job_id) SELECT id_at(spec_hash, 1), id FROM added),
labelled AS (
    INSERT INTO job_labels (name, value, job_id)
    SELECT l.key, l.value, id FROM added CROSS JOIN LATERAL jsonb_each_text(labels) l
    UNION ALL
    SELECT '', owner, id FROM added WHERE owner IS NOT NULL
)
INSERT INTO queue_counts (queue, shard, done, error, canceled)
SELECT
    queue, -1, count(*) FILTER (WHERE status = 'done'), count(*) FILTER (WHERE status = 'error'),
    count(*) FILTER (WHERE status = 'canceled')
FROM added GROUP BY queue
ON CONFLICT (queue, shard) DO UPDATE SET
    done = queue_counts.done + excluded.done, error = queue_counts.error + excluded.error,
    canceled = queue_counts.canceled + excluded.canceled
"""

_WEEK = """
INSERT INTO rollups
SELECT
    minute, 'default', task, 60, 1, 0, 1, 0, 6.1, 61.0, array_fill(4::bigint, '{14}'), array_fill(4::bigint, '{14}')
FROM generate_series(date_trunc('minute', now()) - interval '8 days', now(), interval '1 minute') AS minute
CROSS JOIN unnest('{chat,embed,rare}'::text[]) AS task
"""


async def fill_variety(connection: Session, finished: int) -> None:
    """Jobs of the last minutes that ended in every way, a tenth in error and few of one kind, and a week of rollups."""
    await connection.execute("SET statement_timeout = '30min'")
    await connection.execute(_VARIETY, finished)
    await connection.execute(_WEEK)
    await connection.execute("VACUUM ANALYZE")
    await connection.execute("RESET statement_timeout")
