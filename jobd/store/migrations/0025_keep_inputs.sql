-- The key of a dependency is its place: a key with on_id in second place offered a scan of all jobs to whoever asks by on_id.
ALTER TABLE jobd.dependencies
    DROP CONSTRAINT dependencies_pkey,
    ADD CONSTRAINT dependencies_pkey PRIMARY KEY (job_id, place);

-- Whether a job that has not ended depends on this job or group. Volatile, so that it sees what was committed after the statement
-- that calls it has begun: who deletes a row locks it first, and asks then.
CREATE FUNCTION jobd.is_needed(asked uuid) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (
        SELECT true FROM jobd.dependencies d
        WHERE d.on_id = asked AND (SELECT s.finished_at IS NULL FROM jobd.jobs s WHERE s.id = d.job_id) LIMIT 1
    ) IS TRUE;
END $$;
