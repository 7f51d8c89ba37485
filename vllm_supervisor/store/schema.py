"""The tables of the store, as they came to be."""

# One entry per schema version, applied in order to whatever `user_version` a file has. Never edit an entry: add one.
MIGRATIONS = (
    """
    CREATE TABLE services (
        name TEXT PRIMARY KEY, unit TEXT NOT NULL, spec TEXT NOT NULL, fingerprint TEXT NOT NULL,
        applied_us INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE caps (
        service TEXT NOT NULL, fingerprint TEXT NOT NULL, value INTEGER, attempts INTEGER NOT NULL,
        treated TEXT NOT NULL, exhausted INTEGER NOT NULL, reason TEXT NOT NULL, learned_us INTEGER NOT NULL,
        PRIMARY KEY (service, fingerprint)
    ) STRICT;
    CREATE TABLE tasks (
        service TEXT PRIMARY KEY, kind TEXT NOT NULL, invocation TEXT NOT NULL, created_us INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE history (
        id INTEGER PRIMARY KEY AUTOINCREMENT, time_us INTEGER NOT NULL, service TEXT NOT NULL, kind TEXT NOT NULL,
        invocation TEXT NOT NULL, details TEXT NOT NULL
    ) STRICT;
    CREATE UNIQUE INDEX history_once ON history (service, invocation, kind) WHERE invocation != '';
    CREATE INDEX history_by_service ON history (service, id);
    CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
    """,
    """
    ALTER TABLE caps ADD COLUMN gpu_memory_utilization REAL;
    ALTER TABLE caps ADD COLUMN max_model_len INTEGER;
    ALTER TABLE caps ADD COLUMN enforce_eager INTEGER NOT NULL DEFAULT 0;
    """,
    """
    CREATE TABLE pauses (service TEXT PRIMARY KEY, since_us INTEGER NOT NULL, by TEXT NOT NULL) STRICT;
    """,
    # From here on `learned` holds every flag, as JSON; a row without it is read from the columns that were before. They
    # stay where they are, so that a damaged store of any version is read alike.
    """
    ALTER TABLE caps ADD COLUMN learned TEXT NOT NULL DEFAULT '';
    """,
)
