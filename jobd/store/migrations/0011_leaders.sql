-- Who does what only one node has to do, and until when: see jobd/store/leader.py. Nothing rests on it, and after a crash it
-- may be empty, so it is not logged: a renewal every few seconds costs no write to the disk.
CREATE UNLOGGED TABLE jobd.leaders (
    name text PRIMARY KEY,
    holder text NOT NULL,
    expires_at timestamptz NOT NULL
);
