-- Jobs, their attempts and leases, and what follows from them. The statements of jobd/lifecycle guard every change; what
-- stands here says the same again, so that a mistake in one of them is an error and not a lie.
--
-- Columns that an index depends on (order_at, due_at) change when a job enters or leaves the queue and at no other time.
-- No index depends on status: finishing a job touches no index, so Postgres can update the row in place (HOT).

-- A domain is checked when a value is made; a CHECK of the table would fetch and unpack the payload at every update.
CREATE DOMAIN jobd.json_object AS jsonb CHECK (jsonb_typeof(VALUE) = 'object');

CREATE TABLE jobd.jobs (
    id uuid PRIMARY KEY,
    task text NOT NULL,
    queue text NOT NULL,
    payload jobd.json_object NOT NULL,
    status text NOT NULL DEFAULT 'queued' CHECK (status IN ('queued', 'running', 'done', 'error', 'canceled')),
    priority integer NOT NULL DEFAULT 0,
    run_after timestamptz NOT NULL,
    -- Place in the queue while queued and due: smaller goes first. A point of priority is worth a minute of waiting.
    order_at timestamptz,
    -- When it becomes due, while queued and not due yet.
    due_at timestamptz,
    enqueue_id integer NOT NULL DEFAULT 1,
    -- Grows with every change of the row; a copy elsewhere with a smaller one is old.
    version integer NOT NULL DEFAULT 1,
    attempt_no integer NOT NULL DEFAULT 0,
    attempt_count integer NOT NULL DEFAULT 0,
    max_attempts integer NOT NULL CHECK (max_attempts >= 1),
    timeout_s double precision NOT NULL CHECK (timeout_s > 0),
    ttl_s integer NOT NULL CHECK (ttl_s > 0),
    -- Null for a payload that has no canonical form (integers beyond 2^53).
    spec_hash bytea CHECK (octet_length(spec_hash) = 32),
    redriven_from uuid,
    cancel_requested boolean NOT NULL DEFAULT false,
    result jsonb,
    result_ref text,
    error jsonb,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    started_at timestamptz,
    finished_at timestamptz,
    CONSTRAINT final_has_finished_at CHECK ((status IN ('done', 'error', 'canceled')) = (finished_at IS NOT NULL)),
    CONSTRAINT queued_has_a_place CHECK (num_nonnulls(order_at, due_at) = (status = 'queued')::integer),
    CONSTRAINT attempts_in_bounds CHECK (attempt_count BETWEEN 0 AND max_attempts AND attempt_count <= attempt_no),
    CONSTRAINT running_has_an_attempt CHECK (status <> 'running' OR attempt_count > 0)
) WITH (
    -- Room for a second version of every row: a batch that is claimed stays on its pages, and what it leaves there is room
    -- for the third.
    fillfactor = 45,
    -- Payloads beyond this go out of line, where an update of the row leaves them alone.
    toast_tuple_target = 512,
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0.0,
    autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_analyze_scale_factor = 0.0,
    autovacuum_analyze_threshold = 50000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX jobs_ready ON jobd.jobs (queue, order_at, id) WHERE order_at IS NOT NULL;
CREATE INDEX jobs_due ON jobd.jobs (due_at, id) WHERE due_at IS NOT NULL;
-- Retention looks for old finished jobs. A BRIN index costs nothing per row and does not stand in the way of HOT.
CREATE INDEX jobs_finished ON jobd.jobs USING brin (finished_at) WITH (pages_per_range = 16, autosummarize = on);

CREATE FUNCTION jobd.refuse_transition() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'job % cannot go from % to %', OLD.id, OLD.status, NEW.status USING ERRCODE = 'JD001';
END $$;

-- The condition is the table of legal changes; the function runs only to refuse one that is not in it, and with it the
-- whole statement. AFTER, because a BEFORE trigger locks every row first, which is a WAL record each.
CREATE TRIGGER legal_transition AFTER UPDATE ON jobd.jobs FOR EACH ROW
WHEN (NOT (
    (OLD.status = 'queued' AND NEW.status IN ('queued', 'running', 'canceled'))
    OR (OLD.status = 'running' AND NEW.status IN ('running', 'queued', 'done', 'error', 'canceled'))
))
EXECUTE FUNCTION jobd.refuse_transition();

-- Jobs by specification: the first half of the hash is enough to find them. Not an index of jobs, because a claim would
-- have to write there again, to a page far from those of its neighbours.
CREATE TABLE jobd.job_specs (
    spec uuid NOT NULL,
    job_id uuid NOT NULL,
    PRIMARY KEY (spec, job_id)
) WITH (
    autovacuum_vacuum_insert_scale_factor = 0.0,
    autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_vacuum_cost_delay = 0
);

-- THE lease engine, for jobs and tickets alike. A job's lease stands for its open attempt: one row, so one open attempt.
-- Nothing but the key is indexed, so a renewal is an update in place; the table is as small as the work in progress. The
-- key is the id alone (ids of different kinds never meet): with nothing else to go by, every plan goes through it.
CREATE TABLE jobd.leases (
    resource_id uuid PRIMARY KEY,
    resource_type text NOT NULL CHECK (resource_type IN ('JOB', 'EVENT', 'WORKORDER')),
    owner_id text NOT NULL,
    lease_token uuid NOT NULL,
    claim_version integer NOT NULL DEFAULT 1,
    lease_expires_at timestamptz NOT NULL,
    heartbeat_at timestamptz NOT NULL,
    acquired_at timestamptz NOT NULL,
    attempt_id uuid,
    attempt_no integer,
    stream text,
    message_id text,
    -- How many events of the attempt there are so far, and how many of them its holder told: the same telling sent again
    -- is known by that.
    event_n integer NOT NULL DEFAULT 0,
    told_n integer NOT NULL DEFAULT 0,
    -- What a renewal adds; null: what its holder's node gives to all.
    ttl_s double precision CHECK (ttl_s > 0),
    CONSTRAINT job_has_an_attempt CHECK ((resource_type = 'JOB') = (attempt_id IS NOT NULL AND attempt_no IS NOT NULL))
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);

-- Written once, when an attempt ends.
CREATE TABLE jobd.attempts (
    job_id uuid NOT NULL,
    number integer NOT NULL,
    attempt_id uuid NOT NULL,
    lease_token uuid NOT NULL,
    owner_id text NOT NULL,
    outcome text NOT NULL CHECK (outcome IN ('done', 'failed', 'expired', 'canceled', 'released')),
    -- What the holder reported, so that the same report again can be told from another one.
    outcome_hash bytea,
    error jsonb,
    started_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL,
    stream text,
    message_id text,
    -- Where the job went from here, and the number of the event that says so: the last one of the attempt.
    led_to text NOT NULL CHECK (led_to IN ('queued', 'done', 'error', 'canceled')),
    event_n integer NOT NULL,
    PRIMARY KEY (job_id, number)
) WITH (
    autovacuum_vacuum_insert_scale_factor = 0.0,
    autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_vacuum_cost_delay = 0
);

-- One row per commit: what changed, for the relay to tell the rest of the world. Rows are deleted as they are told.
CREATE TABLE jobd.outbox (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL,
    -- 'taken': running, in the hands of a worker that tells so itself; 'events': told by a holder; 'seen': told by such a
    -- worker, so Redis has them already
    event text NOT NULL CHECK (
        event IN ('queued', 'running', 'taken', 'requeued', 'done', 'error', 'canceled', 'cancel_requested', 'events', 'seen')
    ),
    job_ids uuid[] NOT NULL,
    versions integer[] NOT NULL,
    -- The attempts that it is about and the number of the event in each; null: 0 (before the first attempt), and 1 for
    -- `queued`, 0 for `running`. For `events` and `seen`: the first number of each chunk.
    attempts integer[],
    event_ns integer[],
    -- An attempt ended whose holder fell silent: what it had not told yet is lost, which is an event of its own.
    has_gap boolean NOT NULL DEFAULT false,
    -- The messages that brought the jobs, to be acknowledged; null where there was none.
    streams text[],
    message_ids text[]
) WITH (
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);

-- Ids do not get smaller by compressing them, and trying takes time.
ALTER TABLE jobd.outbox ALTER COLUMN job_ids SET STORAGE EXTERNAL;

-- What holders tell while they work, in chunks, one row per flush. A chunk is a run of events of one attempt: an array of
-- {type, ts, step, data}. What jobd itself tells of a job follows from its row and its attempts and is not kept here.
CREATE TABLE jobd.event_log (
    job_id uuid NOT NULL,
    attempt_no integer NOT NULL,
    first_n integer NOT NULL,
    last_n integer NOT NULL CHECK (last_n >= first_n),
    events jsonb NOT NULL,
    at timestamptz NOT NULL,
    PRIMARY KEY (job_id, attempt_no, first_n)
);

CREATE TABLE jobd.idempotency_keys (
    principal text NOT NULL,
    key text NOT NULL,
    job_id uuid NOT NULL,
    body_hash bytea NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (principal, key)
);
CREATE INDEX idempotency_keys_expiry ON jobd.idempotency_keys (expires_at);

-- Jobs in error, so that listing them needs no index on status.
CREATE TABLE jobd.dead_letters (
    job_id uuid PRIMARY KEY,
    queue text NOT NULL,
    task text NOT NULL,
    reason text NOT NULL CHECK (reason IN ('not_retryable', 'attempts_exhausted')),
    at timestamptz NOT NULL,
    -- The newest job that runs it again.
    redriven_to uuid
);

-- What is set per queue by hand.
CREATE TABLE jobd.queues (
    name text PRIMARY KEY,
    paused boolean NOT NULL DEFAULT false,
    updated_at timestamptz NOT NULL DEFAULT now()
);

-- How many jobs stand where. Every commit adds to the row of its own backend, so commits do not wait for each other;
-- a queue's number is the sum over the shards.
CREATE TABLE jobd.queue_counts (
    queue text NOT NULL,
    shard integer NOT NULL,
    queued bigint NOT NULL DEFAULT 0,
    running bigint NOT NULL DEFAULT 0,
    done bigint NOT NULL DEFAULT 0,
    error bigint NOT NULL DEFAULT 0,
    canceled bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, shard)
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);

-- Ids of jobs that retention has deleted, remembered for a while.
CREATE TABLE jobd.gone_jobs (
    job_id uuid PRIMARY KEY,
    gone_at timestamptz NOT NULL
);
CREATE INDEX gone_jobs_age ON jobd.gone_jobs (gone_at);

-- Shared words of the statements; simple enough for the planner to put them in place.

CREATE FUNCTION jobd.clock(at timestamptz) RETURNS timestamptz LANGUAGE sql VOLATILE
RETURN coalesce(at, clock_timestamp());

-- The n-th of ids that the caller has made: gen_random_uuid asks the kernel for each one apart.
CREATE FUNCTION jobd.id_at(ids bytea, n bigint) RETURNS uuid LANGUAGE sql IMMUTABLE
RETURN encode(substring(ids FROM (16 * n - 15)::integer FOR 16), 'hex')::uuid;

CREATE FUNCTION jobd.shard() RETURNS integer LANGUAGE sql STABLE RETURN pg_backend_pid() % 16;

CREATE FUNCTION jobd.place(run_after timestamptz, priority integer) RETURNS timestamptz LANGUAGE sql STABLE
RETURN run_after - priority * interval '1 minute';

-- Where a job goes when an attempt at it has failed.
CREATE FUNCTION jobd.after_failure(cancel_requested boolean, retryable boolean, attempt_count integer, max_attempts integer)
RETURNS text LANGUAGE sql IMMUTABLE
RETURN CASE
    WHEN cancel_requested THEN 'canceled'
    WHEN retryable AND attempt_count < max_attempts THEN 'queued'
    ELSE 'error'
END;

-- Full jitter below a delay that doubles with every charged attempt.
CREATE FUNCTION jobd.backoff(attempt_count integer, base_s double precision, cap_s double precision, jitter double precision)
RETURNS interval LANGUAGE sql IMMUTABLE
RETURN make_interval(secs => least(cap_s, base_s * power(2.0, least(attempt_count - 1, 60))) * jitter);

-- The number of a task that is an exception, or the number of all others.
CREATE FUNCTION jobd.of_task(task text, tasks text[], numbers double precision[], otherwise double precision)
RETURNS double precision LANGUAGE sql IMMUTABLE
RETURN coalesce(numbers[array_position(tasks, task)], otherwise);

-- Read-only views in the words of other systems, for existing queries and dashboards.

CREATE VIEW jobd.model_runs AS
SELECT
    jobs.id,
    CASE jobs.status
        WHEN 'queued' THEN 'PENDING' WHEN 'running' THEN 'RUNNING' WHEN 'done' THEN 'SUCCEEDED' WHEN 'error' THEN 'FAILED'
    END AS status,
    leases.owner_id AS lease_owner,
    leases.lease_expires_at,
    jobs.started_at,
    jobs.attempt_count,
    jobs.result_ref,
    jobs.error AS last_error
FROM jobd.jobs LEFT JOIN jobd.leases ON leases.resource_id = jobs.id;

CREATE VIEW jobd.task_runs AS
SELECT
    jobs.id,
    encode(jobs.spec_hash, 'hex') AS spec_hash,
    jobs.queue AS queue_name,
    CASE
        WHEN jobs.status = 'queued' AND jobs.attempt_count > 0 THEN 'RETRYING'
        WHEN jobs.status = 'queued' THEN 'PENDING'
        WHEN jobs.status = 'running' THEN 'RUNNING'
        WHEN jobs.status = 'done' THEN 'SUCCESSFUL'
        WHEN jobs.status = 'error' THEN 'FAILED'
        ELSE 'CANCELLED'
    END AS status,
    jobs.priority,
    jobs.run_after,
    leases.lease_expires_at AS leased_until,
    leases.owner_id AS worker_id,
    jobs.payload AS payload_json,
    jobs.result AS result_json,
    jobs.error AS error_json,
    jobs.attempt_count,
    jobs.max_attempts,
    jobs.created_at,
    jobs.updated_at,
    jobs.started_at,
    jobs.finished_at AS completed_at
FROM jobd.jobs LEFT JOIN jobd.leases ON leases.resource_id = jobs.id;
