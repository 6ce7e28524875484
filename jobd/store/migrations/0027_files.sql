-- Files that clients have sent, or that jobd has made for them. The bytes lie in data_dir/files; a row is there as long as its file is
-- to be had.
CREATE TABLE jobd.files (
    id uuid PRIMARY KEY,
    -- name of the token that sent it
    owner text,
    filename text NOT NULL,
    purpose text NOT NULL CHECK (purpose IN ('batch', 'user_data', 'batch_output')),
    bytes bigint NOT NULL CHECK (bytes >= 0),
    -- where it is, from data_dir
    ref text NOT NULL,
    created_at timestamptz NOT NULL,
    -- null: it stays until it is deleted
    expires_at timestamptz
);
CREATE INDEX files_newest ON jobd.files (created_at);
CREATE INDEX files_expiry ON jobd.files (expires_at) WHERE expires_at IS NOT NULL;
