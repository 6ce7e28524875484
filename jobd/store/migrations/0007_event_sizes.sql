-- How large a chunk of events is, in bytes of its JSON: readers take chunks up to a number of bytes. Chunks from before
-- have none.
ALTER TABLE jobd.event_log ADD COLUMN size integer;

-- Bytes of events that a job has kept, counted in the lease of its open attempt. Null: not counted yet.
ALTER TABLE jobd.leases ADD COLUMN event_bytes bigint;
