-- Limits per key. A job with a limit_key has to be admitted before it stands in line: it is held (`limited`) until its key has room.
-- While it stands in line or runs it has a place (limit_places). A take or a claim of an admitted job changes nothing here, so it
-- costs what it did. Whoever takes a job out of the line, or ends an attempt, frees its place in the same commit, by the trigger
-- below, and leaves a nudge: one who admits (lifecycle/admit.sql), one at a time, deletes the nudge and sees what became of the key.

-- Limits that were set over HTTP. The key `*` stands for all keys of the queue that have no row of their own; what is null there is
-- as the configuration says.
CREATE TABLE jobd.limit_rules (
    queue text NOT NULL,
    key text NOT NULL,
    -- jobs at once; 0: any number
    running integer CHECK (running >= 0),
    -- starts within rate_s seconds; 0: any number
    rate integer CHECK (rate >= 0),
    rate_s double precision CHECK (rate_s > 0),
    -- turns that the key has for one of a key with weight 1
    weight double precision CHECK (weight > 0),
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (queue, key),
    CONSTRAINT rate_has_a_period CHECK ((rate IS NULL) = (rate_s IS NULL))
);

-- Jobs of a key in line or running. `in_line` is kept only for jobs whose starts count.
CREATE TABLE jobd.limit_places (
    job_id uuid PRIMARY KEY,
    queue text NOT NULL,
    key text NOT NULL,
    in_line boolean NOT NULL DEFAULT true,
    -- its start is to be kept in limit_starts
    has_rate boolean NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX limit_places_of_key ON jobd.limit_places (queue, key);

-- When jobs of keys with a rate have started; what is older than the period does not matter any more.
CREATE TABLE jobd.limit_starts (
    queue text NOT NULL,
    key text NOT NULL,
    started_at timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX limit_starts_of_key ON jobd.limit_starts (queue, key, started_at);

-- What is remembered of keys with a rate, and of keys that take turns.
CREATE TABLE jobd.limit_keys (
    queue text NOT NULL,
    key text NOT NULL,
    -- when its rate may have room again for jobs that are held; null: nobody waits for that
    next_at timestamptz,
    -- its last turn on the axis of order_at; of the key `*`: how far the turns of the queue have come
    turn_at timestamptz,
    PRIMARY KEY (queue, key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX limit_keys_next ON jobd.limit_keys (next_at) WHERE next_at IS NOT NULL;

-- Keys that are to be looked at.
CREATE TABLE jobd.limit_nudges (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text NOT NULL,
    key text NOT NULL,
    -- the turn of a job that has started
    turn_at timestamptz
) WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

-- Whether the start of the job is to be noted: its key has a rate, or takes turns.
ALTER TABLE jobd.jobs ADD COLUMN counts_start boolean NOT NULL DEFAULT false;

-- As place(), for an index: a difference of whole minutes depends on no time zone.
CREATE FUNCTION jobd.held_place(run_after timestamptz, priority integer) RETURNS timestamptz LANGUAGE sql IMMUTABLE
RETURN run_after - priority * interval '1 minute';
CREATE INDEX jobs_limited ON jobd.jobs (queue, limit_key, jobd.held_place(run_after, priority), id) WHERE held = 'limited';

CREATE FUNCTION jobd.note_limited() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    counts boolean;
BEGIN
    IF NEW.status <> 'running' THEN
        DELETE FROM jobd.limit_places WHERE job_id = NEW.id;
        INSERT INTO jobd.limit_nudges (queue, key) VALUES (NEW.queue, NEW.limit_key);
    ELSIF TG_OP = 'UPDATE' AND NEW.attempt_no > OLD.attempt_no THEN
        UPDATE jobd.limit_places SET in_line = false WHERE job_id = NEW.id RETURNING has_rate INTO counts;
        IF counts THEN
            INSERT INTO jobd.limit_starts (queue, key, started_at) VALUES (NEW.queue, NEW.limit_key, NEW.updated_at);
        END IF;
        INSERT INTO jobd.limit_nudges (queue, key, turn_at) VALUES (NEW.queue, NEW.limit_key, OLD.order_at);
    END IF;
    RETURN NULL;
END $$;

-- For a job with a key that is out of the line and does not run (new, delayed, held or final), or has started and that counts.
CREATE TRIGGER note_limited AFTER INSERT OR UPDATE ON jobd.jobs FOR EACH ROW
WHEN (NEW.limit_key IS NOT NULL AND NEW.order_at IS NULL AND (NEW.status <> 'running' OR NEW.counts_start))
EXECUTE FUNCTION jobd.note_limited();
