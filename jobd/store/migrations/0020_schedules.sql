-- Schedules: what makes jobs at the times of a cron expression or an interval. Those of the configuration and those made over the
-- API stand in one table.
CREATE TABLE jobd.schedules (
    name text PRIMARY KEY,
    -- `config`: changed by the configuration only
    origin text NOT NULL CHECK (origin IN ('config', 'api')),
    -- when, what and under which policies: see jobd/schedules/definition.py
    definition jsonb NOT NULL,
    -- name of the token that made it, which owns its jobs
    created_by text,
    -- grows with every change of the row; whoever writes proves the one that was read
    version bigint NOT NULL DEFAULT 1,
    is_paused boolean NOT NULL DEFAULT false,
    -- why, if jobd paused it
    paused_why text,
    -- the next occurrence, and when it is due: later by its jitter. Both null: there is none any more. Only the occurrence null:
    -- it is still to be planned, as soon as the clock can be trusted
    occurrence timestamptz,
    next_at timestamptz,
    -- what the clock showed when these two were written: a later look at an earlier time means that the clock was set back
    decided_at timestamptz NOT NULL,
    -- stretches of occurrences that were decided about, as pairs of milliseconds since 1970: none of them comes again
    handled bigint[] NOT NULL DEFAULT '{}',
    -- occurrences that wait for the end of others
    buffered timestamptz[] NOT NULL DEFAULT '{}',
    -- jobs that had not ended when the row was written, the newest 100, in the order in which they were made
    open_jobs uuid[] NOT NULL DEFAULT '{}',
    -- jobs that ended in error since the last one that was done
    failures integer NOT NULL DEFAULT 0,
    -- occurrences that became jobs, that were left out because others still ran, and that were missed
    started bigint NOT NULL DEFAULT 0,
    skipped bigint NOT NULL DEFAULT 0,
    missed bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    CHECK (next_at IS NOT NULL OR occurrence IS NULL)
);
CREATE INDEX schedules_due ON jobd.schedules (next_at) WHERE NOT is_paused AND next_at IS NOT NULL;
CREATE INDEX schedules_buffered ON jobd.schedules (name) WHERE NOT is_paused AND buffered <> '{}';
CREATE INDEX schedules_open ON jobd.schedules (name) WHERE open_jobs <> '{}';

-- What happened to a schedule beside its jobs; the newest 100 of each.
CREATE TABLE jobd.schedule_events (
    schedule text NOT NULL REFERENCES jobd.schedules (name) ON DELETE CASCADE,
    id bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL,
    kind text NOT NULL CHECK (kind IN ('missed', 'skipped', 'delayed', 'paused')),
    -- the occurrence, or the first and the last of several
    first_for timestamptz,
    last_for timestamptz,
    number bigint NOT NULL,
    detail text NOT NULL,
    PRIMARY KEY (schedule, id)
);
