-- In a join, `= ANY (ARRAY[x])` says `= x` and keeps the plan: see claim.sql.

-- name: lock_admission
-- One admits at a time, until the end of its transaction. The statement that admits comes after this one and so sees all that
-- others have admitted.
SELECT pg_advisory_xact_lock(7453218);

-- name: note_starts
-- Works off takes of jobs whose starts count: such a job stands in line no more, and its key is nudged. A start that the end of the
-- job has noted already, or that belongs to an earlier stay in the line, is passed over. Answers how many takes, and whether the
-- clock shows what it may show: else a rate would be counted by a wrong one, and nobody is to be admitted yet.
-- $1 most takes int, $2 now timestamptz or null (tests only)
WITH oldest AS MATERIALIZED (SELECT id FROM limit_takes ORDER BY id LIMIT $1::integer),
taken AS MATERIALIZED (
    DELETE FROM limit_takes t USING oldest WHERE t.id = ANY (ARRAY[oldest.id])
    RETURNING t.queue, t.job_ids, t.keys, t.attempts, t.turn_at, t.at
),
started AS MATERIALIZED (
    SELECT j.job_id, max(j.attempt_no) AS attempt_no, array_agg(j.attempt_no) AS attempts, array_agg(t.at) AS ats
    FROM taken t CROSS JOIN LATERAL unnest(t.job_ids, t.attempts) AS j (job_id, attempt_no)
    GROUP BY j.job_id ORDER BY j.job_id
),
standing AS MATERIALIZED (
    SELECT s.*, p.attempt_no AS noted_no FROM started s JOIN limit_places p ON p.job_id = ANY (ARRAY[s.job_id])
),
out_of_line AS (
    UPDATE limit_places p SET in_line = false, attempt_no = s.attempt_no
    FROM standing s WHERE p.job_id = ANY (ARRAY[s.job_id]) AND p.attempt_no < s.attempt_no
    RETURNING p.queue, p.key, p.has_rate, s.noted_no, s.attempts, s.ats
),
counted AS (
    INSERT INTO limit_starts (queue, key, started_at)
    SELECT o.queue, o.key, s.at FROM out_of_line o CROSS JOIN LATERAL unnest(o.attempts, o.ats) AS s (attempt_no, at)
    WHERE o.has_rate AND s.attempt_no > o.noted_no
),
nudged AS (
    INSERT INTO limit_nudges (queue, key, turn_at)
    SELECT t.queue, k.key, max(t.turn_at) FROM taken t CROSS JOIN LATERAL unnest(t.keys) AS k (key) GROUP BY t.queue, k.key
)
SELECT (SELECT count(*) FROM taken) AS takes, agreed_clock($2) IS NOT NULL AS is_clock_agreed;

-- name: displace_jobs
-- A job that has come to be admitted, and is more urgent than jobs of its key that stand in line, takes the place of one: as many of
-- those as more urgent jobs are held go back, the least urgent first, to be admitted again after them. Where keys take turns all
-- less urgent ones go back, and the key has their turns again. Only in mode `direct`: in a stream they have been offered.
-- Looked at only for a job that is the most urgent of those that its key holds; others would have to wait for that one.
-- $1 most nudges int, $2 queues with limits text[], $3 whether the keys of a queue take turns bool[], $4 most jobs in line of one key
-- that are looked at int
WITH arrived AS MATERIALIZED (SELECT queue, key, job_id FROM limit_nudges ORDER BY id LIMIT $1::integer),
heads AS MATERIALIZED (
    SELECT a.queue, a.key, h.id, h.place, coalesce(($3::boolean[])[array_position($2::text[], a.queue)], false) AS has_turns
    FROM arrived a CROSS JOIN LATERAL (
        SELECT jobs.id, held_place(jobs.run_after, jobs.priority) AS place FROM jobs
        WHERE jobs.queue = a.queue AND jobs.limit_key = a.key AND jobs.held = 'limited'
        ORDER BY held_place(jobs.run_after, jobs.priority), jobs.id LIMIT 1
    ) h
    WHERE a.job_id IS NOT NULL AND h.id = a.job_id
        AND (SELECT true FROM queues q WHERE q.name = a.queue AND q.mode = 'direct')
),
standing AS MATERIALIZED (
    SELECT
        s.id, h.queue, h.key, h.has_turns,
        row_number() OVER (PARTITION BY h.queue, h.key ORDER BY s.place DESC, s.id DESC) AS nth,
        first_value(s.place) OVER (PARTITION BY h.queue, h.key ORDER BY s.place DESC, s.id DESC) AS last_place
    FROM heads h CROSS JOIN LATERAL (
        SELECT j.id, held_place(j.run_after, j.priority) AS place
        FROM (SELECT p.job_id FROM limit_places p WHERE p.queue = h.queue AND p.key = h.key LIMIT $4::integer) p
        JOIN jobs j ON j.id = ANY (ARRAY[p.job_id]) AND (j.order_at IS NOT NULL) IS TRUE
    ) s
    WHERE (s.place, s.id) > (h.place, h.id)
),
displaced AS MATERIALIZED (
    SELECT s.id, s.queue, s.key, s.has_turns, j.order_at
    FROM standing s CROSS JOIN LATERAL (
        SELECT jobs.order_at FROM jobs
        WHERE jobs.id = ANY (ARRAY[s.id]) AND (jobs.order_at IS NOT NULL) IS TRUE AND jobs.status = 'queued'
        FOR UPDATE SKIP LOCKED
    ) j
    WHERE s.has_turns OR s.nth <= (
        SELECT count(*) FROM (
            SELECT FROM jobs
            WHERE jobs.queue = s.queue AND jobs.limit_key = s.key AND jobs.held = 'limited'
                AND held_place(jobs.run_after, jobs.priority) <= s.last_place
            LIMIT $4
        ) urgent
    )
),
moved AS (
    UPDATE jobs SET held = 'limited', order_at = NULL, due_at = 'infinity'
    FROM displaced d WHERE jobs.id = ANY (ARRAY[d.id])
    RETURNING jobs.id
),
turned_back AS (
    UPDATE limit_keys k SET turn_at = d.turn_at - interval '1 millisecond' / coalesce(
        (SELECT r.weight FROM limit_rules r WHERE r.queue = d.queue AND r.key = d.key),
        (SELECT r.weight FROM limit_rules r WHERE r.queue = d.queue AND r.key = '*'), 1
    )
    FROM (SELECT queue, key, min(order_at) AS turn_at FROM displaced WHERE has_turns GROUP BY queue, key) d
    WHERE k.queue = ANY (ARRAY[d.queue]) AND k.key = d.key
)
SELECT count(*) FROM moved;

-- name: admit_jobs
-- Looks at keys that were nudged, or whose rate may have room again, and puts jobs that they hold back in line, as far as their
-- limits have room. A queue with turns gives each key's next jobs their turns: a turn is one unit (a millisecond, divided by
-- the key's weight) after the key's last one, and not before what has started already; so a key that was idle has saved nothing,
-- and one that is new waits for nobody's backlog.
-- Answers with the queues in which there are jobs in line now, and how many; one row without a queue has the number of nudges.
-- $1 most nudges int, $2 queues with limits text[], $3 jobs of a key at once int[], $4 starts within a period int[],
-- $5 periods in s float8[] (0: any number, and any), $6 whether the keys of a queue take turns bool[], $7 most jobs of one key in line
-- where they take turns int, $8 most jobs that are admitted of one key int, $9 now timestamptz or null (tests only)
WITH moment AS MATERIALIZED (SELECT clock($9) AS now),
oldest AS MATERIALIZED (SELECT id FROM limit_nudges ORDER BY id LIMIT $1::integer),
nudged AS (
    DELETE FROM limit_nudges n USING oldest WHERE n.id = ANY (ARRAY[oldest.id]) RETURNING n.queue, n.key, n.turn_at
),
asked AS MATERIALIZED (
    SELECT queue, key, array_position($2::text[], queue) AS queue_no FROM (
        SELECT queue, key FROM nudged
        UNION
        (SELECT queue, key FROM limit_keys WHERE next_at <= (SELECT agreed_clock($9)) ORDER BY next_at LIMIT $1::integer)
    ) found
    ORDER BY queue, key
),
-- how far the turns of each queue have come; where nobody stands in line, up to now
turned AS MATERIALIZED (
    SELECT
        q.queue,
        greatest(
            (SELECT max(n.turn_at) FROM nudged n WHERE n.queue = q.queue),
            (SELECT turn_at FROM limit_keys k WHERE k.queue = q.queue AND k.key = '*'),
            CASE
                WHEN (SELECT true FROM limit_places p WHERE p.queue = q.queue AND p.in_line LIMIT 1) IS NOT TRUE THEN moment.now
            END
        ) AS turn_at
    FROM (SELECT DISTINCT queue FROM asked WHERE ($6::boolean[])[queue_no]) q CROSS JOIN moment
),
ruled AS MATERIALIZED (
    SELECT
        a.queue, a.key, coalesce(($6::boolean[])[a.queue_no], false) AS has_turns, coalesce(own.weight, usual.weight, 1) AS weight,
        CASE WHEN a.key <> '' THEN nullif(coalesce(own.running, usual.running, ($3::integer[])[a.queue_no]), 0) END AS running,
        CASE WHEN a.key <> '' THEN nullif(coalesce(own.rate, usual.rate, ($4::integer[])[a.queue_no]), 0) END AS rate,
        make_interval(secs => CASE
            WHEN own.rate IS NOT NULL THEN own.rate_s WHEN usual.rate IS NOT NULL THEN usual.rate_s
            ELSE coalesce(($5::double precision[])[a.queue_no], 0)
        END) AS period
    FROM asked a
    LEFT JOIN limit_rules own ON own.queue = ANY (ARRAY[a.queue]) AND own.key = a.key
    LEFT JOIN limit_rules usual ON usual.queue = ANY (ARRAY[a.queue]) AND usual.key = '*'
),
counted AS MATERIALIZED (
    SELECT
        r.*, moment.now, interval '1 millisecond' / r.weight AS unit,
        CASE WHEN running IS NOT NULL THEN
            (SELECT count(*) FROM limit_places p WHERE p.queue = r.queue AND p.key = r.key)
        END AS places,
        CASE WHEN rate IS NOT NULL OR has_turns THEN
            (SELECT count(*) FROM limit_places p WHERE p.queue = r.queue AND p.key = r.key AND p.in_line)
        END AS in_line,
        CASE WHEN rate IS NOT NULL THEN (
            SELECT count(*) FROM limit_starts s WHERE s.queue = r.queue AND s.key = r.key AND s.started_at > moment.now - r.period
        ) END AS starts,
        CASE WHEN has_turns THEN (SELECT k.turn_at FROM limit_keys k WHERE k.queue = r.queue AND k.key = r.key) END AS last_turn
    FROM ruled r CROSS JOIN moment
),
roomy AS MATERIALIZED (
    SELECT
        *, greatest(0, least(running - places, rate - in_line - starts, CASE WHEN has_turns THEN $7::integer - in_line END, $8::integer)) AS room,
        CASE WHEN has_turns THEN
            greatest(last_turn + unit, (SELECT t.turn_at FROM turned t WHERE t.queue = counted.queue))
        END AS turn_at
    FROM counted
),
-- the next jobs of each key, and one more if there is one; a row without a job for a key that holds none back
found AS MATERIALIZED (
    SELECT first.*, r.*
    FROM roomy r LEFT JOIN LATERAL (
        SELECT line.*, row_number() OVER () AS nth FROM (
            SELECT jobs.id, jobs.run_after, jobs.priority FROM jobs
            WHERE jobs.queue = r.queue AND jobs.limit_key = r.key AND jobs.held = 'limited'
            ORDER BY held_place(jobs.run_after, jobs.priority), jobs.id LIMIT r.room + 1
        ) line
    ) first ON true
),
picked AS MATERIALIZED (
    SELECT
        id, rate IS NOT NULL AS has_rate, rate IS NOT NULL OR has_turns AS counts_start,
        CASE WHEN has_turns THEN turn_at + (nth - 1) * unit ELSE place(run_after, priority) END AS order_at
    FROM found WHERE nth <= room ORDER BY id
),
moved AS (
    UPDATE jobs SET order_at = p.order_at, due_at = NULL, held = NULL, counts_start = p.counts_start
    FROM picked p
    WHERE jobs.id = ANY (ARRAY[p.id]) AND jobs.status = 'queued' AND (jobs.held = 'limited') IS TRUE
    RETURNING jobs.id, jobs.queue, jobs.limit_key, jobs.attempt_no, p.has_rate
),
placed AS (
    INSERT INTO limit_places (job_id, queue, key, has_rate, attempt_no) SELECT id, queue, limit_key, has_rate, attempt_no FROM moved
),
keyed AS MATERIALIZED (
    SELECT
        queue, key, now, period, turn_at, unit, room, count(*) FILTER (WHERE nth <= room) AS number,
        coalesce(bool_or(nth > room), false) AS has_more,
        (rate IS NOT NULL OR has_turns) AND (in_line > 0 OR count(id) > 0) AS is_kept, rate IS NOT NULL AS has_rate
    FROM found GROUP BY queue, key, now, period, turn_at, unit, room, rate, has_turns, in_line
),
outdated AS (
    DELETE FROM limit_starts s USING keyed
    WHERE keyed.has_rate AND s.queue = ANY (ARRAY[keyed.queue]) AND s.key = keyed.key AND s.started_at <= keyed.now - keyed.period
),
forgotten AS (
    DELETE FROM limit_keys k USING keyed WHERE NOT is_kept AND k.queue = ANY (ARRAY[keyed.queue]) AND k.key = keyed.key
),
remembered AS (
    INSERT INTO limit_keys AS k (queue, key, next_at, turn_at)
    SELECT
        queue, key,
        CASE WHEN has_rate AND has_more THEN
            least(now, (
                SELECT min(s.started_at) FROM limit_starts s
                WHERE s.queue = keyed.queue AND s.key = keyed.key AND s.started_at > keyed.now - keyed.period
            )) + period
        END,
        CASE WHEN number > 0 THEN turn_at + (number - 1) * unit END
    FROM keyed WHERE is_kept
    UNION ALL
    SELECT queue, '*', NULL, turn_at FROM turned
    ON CONFLICT (queue, key) DO UPDATE SET
        next_at = excluded.next_at, turn_at = greatest(k.turn_at, excluded.turn_at)
),
again AS (INSERT INTO limit_nudges (queue, key) SELECT queue, key FROM keyed WHERE has_more AND room = $8)
SELECT queue, count(*) AS number FROM moved GROUP BY queue
UNION ALL
SELECT NULL, (SELECT count(*) FROM oldest);

-- name: nudge_keys
-- Leaves a nudge for every key of a queue that holds jobs back, found one by one through the index: for when a limit has changed.
-- $1 queue text (null: of all queues that have been used)
WITH RECURSIVE keys AS (
    SELECT q.queue, first.key
    FROM (SELECT DISTINCT queue FROM queue_counts WHERE $1::text IS NULL OR queue = $1) q CROSS JOIN LATERAL (
        SELECT limit_key AS key FROM jobs WHERE jobs.queue = q.queue AND held = 'limited' ORDER BY limit_key LIMIT 1
    ) first
    UNION ALL
    SELECT k.queue, following.key
    FROM keys k CROSS JOIN LATERAL (
        SELECT limit_key AS key FROM jobs
        WHERE jobs.queue = k.queue AND held = 'limited' AND limit_key > k.key ORDER BY limit_key LIMIT 1
    ) following
)
INSERT INTO limit_nudges (queue, key) SELECT queue, key FROM keys;

-- name: forget_starts
-- Forgets starts of a day ago, of keys that nobody has used since: no period is longer. One batch; how many. It reads all starts.
-- $1 most int, $2 now timestamptz or null (tests only)
WITH deleted AS (
    DELETE FROM limit_starts WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM limit_starts WHERE started_at < (SELECT agreed_clock($2)) - interval '1 day' LIMIT $1::integer
    ))
    RETURNING 1
)
SELECT count(*) FROM deleted;

-- name: set_limit
-- $1 queue text, $2 key text (`*`: all that have none of their own), $3 jobs at once int, $4 starts within a period int,
-- $5 period in s float8, $6 weight float8 (each null: as for all keys, or as configured), $7 now timestamptz or null (tests only)
INSERT INTO limit_rules (queue, key, running, rate, rate_s, weight, updated_at) VALUES ($1, $2, $3, $4, $5, $6, clock($7))
ON CONFLICT (queue, key) DO UPDATE SET
    running = excluded.running, rate = excluded.rate, rate_s = excluded.rate_s, weight = excluded.weight,
    updated_at = excluded.updated_at;

-- name: drop_limit
-- No row back: there was none.
-- $1 queue text, $2 key text
DELETE FROM limit_rules WHERE queue = $1 AND key = $2 RETURNING key;

-- name: read_limits
-- In order, page by page. Reads only.
-- $1 after queue text, $2 after key text, $3 most int
SELECT queue, key, running, rate, rate_s, weight FROM limit_rules
WHERE (queue, key) > ($1, $2) ORDER BY queue, key LIMIT $3::integer;
