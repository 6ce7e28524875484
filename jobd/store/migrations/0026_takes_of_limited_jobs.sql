-- A take of jobs whose starts count (a rate, turns) leaves one row for each queue, whatever the number of jobs; whoever admits next
-- works it off before it looks at the keys. A trigger that noted each start made such a take cost twice what another one does.
-- Until then a job that has started counts as one that stands in line: a rate counts both, so it has no more room for it.
CREATE TABLE jobd.limit_takes (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text NOT NULL,
    job_ids uuid[] NOT NULL,
    keys text[] NOT NULL,
    -- the numbers of the attempts that were started
    attempts integer[] NOT NULL,
    -- the last turn of these jobs; null: they ran already, and another holder has taken over
    turn_at timestamptz,
    at timestamptz NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
    toast_tuple_target = 8160
);
-- A row lives for milliseconds: to compress it costs more than it saves, and what fits into a page stays there.
ALTER TABLE jobd.limit_takes
    ALTER COLUMN job_ids SET STORAGE EXTERNAL, ALTER COLUMN keys SET STORAGE EXTERNAL, ALTER COLUMN attempts SET STORAGE EXTERNAL;

-- The last attempt whose start is noted. So each start is noted once: by one who admits, or by the trigger below when the job ends
-- or leaves the line before that.
ALTER TABLE jobd.limit_places ADD COLUMN attempt_no integer NOT NULL DEFAULT 0;
UPDATE jobd.limit_places p SET attempt_no = j.attempt_no FROM jobd.jobs j WHERE j.id = p.job_id;

-- The job that has come to be admitted; null: its key is to be looked at for another reason.
ALTER TABLE jobd.limit_nudges ADD COLUMN job_id uuid;

DROP TRIGGER note_limited ON jobd.jobs;
CREATE OR REPLACE FUNCTION jobd.note_limited() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    noted integer;
BEGIN
    DELETE FROM jobd.limit_places WHERE job_id = NEW.id RETURNING CASE WHEN has_rate THEN attempt_no END INTO noted;
    IF noted < NEW.attempt_no THEN
        INSERT INTO jobd.limit_starts (queue, key, started_at)
        SELECT NEW.queue, NEW.limit_key, OLD.updated_at FROM generate_series(noted + 1, NEW.attempt_no);
    END IF;
    INSERT INTO jobd.limit_nudges (queue, key, job_id)
    VALUES (NEW.queue, NEW.limit_key, CASE WHEN NEW.held = 'limited' THEN NEW.id END);
    RETURN NULL;
END $$;

-- For a job with a key that is out of the line and does not run: new, delayed, held or final.
CREATE TRIGGER note_limited AFTER INSERT OR UPDATE ON jobd.jobs FOR EACH ROW
WHEN (NEW.limit_key IS NOT NULL AND NEW.order_at IS NULL AND NEW.status <> 'running')
EXECUTE FUNCTION jobd.note_limited();
