-- How the jobs of a queue reach their workers. In `stream` every job is taken through its message in Redis, so a worker that
-- speaks only Redis may take it; in `direct` nothing is offered in Redis, and jobs are taken from the table. A statement that
-- takes jobs directly locks the row (FOR SHARE) and checks the mode there; a change of the mode updates the row, so it waits for
-- takes under way, and no later one slips through. `mode_no` grows with every change: Redis refuses messages of an older one.
ALTER TABLE jobd.queues
    ADD COLUMN mode text NOT NULL DEFAULT 'stream' CHECK (mode IN ('stream', 'direct')),
    ADD COLUMN mode_no integer NOT NULL DEFAULT 1;
