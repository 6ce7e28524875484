-- Jobs whose results are the outputs of tickets and lie in files: they stay for as long as the ticket does.
CREATE INDEX output_bundles_in_files ON jobd.output_bundles (job_id) WHERE output_ref IS NOT NULL;
