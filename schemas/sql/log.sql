-- The embedded log. AUTOINCREMENT: a position is never given twice, even after the last rows are gone.
CREATE TABLE IF NOT EXISTS record (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL,
    headers TEXT NOT NULL,
    value BLOB NOT NULL
);

-- id: names this very log, so that a store notices when it is given another one.
CREATE TABLE IF NOT EXISTS fixed (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
