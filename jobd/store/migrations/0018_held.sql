-- A queued job that may not run yet for another reason than its time is held: it waits for other jobs (`depends`), or its key is at
-- its limit (`limited`). A held job has the time `infinity` (due_at), so the line, the relay and the promotion of due jobs pass it
-- by at no cost; whoever lets it go gives it its place in the line (order_at) or its time.
CREATE DOMAIN jobd.hold AS text CHECK (VALUE IN ('depends', 'limited'));
ALTER TABLE jobd.jobs ADD COLUMN held jobd.hold;
