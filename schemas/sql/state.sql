-- The embedded store. The same rows as in cql/tables.cql, each kind in a table of its own.
CREATE TABLE IF NOT EXISTS fixed (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS head (
    tenant TEXT NOT NULL,
    source TEXT NOT NULL,
    object TEXT NOT NULL,
    rev INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    order_key BLOB,
    version TEXT,
    type TEXT,
    event TEXT,
    record TEXT,
    digest BLOB,
    deleted INTEGER,
    fold BLOB,
    waiting TEXT,
    sequence TEXT,
    run_partition INTEGER,
    run_after INTEGER,
    erased INTEGER,
    state BLOB,
    PRIMARY KEY (tenant, source, object)
);

CREATE TABLE IF NOT EXISTS event (
    tenant TEXT NOT NULL,
    source TEXT NOT NULL,
    object TEXT NOT NULL,
    row TEXT NOT NULL,
    outcome TEXT NOT NULL,
    rev INTEGER NOT NULL,
    type TEXT NOT NULL,
    version TEXT,
    digest BLOB NOT NULL,
    record TEXT NOT NULL,
    attempt TEXT NOT NULL,
    effect BLOB,
    position TEXT NOT NULL,
    decided_ms INTEGER NOT NULL,
    expires_s INTEGER NOT NULL,
    PRIMARY KEY (tenant, source, object, row)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS arrival (
    tenant TEXT NOT NULL,
    source TEXT NOT NULL,
    object TEXT NOT NULL,
    event TEXT NOT NULL,
    record TEXT NOT NULL,
    event_id TEXT NOT NULL,
    outcome TEXT NOT NULL,
    detail TEXT,
    position TEXT NOT NULL,
    recorded_ms INTEGER NOT NULL,
    done_ms INTEGER NOT NULL,
    expires_s INTEGER NOT NULL,
    PRIMARY KEY (tenant, source, object, event, record)
) WITHOUT ROWID;

-- One query traces an event id to its objects.
CREATE INDEX IF NOT EXISTS arrival_by_event_id ON arrival (tenant, source, event_id);

CREATE TABLE IF NOT EXISTS dead (
    tenant TEXT NOT NULL,
    source TEXT NOT NULL,
    object TEXT NOT NULL,
    event TEXT NOT NULL,
    event_id TEXT NOT NULL,
    type TEXT NOT NULL,
    record TEXT NOT NULL,
    cause TEXT NOT NULL,
    detail TEXT NOT NULL,
    position TEXT NOT NULL,
    recorded_ms INTEGER NOT NULL,
    dead_ms INTEGER NOT NULL,
    headers BLOB NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (tenant, source, object, event)
);

CREATE TABLE IF NOT EXISTS waiting (
    tenant TEXT NOT NULL,
    source TEXT NOT NULL,
    object TEXT NOT NULL,
    sink TEXT NOT NULL,
    since_ms INTEGER NOT NULL,
    cause TEXT NOT NULL,
    parked INTEGER NOT NULL,
    PRIMARY KEY (tenant, source, object, sink)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS effect (
    tenant TEXT NOT NULL,
    source TEXT NOT NULL,
    object TEXT NOT NULL,
    sink TEXT NOT NULL,
    rev INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    attempted INTEGER NOT NULL,
    writer TEXT NOT NULL,
    since_ms INTEGER NOT NULL,
    headers BLOB NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (tenant, source, object, sink, rev)
);

CREATE TABLE IF NOT EXISTS backlog (
    tenant TEXT NOT NULL,
    source TEXT NOT NULL,
    object TEXT NOT NULL,
    number INTEGER NOT NULL,
    position TEXT NOT NULL,
    headers BLOB NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (tenant, source, object, number)
);

CREATE TABLE IF NOT EXISTS floor (
    generation TEXT NOT NULL,
    topic TEXT NOT NULL,
    topic_id TEXT NOT NULL,
    partition INTEGER NOT NULL,
    next_offset INTEGER NOT NULL,
    PRIMARY KEY (generation, topic, topic_id, partition)
) WITHOUT ROWID;
