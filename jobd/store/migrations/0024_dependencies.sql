-- Jobs that wait for other jobs, and groups of jobs. A job that depends on others is held (0018) until the last of them has ended; a
-- group knows its members by counters. What ends a job says so in `settled` in the same commit, and one service works that off.
ALTER TABLE jobd.jobs
    ADD COLUMN group_id uuid,
    -- other jobs or a group wait for its end, which leaves a row in `settled`
    ADD COLUMN linked boolean NOT NULL DEFAULT false,
    -- how many of those that it depends on have not ended yet; null: it depends on none
    ADD COLUMN waits_for integer CHECK (waits_for >= 0);

-- What each job depends on. A row stays as long as its job: it says where the inputs of the job come from.
CREATE TABLE jobd.dependencies (
    -- the job that waits
    job_id uuid NOT NULL,
    -- the job or group that it waits for
    on_id uuid NOT NULL,
    is_group boolean NOT NULL DEFAULT false,
    -- any end will do; else only success, and another end cancels the job
    on_any boolean NOT NULL DEFAULT false,
    -- name of the input
    ref text,
    -- place among the dependencies of the job, from 1
    place integer NOT NULL,
    -- has not ended, or nobody has noticed yet
    open boolean NOT NULL DEFAULT true,
    PRIMARY KEY (job_id, on_id)
);
CREATE INDEX dependencies_on ON jobd.dependencies (on_id);
CREATE INDEX dependencies_open ON jobd.dependencies (on_id) WHERE open;

CREATE TABLE jobd.groups (
    id uuid PRIMARY KEY,
    name text,
    -- an object of strings; null: none
    labels jsonb,
    -- name of the token that made it
    owner text,
    -- no more members come
    sealed boolean NOT NULL DEFAULT false,
    members bigint NOT NULL DEFAULT 0,
    -- members that ended so
    done bigint NOT NULL DEFAULT 0,
    error bigint NOT NULL DEFAULT 0,
    canceled bigint NOT NULL DEFAULT 0,
    -- members that run a dead letter among the members again
    retried bigint NOT NULL DEFAULT 0,
    -- the job that runs when all members are final
    callback_id uuid,
    created_at timestamptz NOT NULL,
    -- when it was sealed and its last member ended
    finished_at timestamptz,
    CONSTRAINT finished_is_sealed_and_final CHECK (finished_at IS NULL OR sealed AND members = done + error + canceled),
    CONSTRAINT no_more_final_than_members CHECK (done + error + canceled <= members)
) WITH (fillfactor = 50);
CREATE INDEX groups_newest ON jobd.groups (created_at);
CREATE INDEX groups_finished ON jobd.groups (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX groups_open ON jobd.groups (id) WHERE finished_at IS NULL;

-- Ends that dependencies and groups have yet to hear of.
CREATE TABLE jobd.settled (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- a job that has ended, or a group that has finished
    id uuid NOT NULL,
    status text NOT NULL CHECK (status IN ('done', 'error', 'canceled')),
    -- the group whose counters have to move
    group_id uuid
) WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

-- A trigger and no part of the statements, so that whatever ends a job, now or in a later version, cannot forget it. It is the one
-- that was there already, since every trigger has its price for every statement; a job that nobody waits for does not call it.
CREATE FUNCTION jobd.settle_or_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.finished_at IS NOT NULL OR OLD.status = 'queued' AND NEW.status <> 'canceled' THEN
        RAISE EXCEPTION 'job % cannot go from % to %', OLD.id, OLD.status, NEW.status USING ERRCODE = 'JD001';
    END IF;
    INSERT INTO jobd.settled (id, status, group_id) VALUES (NEW.id, NEW.status, NEW.group_id);
    RETURN NULL;
END $$;

DROP TRIGGER legal_transition ON jobd.jobs;
CREATE TRIGGER legal_transition AFTER UPDATE ON jobd.jobs FOR EACH ROW
WHEN (
    OLD.finished_at IS NOT NULL
    OR NEW.finished_at IS NOT NULL AND (NEW.linked OR OLD.status = 'queued' AND NEW.status <> 'canceled')
)
EXECUTE FUNCTION jobd.settle_or_refuse();
DROP FUNCTION jobd.refuse_transition();
