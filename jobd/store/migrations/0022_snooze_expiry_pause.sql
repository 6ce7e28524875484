-- A job that has not started by `expires_at` is canceled instead. How often it was put off by its own handler (snooze) is counted.
-- Jobs of a queue with the same `limit_key` share the limits of that key.
ALTER TABLE jobd.jobs
    ADD COLUMN limit_key text,
    ADD COLUMN expires_at timestamptz,
    ADD COLUMN snoozes integer NOT NULL DEFAULT 0;

-- Waiting jobs that can expire. Its columns change when a job enters or leaves the queue and at no other time, as those of the
-- other indexes do.
CREATE INDEX jobs_expiry ON jobd.jobs (expires_at, id)
WHERE expires_at IS NOT NULL AND started_at IS NULL AND (order_at IS NOT NULL OR due_at IS NOT NULL);

-- What is paused beside queues: tasks by name, and under the kind `all`, with the empty name, everything. A task whose row has
-- `paused` false is being resumed: its jobs are put back in line batch by batch, then the row goes.
CREATE TABLE jobd.pauses (
    kind text NOT NULL CHECK (kind IN ('task', 'all')),
    name text NOT NULL,
    paused boolean NOT NULL DEFAULT true,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (kind, name)
);

-- Jobs of a paused task are put out of the line (held), so that whoever takes jobs need not search among them.
ALTER DOMAIN jobd.hold DROP CONSTRAINT hold_check;
ALTER DOMAIN jobd.hold ADD CONSTRAINT hold_check CHECK (VALUE IN ('depends', 'limited', 'paused'));
CREATE INDEX jobs_set_aside ON jobd.jobs (task, id) WHERE held = 'paused';

-- The queues of which nothing is started.
CREATE VIEW jobd.paused_queues AS
SELECT name FROM jobd.queues WHERE paused OR (SELECT true FROM jobd.pauses WHERE kind = 'all' AND paused) IS TRUE;

-- The tasks of which nothing is started.
CREATE VIEW jobd.paused_tasks AS SELECT name FROM jobd.pauses WHERE kind = 'task' AND paused;
