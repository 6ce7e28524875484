-- Batches: each line of a file becomes a job, and their results become files again. The jobs of a batch are the members of a group that
-- has the id of the batch. One service carries batches from one status to the next; all that it needs to go on is in these rows.
CREATE TABLE jobd.batches (
    id uuid PRIMARY KEY,
    -- name of the token that made it
    owner text,
    -- what each line asks for
    endpoint text NOT NULL,
    input_file_id uuid NOT NULL,
    -- an object of strings, for the client
    metadata jsonb,
    -- seconds that its files are kept; null: as the configuration says
    keep_output_s float8,
    status text NOT NULL CHECK (
        status IN ('validating', 'failed', 'in_progress', 'finalizing', 'completed', 'expired', 'cancelling', 'cancelled')
    ),
    -- the status that it will end with, once that is known
    ending text CHECK (ending IN ('completed', 'expired', 'cancelled')),
    -- why it failed: an array of objects
    errors jsonb,
    -- of all lines; null: they differ
    model text,
    total integer NOT NULL DEFAULT 0,
    -- how far lines have become jobs: bytes and lines of the input
    read_bytes bigint NOT NULL DEFAULT 0,
    read_lines integer NOT NULL DEFAULT 0,
    -- lines of the output and of the error file, once they are made
    completed integer NOT NULL DEFAULT 0,
    failed integer NOT NULL DEFAULT 0,
    -- tokens of all lines, an object
    usage jsonb,
    output_file_id uuid,
    error_file_id uuid,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    in_progress_at timestamptz,
    finalizing_at timestamptz,
    cancelling_at timestamptz,
    -- when it got its last status
    finished_at timestamptz,
    CONSTRAINT final_is_finished CHECK (
        (finished_at IS NOT NULL) = (status IN ('failed', 'completed', 'expired', 'cancelled'))
    )
);
CREATE INDEX batches_newest ON jobd.batches (created_at);
CREATE INDEX batches_open ON jobd.batches (created_at) WHERE finished_at IS NULL;
CREATE INDEX batches_finished ON jobd.batches (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX batches_input ON jobd.batches (input_file_id) WHERE finished_at IS NULL;

-- Whether a batch that has not ended reads this file. Volatile, so that it sees what was committed after the statement that calls it has
-- begun: who makes a batch locks the row of its file first, and so does who deletes it.
CREATE FUNCTION jobd.is_batch_input(asked uuid) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT true FROM jobd.batches b WHERE b.input_file_id = asked AND b.finished_at IS NULL LIMIT 1) IS TRUE;
END $$;

-- Whether a batch that has not ended may still read the result of a job of this group.
CREATE FUNCTION jobd.is_batch_open(asked uuid) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT b.finished_at IS NULL FROM jobd.batches b WHERE b.id = asked) IS TRUE;
END $$;
