-- name: started_among
-- Which of these occurrences have a job. Reads only.
-- $1 schedule text, $2 occurrences in ms since 1970 text[]
SELECT DISTINCT a.at_ms
FROM unnest($2::text[]) AS a (at_ms)
CROSS JOIN LATERAL (
    SELECT FROM job_labels timed CROSS JOIN LATERAL (
        SELECT FROM job_labels named
        WHERE named.name = 'jobd.schedule' AND named.value = $1::text AND named.job_id = timed.job_id
        OFFSET 0
    ) of_schedule
    WHERE timed.name = 'jobd.scheduled_for' AND timed.value = a.at_ms
    LIMIT 1
) found;
