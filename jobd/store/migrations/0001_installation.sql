-- One row that names this installation, so that a Redis filled by another one can be told apart.
CREATE TABLE jobd.installation (
    single boolean PRIMARY KEY DEFAULT true CHECK (single),
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    created_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO jobd.installation DEFAULT VALUES;

-- One row per running or recently running jobd. The incarnation is new at every start and never recurs.
CREATE TABLE jobd.nodes (
    incarnation uuid PRIMARY KEY,
    node text NOT NULL,
    version text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    seen_at timestamptz NOT NULL DEFAULT now()
);
