-- Grows each time that Redis was found to be another one than before; see jobd/services/relay.py.
ALTER TABLE jobd.installation ADD COLUMN epoch integer NOT NULL DEFAULT 0;
