-- What a submit says about a job beside its work: labels, the token that sent it, and the trace that it belongs to.
ALTER TABLE jobd.jobs
    -- an object of strings; null: none
    ADD COLUMN labels jsonb,
    -- name of the token; null: it was sent without one, or made by jobd itself
    ADD COLUMN owner text,
    -- W3C Trace Context, as it was sent
    ADD COLUMN traceparent text,
    ADD COLUMN tracestate text;

-- Jobs by label, and by owner under the name '', newest first. It is a table of its own, since an index on jobs would have to be
-- written with every change of a job.
CREATE TABLE jobd.job_labels (
    name text NOT NULL,
    value text NOT NULL,
    job_id uuid NOT NULL,
    PRIMARY KEY (name, value, job_id)
);

CREATE OR REPLACE VIEW jobd.model_runs AS
SELECT
    jobs.id,
    CASE jobs.status
        WHEN 'queued' THEN 'PENDING' WHEN 'running' THEN 'RUNNING' WHEN 'done' THEN 'SUCCEEDED' WHEN 'error' THEN 'FAILED'
    END AS status,
    leases.owner_id AS lease_owner,
    leases.lease_expires_at,
    jobs.started_at,
    jobs.attempt_count,
    jobs.result_ref,
    jobs.error AS last_error,
    jobs.labels,
    jobs.owner
FROM jobd.jobs LEFT JOIN jobd.leases ON leases.resource_id = jobs.id;

CREATE OR REPLACE VIEW jobd.task_runs AS
SELECT
    jobs.id,
    encode(jobs.spec_hash, 'hex') AS spec_hash,
    jobs.queue AS queue_name,
    CASE
        WHEN jobs.status = 'queued' AND jobs.attempt_count > 0 THEN 'RETRYING'
        WHEN jobs.status = 'queued' THEN 'PENDING'
        WHEN jobs.status = 'running' THEN 'RUNNING'
        WHEN jobs.status = 'done' THEN 'SUCCESSFUL'
        WHEN jobs.status = 'error' THEN 'FAILED'
        ELSE 'CANCELLED'
    END AS status,
    jobs.priority,
    jobs.run_after,
    leases.lease_expires_at AS leased_until,
    leases.owner_id AS worker_id,
    jobs.payload AS payload_json,
    jobs.result AS result_json,
    jobs.error AS error_json,
    jobs.attempt_count,
    jobs.max_attempts,
    jobs.created_at,
    jobs.updated_at,
    jobs.started_at,
    jobs.finished_at AS completed_at,
    jobs.labels,
    jobs.owner
FROM jobd.jobs LEFT JOIN jobd.leases ON leases.resource_id = jobs.id;
