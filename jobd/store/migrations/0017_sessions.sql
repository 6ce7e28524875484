-- Scopes of tokens: `read` may read what `client` may, `metrics` may read /metrics.
ALTER TABLE jobd.tokens DROP CONSTRAINT tokens_scopes_check;
ALTER TABLE jobd.tokens ADD CONSTRAINT tokens_scopes_check
    CHECK (cardinality(scopes) > 0 AND scopes <@ ARRAY['client', 'worker', 'admin', 'read', 'metrics']);

-- Browsers that logged in. Only the hash of the secret in their cookie stands here.
CREATE TABLE jobd.sessions (
    sha256 bytea PRIMARY KEY CHECK (length(sha256) = 32),
    -- the token that was shown at login, by its id or, of a token of the configuration, by its hash; neither: a login
    -- code of `jobd open`, which makes it `local`
    token_id text,
    token_sha256 bytea CHECK (length(token_sha256) = 32),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL,
    CHECK (token_id IS NULL OR token_sha256 IS NULL)
);

-- Codes of `jobd open`; each is deleted when it is used.
CREATE TABLE jobd.login_codes (
    sha256 bytea PRIMARY KEY CHECK (length(sha256) = 32),
    expires_at timestamptz NOT NULL
);
