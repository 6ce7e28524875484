-- Who may call. Only the hash of a token stands here. A revoked one stays, so that once there was a token, every caller
-- needs one; several may share a name, which is how a token is replaced by another without a gap.
CREATE TABLE jobd.tokens (
    id text PRIMARY KEY CHECK (id ~ '^[0-9a-f]{8}$'),
    name text NOT NULL CHECK (name ~ '^[A-Za-z0-9_.@-]{1,64}$'),
    sha256 bytea NOT NULL CHECK (length(sha256) = 32),
    scopes text[] NOT NULL CHECK (cardinality(scopes) > 0 AND scopes <@ ARRAY['client', 'worker', 'admin']),
    -- null: all
    queues text[] CHECK (cardinality(queues) > 0),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- null: never
    expires_at timestamptz,
    revoked_at timestamptz
);

-- What people did with their powers. Rows are only ever added.
CREATE TABLE jobd.audit (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- the name of a token, or the user of a command line
    actor text NOT NULL,
    -- token.create, queue.pause, ...
    action text NOT NULL,
    -- what it was done to
    subject text NOT NULL
);

CREATE FUNCTION jobd.audit_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of jobd.audit are neither changed nor deleted';
END
$$;
CREATE TRIGGER audit_is_kept BEFORE UPDATE OR DELETE ON jobd.audit
    FOR EACH ROW EXECUTE FUNCTION jobd.audit_is_kept();
