-- A token with own_jobs sees and touches only the jobs that it, or another token of its name, has sent.
ALTER TABLE jobd.tokens
    ADD COLUMN own_jobs boolean NOT NULL DEFAULT false,
    ADD CONSTRAINT own_jobs_of_clients CHECK (NOT own_jobs OR scopes <@ ARRAY['client', 'read']);

-- Whose the deleted job was: to others it is unknown rather than gone.
ALTER TABLE jobd.gone_jobs ADD COLUMN owner text;
