-- Retention for tickets: what is DONE goes after its time with all that hangs on it; see jobd/tickets/prune.sql.

-- DONE tickets by when they became so: one that is DONE is not changed, except by being reopened.
CREATE INDEX tickets_ended ON jobd.tickets (updated_at, ticket_id) WHERE status = 'DONE';
-- Who waits for a ticket. Few stand here, and without a list of what is yet to be sorted in, a look costs the same always.
CREATE INDEX tickets_blocked_on ON jobd.tickets USING gin (blocked_on) WITH (fastupdate = off)
    WHERE status <> 'DONE' AND blocked_on <> '{}';

-- Ids of tickets that retention has deleted, remembered for a while.
CREATE TABLE jobd.gone_tickets (
    ticket_id uuid PRIMARY KEY,
    gone_at timestamptz NOT NULL
);
CREATE INDEX gone_tickets_age ON jobd.gone_tickets (gone_at);

-- An artifact is still never changed, and never goes before its ticket. A statement that deletes both sees to it that the
-- ticket is the first: this looks at what the statement has done so far.
CREATE OR REPLACE FUNCTION jobd.artifact_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF NOT EXISTS (SELECT FROM jobd.tickets WHERE ticket_id = OLD.ticket_id) THEN
            RETURN OLD;
        END IF;
        RAISE EXCEPTION 'rows of jobd.% are never changed, and are deleted only with their ticket, %',
            TG_TABLE_NAME, OLD.ticket_id USING ERRCODE = 'JD002';
    END IF;
    RAISE EXCEPTION 'rows of jobd.% are never changed', TG_TABLE_NAME USING ERRCODE = 'JD002';
END $$;
