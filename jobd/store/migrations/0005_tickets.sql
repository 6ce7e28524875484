-- Tickets and the artifacts that their way leaves behind. The statements of jobd/tickets guard every change; what stands
-- here says the same again, so that a mistake in one of them is an error and not a lie.
--
-- A poller looks for work through a partial index that holds nothing but work: it costs the same however many tickets
-- there were before.

CREATE TABLE jobd.tickets (
    ticket_id uuid PRIMARY KEY,
    title text NOT NULL CHECK (length(title) > 0),
    -- text, or a list of texts
    acceptance_criteria jsonb NOT NULL,
    status text NOT NULL DEFAULT 'NEW' CHECK (status IN ('NEW', 'TODO', 'IN_PROGRESS', 'BLOCKED', 'DONE')),
    -- What an IN_PROGRESS ticket waits for: the output of its job, the verdict of the gates, a person.
    step text CHECK (step IN ('RUN', 'GATE', 'SIGN_OFF')),
    blocked_reason text,
    -- Tickets that must be DONE before this one is started.
    blocked_on uuid[] NOT NULL DEFAULT '{}',
    -- BLOCKED for no other reason than those: TODO again as soon as they are DONE.
    waits_for_tickets boolean NOT NULL DEFAULT false,
    repo_ref text,
    base_branch text,
    task text NOT NULL,
    -- A template: see jobd/tickets/render.py.
    payload jobd.json_object NOT NULL,
    gates jsonb NOT NULL CHECK (jsonb_typeof(gates) = 'array'),
    budget_ms bigint NOT NULL CHECK (budget_ms > 0),
    -- Runs until a failed gate needs a person, and how many there were since a person last looked at it.
    max_runs integer NOT NULL CHECK (max_runs >= 1),
    run_count integer NOT NULL DEFAULT 0 CHECK (run_count >= 0),
    created_by text NOT NULL CHECK (length(created_by) > 0),
    -- The person who let it become TODO.
    approved_by text,
    -- How often it became TODO, and for which of these times TICKET_READY was told.
    todo_no integer NOT NULL DEFAULT 0,
    ready_no integer NOT NULL DEFAULT 0,
    todo_at timestamptz,
    -- Grows by one with every change, and so numbers the lines of the ticket's log.
    version integer NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    CONSTRAINT people_approve CHECK (status IN ('NEW', 'BLOCKED') OR approved_by IS NOT NULL),
    CONSTRAINT in_progress_has_a_step CHECK ((status = 'IN_PROGRESS') = (step IS NOT NULL)),
    CONSTRAINT blocked_has_a_reason CHECK ((status = 'BLOCKED') = (blocked_reason IS NOT NULL)),
    CONSTRAINT only_blocked_waits CHECK (status = 'BLOCKED' OR NOT waits_for_tickets),
    CONSTRAINT ready_was_todo CHECK (ready_no <= todo_no)
);

CREATE INDEX tickets_to_announce ON jobd.tickets (todo_at, ticket_id) WHERE status = 'TODO' AND ready_no < todo_no;
CREATE INDEX tickets_waiting ON jobd.tickets (ticket_id) WHERE waits_for_tickets;
CREATE INDEX tickets_by_status ON jobd.tickets (status, ticket_id);

CREATE FUNCTION jobd.refuse_ticket_transition() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'ticket % cannot go from % to %', OLD.ticket_id, OLD.status, NEW.status USING ERRCODE = 'JD001';
END $$;

-- The condition is the table of legal changes; see jobs.
CREATE TRIGGER legal_transition AFTER UPDATE ON jobd.tickets FOR EACH ROW
WHEN (NOT (
    (OLD.status = 'NEW' AND NEW.status IN ('NEW', 'TODO', 'BLOCKED'))
    OR (OLD.status = 'TODO' AND NEW.status IN ('TODO', 'IN_PROGRESS', 'BLOCKED'))
    OR (OLD.status = 'IN_PROGRESS' AND NEW.status IN ('IN_PROGRESS', 'DONE', 'BLOCKED', 'TODO'))
    OR (OLD.status = 'BLOCKED' AND NEW.status IN ('BLOCKED', 'TODO', 'NEW'))
    OR (OLD.status = 'DONE' AND NEW.status = 'TODO')
))
EXECUTE FUNCTION jobd.refuse_ticket_transition();

-- What happened to a ticket, line by line, for those who follow it. The number of a line is given under the ticket's row
-- lock, so lines of one ticket become visible in order.
CREATE TABLE jobd.ticket_log (
    ticket_id uuid NOT NULL,
    version integer NOT NULL,
    type text NOT NULL CHECK (type IN ('created', 'edited', 'status', 'step', 'ready')),
    data jsonb NOT NULL,
    at timestamptz NOT NULL,
    PRIMARY KEY (ticket_id, version)
);

CREATE FUNCTION jobd.log_ticket() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    what text := 'created';
    was text;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        was := OLD.status;
        what := CASE
            WHEN NEW.status <> OLD.status THEN 'status'
            WHEN NEW.step IS DISTINCT FROM OLD.step THEN 'step'
            WHEN NEW.ready_no <> OLD.ready_no THEN 'ready'
            ELSE 'edited'
        END;
    END IF;
    INSERT INTO jobd.ticket_log (ticket_id, version, type, data, at) VALUES (
        NEW.ticket_id, NEW.version, what,
        jsonb_build_object(
            'status', NEW.status, 'was', was, 'step', NEW.step, 'blocked_reason', NEW.blocked_reason
        ),
        NEW.updated_at
    );
    RETURN NULL;
END $$;
CREATE TRIGGER log_ticket AFTER INSERT OR UPDATE ON jobd.tickets FOR EACH ROW EXECUTE FUNCTION jobd.log_ticket();

-- What people decided. Rows are only ever added.
CREATE TABLE jobd.ticket_decisions (
    decision_id uuid PRIMARY KEY,
    ticket_id uuid NOT NULL,
    kind text NOT NULL CHECK (kind IN ('APPROVE', 'REJECT', 'UNBLOCK', 'REOPEN', 'SIGN_OFF', 'REFUSE')),
    decided_by text NOT NULL CHECK (length(decided_by) > 0),
    why text NOT NULL,
    from_status text NOT NULL,
    to_status text NOT NULL,
    -- What was signed off or refused.
    work_order_id uuid,
    decided_at timestamptz NOT NULL,
    CONSTRAINT sign_off_is_about_a_work_order CHECK ((kind IN ('SIGN_OFF', 'REFUSE')) = (work_order_id IS NOT NULL))
);
CREATE INDEX ticket_decisions_of ON jobd.ticket_decisions (ticket_id, decided_at);
-- A person answers once for each output.
CREATE UNIQUE INDEX one_sign_off ON jobd.ticket_decisions (work_order_id) WHERE work_order_id IS NOT NULL;

-- A ticket became TODO. There is no foreign key: an event whose ticket is gone is processed as MISSING_TICKET.
CREATE TABLE jobd.ticket_events (
    event_id uuid PRIMARY KEY,
    type text NOT NULL DEFAULT 'TICKET_READY' CHECK (type = 'TICKET_READY'),
    ticket_id uuid NOT NULL,
    todo_no integer NOT NULL,
    processed boolean NOT NULL DEFAULT false,
    reason text CHECK (reason IN ('SCHEDULED', 'MISSING_TICKET', 'NON_EXECUTABLE_STATUS', 'BLOCKED')),
    created_at timestamptz NOT NULL,
    processed_at timestamptz,
    CONSTRAINT one_event_per_transition UNIQUE (ticket_id, todo_no),
    CONSTRAINT processed_has_a_reason CHECK (processed = (reason IS NOT NULL) AND processed = (processed_at IS NOT NULL))
);
CREATE INDEX ticket_events_open ON jobd.ticket_events (created_at, event_id) WHERE NOT processed;

-- Everything that a run was to know, as it was when the run was scheduled.
CREATE TABLE jobd.context_snapshots (
    snapshot_id uuid PRIMARY KEY,
    ticket_id uuid NOT NULL,
    title text NOT NULL,
    acceptance_criteria jsonb NOT NULL,
    full_prompt_text text NOT NULL,
    repo_ref text,
    base_branch text,
    -- Known when the ticket names a commit.
    repo_commit_sha text CHECK (repo_commit_sha ~ '^[0-9a-f]{40}$'),
    task text NOT NULL,
    payload jobd.json_object NOT NULL,
    gates jsonb NOT NULL,
    created_at timestamptz NOT NULL
);
CREATE INDEX context_snapshots_of ON jobd.context_snapshots (ticket_id, created_at);

CREATE TABLE jobd.workorders (
    work_order_id uuid PRIMARY KEY,
    event_id uuid NOT NULL UNIQUE REFERENCES jobd.ticket_events,
    ticket_id uuid NOT NULL,
    -- The task that carries it out.
    diazotroph_type text NOT NULL,
    context_snapshot_id uuid NOT NULL UNIQUE REFERENCES jobd.context_snapshots,
    branch_name text NOT NULL,
    budget_ms bigint NOT NULL CHECK (budget_ms > 0),
    status text NOT NULL DEFAULT 'CREATED' CHECK (status IN ('CREATED', 'EXECUTED')),
    -- Decided with the work order, so that it has one job however often it is submitted.
    job_id uuid NOT NULL UNIQUE,
    -- What the gates said so far, while a person is asked.
    gate_results jsonb,
    awaits_sign_off boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL,
    executed_at timestamptz,
    judged_at timestamptz,
    CONSTRAINT executed_has_a_time CHECK ((status = 'EXECUTED') = (executed_at IS NOT NULL)),
    CONSTRAINT executed_before_judged CHECK (judged_at IS NULL OR status = 'EXECUTED'),
    CONSTRAINT only_executed_waits CHECK (NOT awaits_sign_off OR status = 'EXECUTED' AND judged_at IS NULL)
);
CREATE INDEX workorders_of ON jobd.workorders (ticket_id, created_at);
CREATE INDEX workorders_to_run ON jobd.workorders (created_at, work_order_id) WHERE status = 'CREATED';
CREATE INDEX workorders_to_judge ON jobd.workorders (executed_at, work_order_id)
    WHERE status = 'EXECUTED' AND judged_at IS NULL AND NOT awaits_sign_off;

CREATE TABLE jobd.output_bundles (
    output_id uuid PRIMARY KEY,
    work_order_id uuid NOT NULL UNIQUE REFERENCES jobd.workorders,
    ticket_id uuid NOT NULL,
    job_id uuid NOT NULL,
    outcome text NOT NULL CHECK (outcome IN ('DONE', 'ERROR', 'CANCELED', 'BUDGET_EXHAUSTED')),
    output jsonb,
    -- The file of an output that is too large to be kept here.
    output_ref text,
    error jsonb,
    created_at timestamptz NOT NULL,
    CONSTRAINT only_done_has_output CHECK (outcome = 'DONE' OR output IS NULL AND output_ref IS NULL),
    CONSTRAINT others_have_an_error CHECK ((outcome = 'DONE') = (error IS NULL))
);
CREATE INDEX output_bundles_of ON jobd.output_bundles (ticket_id, created_at);

CREATE TABLE jobd.run_records (
    run_id uuid PRIMARY KEY,
    work_order_id uuid NOT NULL UNIQUE REFERENCES jobd.workorders,
    ticket_id uuid NOT NULL,
    output_id uuid NOT NULL UNIQUE REFERENCES jobd.output_bundles,
    gate_result text NOT NULL CHECK (gate_result IN ('PASS', 'FAIL')),
    gate_reason text NOT NULL,
    -- One for each gate that was evaluated.
    gate_results jsonb NOT NULL,
    -- Where the ticket went.
    ticket_status text NOT NULL CHECK (ticket_status IN ('DONE', 'BLOCKED', 'TODO')),
    created_at timestamptz NOT NULL
);
CREATE INDEX run_records_of ON jobd.run_records (ticket_id, created_at);

-- Why a ticket came to rest, and what a person could do next, the most useful first.
CREATE TABLE jobd.pause_states (
    pause_id uuid PRIMARY KEY,
    ticket_id uuid NOT NULL,
    -- After a run, the work order; of a ticket that was not started, the event.
    work_order_id uuid UNIQUE,
    event_id uuid UNIQUE,
    reason text NOT NULL CHECK (reason IN ('RUN_COMPLETE', 'GATE_FAILED', 'BUDGET_EXHAUSTED', 'BLOCKED')),
    prioritized_actions text[] NOT NULL CHECK (cardinality(prioritized_actions) BETWEEN 1 AND 3),
    created_at timestamptz NOT NULL,
    CONSTRAINT after_a_run_or_before CHECK (num_nonnulls(work_order_id, event_id) = 1)
);
CREATE INDEX pause_states_of ON jobd.pause_states (ticket_id, created_at);

-- Every claim of an event or a work order, and how it ended. Numbers are given while the lease row is locked, so the rows
-- of one resource are in order: who holds it begins after whoever held it before has ended.
CREATE TABLE jobd.claim_history (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    resource_type text NOT NULL,
    resource_id uuid NOT NULL,
    owner_id text NOT NULL,
    lease_token uuid NOT NULL,
    claim_version integer NOT NULL,
    -- CLAIMED; then RELEASED by its holder, or EXPIRED and taken over by another.
    action text NOT NULL CHECK (action IN ('CLAIMED', 'RELEASED', 'EXPIRED')),
    lease_expires_at timestamptz NOT NULL,
    heartbeat_at timestamptz NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX claim_history_of ON jobd.claim_history (resource_id, seq);

CREATE FUNCTION jobd.note_claim() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO jobd.claim_history (
            resource_type, resource_id, owner_id, lease_token, claim_version, action, lease_expires_at, heartbeat_at
        ) VALUES (
            OLD.resource_type, OLD.resource_id, OLD.owner_id, OLD.lease_token, OLD.claim_version,
            CASE TG_OP WHEN 'DELETE' THEN 'RELEASED' ELSE 'EXPIRED' END, OLD.lease_expires_at, OLD.heartbeat_at
        );
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO jobd.claim_history (
            resource_type, resource_id, owner_id, lease_token, claim_version, action, lease_expires_at, heartbeat_at
        ) VALUES (
            NEW.resource_type, NEW.resource_id, NEW.owner_id, NEW.lease_token, NEW.claim_version, 'CLAIMED',
            NEW.lease_expires_at, NEW.heartbeat_at
        );
    END IF;
    RETURN NULL;
END $$;

-- AFTER, so that a claim is noted when it stands: an insert that had to wait for another's delete has waited by then.
CREATE TRIGGER claimed AFTER INSERT ON jobd.leases FOR EACH ROW
WHEN (NEW.resource_type <> 'JOB') EXECUTE FUNCTION jobd.note_claim();
CREATE TRIGGER taken_over AFTER UPDATE ON jobd.leases FOR EACH ROW
WHEN (OLD.resource_type <> 'JOB' AND OLD.lease_token <> NEW.lease_token) EXECUTE FUNCTION jobd.note_claim();
CREATE TRIGGER released AFTER DELETE ON jobd.leases FOR EACH ROW
WHEN (OLD.resource_type <> 'JOB') EXECUTE FUNCTION jobd.note_claim();

CREATE FUNCTION jobd.artifact_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of jobd.% are never changed', TG_TABLE_NAME USING ERRCODE = 'JD002';
END $$;
CREATE TRIGGER is_kept BEFORE UPDATE OR DELETE ON jobd.context_snapshots
    FOR EACH ROW EXECUTE FUNCTION jobd.artifact_is_kept();
CREATE TRIGGER is_kept BEFORE UPDATE OR DELETE ON jobd.output_bundles
    FOR EACH ROW EXECUTE FUNCTION jobd.artifact_is_kept();
CREATE TRIGGER is_kept BEFORE UPDATE OR DELETE ON jobd.run_records
    FOR EACH ROW EXECUTE FUNCTION jobd.artifact_is_kept();
CREATE TRIGGER is_kept BEFORE UPDATE OR DELETE ON jobd.pause_states
    FOR EACH ROW EXECUTE FUNCTION jobd.artifact_is_kept();
CREATE TRIGGER is_kept BEFORE UPDATE OR DELETE ON jobd.ticket_decisions
    FOR EACH ROW EXECUTE FUNCTION jobd.artifact_is_kept();
CREATE TRIGGER is_kept BEFORE UPDATE ON jobd.claim_history
    FOR EACH ROW EXECUTE FUNCTION jobd.artifact_is_kept();
CREATE TRIGGER is_kept BEFORE UPDATE ON jobd.ticket_log
    FOR EACH ROW EXECUTE FUNCTION jobd.artifact_is_kept();
