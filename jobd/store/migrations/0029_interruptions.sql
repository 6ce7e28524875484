-- How often the node that ran the job ended or stood still. Such an attempt is not charged; the interruptions have a bound of
-- their own, which is a setting of the task and so not kept here.
ALTER TABLE jobd.jobs ADD COLUMN interruptions integer NOT NULL DEFAULT 0;

-- NOT VALID: every row there is has one of the words that were allowed before, and a check of them would read the whole table.
ALTER TABLE jobd.attempts
    DROP CONSTRAINT attempts_outcome_check,
    ADD CONSTRAINT attempts_outcome_check
        CHECK (outcome IN ('done', 'failed', 'expired', 'interrupted', 'canceled', 'released')) NOT VALID;

ALTER TABLE jobd.dead_letters
    DROP CONSTRAINT dead_letters_reason_check,
    ADD CONSTRAINT dead_letters_reason_check
        CHECK (reason IN ('not_retryable', 'attempts_exhausted', 'interruptions_exhausted')) NOT VALID;
