"""What was learned, what was promised and what happened, in one sqlite file.

Five things live here, and a remedy is a transaction over them: the services as `apply` last put them in force, the
caps with the fingerprint each holds for, the tasks (remedies that were decided and not yet carried out), the pauses,
and the history. The journal cursor is one row of `meta`, so that it is stored with what was learned up to it.

Over 300 lines, since the value types of the tables stand beside the statements that read and write them.

The file is `synchronous=FULL` in WAL mode: after a commit returned, a power cut loses nothing of it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from vllm_supervisor import trust
from vllm_supervisor.errors import DamagedStoreError, StoreError

HISTORY_ROWS = 10_000
"""Rows of history kept; the oldest go first. A host with 64 services and a failure each day fills it in five months."""

KEPT_US = 400 * 86_400 * 1_000_000
"""Older rows of history go too, and caps that were learned before then for settings that are not in force: a year, so
that the same season can be compared, and a month more."""

BUSY_TIMEOUT_S = 10.0
"""How long to wait for another of our processes to end its transaction; those take milliseconds."""

T = TypeVar("T")

LOG_PAGES = 100
"""Pages after which sqlite empties its write-ahead log; a short one is quickly looked through for damage."""

_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

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
)


class Kind(StrEnum):
    """What a row of history tells."""

    APPLIED = "applied"
    REMOVED = "removed"
    READY = "ready"
    LOWERED = "lowered"  # max-num-seqs
    CHANGED = "changed"  # another flag, which the operator opened
    GAVE_UP = "gave-up"
    WAITING = "waiting"
    REPORTED = "reported"
    DOWN = "down"  # nobody starts it again
    STARTED_AGAIN = "started-again"
    LEFT_DOWN = "left-down"
    LEFT_ALONE = "left-alone"
    FORGOT = "forgot"
    RELEARNED = "relearned"  # from a unit file, since the store knew nothing of it
    STORE_DAMAGED = "store-damaged"  # of no service
    PAUSED = "paused"
    RESUMED = "resumed"
    WITHHELD = "withheld"  # what would have been done about a failure, had the service not been paused


class TaskKind(StrEnum):
    """What is still to be done about a unit."""

    START = "start"  # by `apply`, of a service that is new or changed
    RELAUNCH = "relaunch"  # by the daemon, at a lower value
    STOP = "stop"  # by the daemon, after giving up


@dataclass(frozen=True, slots=True)
class AppliedService:
    """A service as `apply` last put it in force.

    Attributes:
        name: its key in the YAML.
        unit: name of its unit.
        spec: the validated service as JSON.
        fingerprint: of this spec, with the vLLM version found at that time.
        applied_us: realtime, microseconds since the epoch.
    """

    name: str
    unit: str
    spec: str
    fingerprint: str
    applied_us: int


@dataclass(frozen=True, slots=True)
class LearnedCap:
    """What was learned of one service under one fingerprint.

    Attributes:
        value: upper bound on `max_num_seqs`; None when none was learned.
        gpu_memory_utilization: a share, 0 to 1, where the operator lets remedies lower it; else None.
        max_model_len: in tokens, likewise.
        enforce_eager: whether a remedy added the flag, likewise.
        attempts: relaunches so far.
        treated: invocation that was last answered.
        exhausted: True after giving up.
        reason: one sentence for people, with the quoted line.
        learned_us: realtime, microseconds since the epoch.
    """

    service: str
    fingerprint: str
    value: int | None
    attempts: int
    treated: str
    exhausted: bool
    reason: str
    learned_us: int
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    enforce_eager: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """A remedy that was decided; it is deleted once systemd has taken the job."""

    service: str
    kind: TaskKind
    invocation: str
    created_us: int


@dataclass(frozen=True, slots=True)
class Pause:
    """The operator's word that no remedy is wanted for now.

    Attributes:
        service: its name; "" for every service, also those that come later.
        since_us: realtime, microseconds since the epoch.
        by: user who paused it.
    """

    service: str
    since_us: int
    by: str


@dataclass(frozen=True, slots=True)
class Happening:
    """One row of history.

    Attributes:
        time_us: realtime, microseconds since the epoch.
        kind: what happened. For one invocation each kind is kept once, however often the journal is read.
        invocation: systemd's invocation ID, or "" for what concerns no run.
        why: one sentence.
        rule: the diagnosis, or "".
        phase: phase of the start in which it happened, or "".
        quote: the log line, or "".
        tried: `max_num_seqs` that ran, in sequences.
        flag: what was changed, as vLLM spells it, or "".
        to: value it was changed to; 1 for a switch.
        attempt: k of `attempts`.
        attempts: n, the most there will be.
    """

    time_us: int
    service: str
    kind: Kind
    invocation: str = ""
    why: str = ""
    rule: str = ""
    phase: str = ""
    quote: str = ""
    tried: int | None = None
    flag: str = ""
    to: float | None = None
    attempt: int | None = None
    attempts: int | None = None
    id: int = field(default=0, compare=False)


_SWITCHES = ("exhausted", "enforce_eager")
_COLUMNS = ("time_us", "service", "kind", "invocation")


def error(doing: str, e: Exception) -> StoreError:
    """What sqlite or the file system said, as an error of ours; a damaged file is told from one that cannot be had."""
    code = getattr(e, "sqlite_errorcode", None)
    damaged = code & 0xFF in _DAMAGE if code else "decode to UTF-8" in str(e) or isinstance(e, ValueError)
    return (DamagedStoreError if damaged else StoreError)(f"{doing}: {e}")


class Store:
    """The sqlite file. One writer at a time; a reader never blocks a writer.

    Args:
        path: the file; its directory must exist. Created with mode 0600.
        read_only: look only; the file must exist.

    Raises:
        StoreError: it cannot be opened, is damaged, or was written by a newer version of this program.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        try:
            if not read_only:
                os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            self._file = path.lstat()
            _check_trust(path, self._file)
            uri = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}"
            self._db = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)
            self._db.row_factory = sqlite3.Row
            self._prepare(read_only=read_only)
        except (sqlite3.Error, OSError) as e:
            raise error(f"cannot open the store {path}", e) from e

    def _prepare(self, *, read_only: bool) -> None:
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        if version > len(MIGRATIONS):
            raise StoreError(
                f"cannot use the store {self.path}: schema version {version}, this program knows {len(MIGRATIONS)}",
                hint="a newer vllm-supervisor wrote it: install that version again",
            )
        if read_only:
            if version < len(MIGRATIONS):
                raise StoreError(
                    f"cannot read the store {self.path}: schema version {version}, this program has {len(MIGRATIONS)}",
                    hint="an older vllm-supervisor wrote it: `systemctl restart vllm-supervisor` brings it up to date",
                )
            return
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute(f"PRAGMA wal_autocheckpoint={LOG_PAGES}")
        for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
            self._db.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version={number}; COMMIT;")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _execute(self, statement: str, values: Mapping[str, Any] | Sequence[Any] = ()) -> sqlite3.Cursor:
        try:
            return self._db.execute(statement, values)
        except sqlite3.Error as e:
            raise error(f"cannot use the store {self.path}", e) from e

    def _rows(self, query: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[sqlite3.Row]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as e:
            raise error(f"cannot read the store {self.path}", e) from e

    def _made(self, make: Callable[[sqlite3.Row], T], rows: Iterable[sqlite3.Row]) -> list[T]:
        try:
            return [make(row) for row in rows]
        except ValueError as e:
            raise error(f"cannot read the store {self.path}", e) from e

    def _replaced(self) -> bool:
        """Whether the file was removed or replaced while it was open: what is written is then lost at the end."""
        try:
            return (status := self.path.stat()).st_ino != self._file.st_ino or status.st_dev != self._file.st_dev
        except OSError:
            return True

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All writes inside are kept together, or none of them is.

        Raises:
            StoreError: sqlite could not commit (disk full, I/O error, locked for too long), or the file was removed or
                replaced; nothing was changed.
        """
        if self._replaced():
            raise StoreError(f"cannot write to the store {self.path}: it was removed or replaced while it was in use")
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # after some errors sqlite has rolled it back already
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as e:
            raise error(f"cannot write to the store {self.path}", e) from e

    def version(self) -> int:
        """A number that changes whenever another connection has committed something."""
        return int(self._rows("PRAGMA data_version")[0][0])

    def restore(self, table: str, row: Mapping[str, Any]) -> bool:
        """Take a row over from another store; columns that this version does not know are left out.

        Returns:
            False when it does not fit, or when one of its key is there.
        """
        known = [column["name"] for column in self._rows(f"PRAGMA table_info({table})") if column["name"] in row]
        insert = f"INSERT OR IGNORE INTO {table} ({', '.join(known)}) VALUES ({', '.join('?' * len(known))})"  # noqa: S608
        try:
            return bool(self._db.execute(insert, [row[name] for name in known]).rowcount)
        except sqlite3.Error:
            return False

    # Services in force

    def services(self) -> dict[str, AppliedService]:
        """Every service that `apply` put in force, by name, sorted."""
        rows = self._rows("SELECT * FROM services ORDER BY name")
        return {row["name"]: AppliedService(**dict(row)) for row in rows}

    def put_service(self, service: AppliedService) -> None:
        """Put a service in force, or replace what was in force under its name."""
        self._execute("REPLACE INTO services VALUES (:name, :unit, :spec, :fingerprint, :applied_us)", asdict(service))

    def remove_service(self, name: str) -> None:
        """Take a service out of force, with its task and its pause. Its caps and history stay: it may come back."""
        self._execute("DELETE FROM services WHERE name = ?", (name,))
        self._execute("DELETE FROM tasks WHERE service = ?", (name,))
        self.remove_pause(name)

    # Caps

    def cap(self, service: str, fingerprint: str) -> LearnedCap | None:
        """What was learned of this service under this fingerprint."""
        rows = self._rows("SELECT * FROM caps WHERE service = ? AND fingerprint = ?", (service, fingerprint))
        return LearnedCap(**{**dict(rows[0]), **{name: bool(rows[0][name]) for name in _SWITCHES}}) if rows else None

    def put_cap(self, cap: LearnedCap) -> None:
        """Remember a cap, replacing what was known under its fingerprint."""
        self._execute(
            "REPLACE INTO caps VALUES (:service, :fingerprint, :value, :attempts, :treated, :exhausted, :reason,"
            " :learned_us, :gpu_memory_utilization, :max_model_len, :enforce_eager)",
            asdict(cap),
        )

    def forget_caps(self, service: str) -> int:
        """Drop every cap of a service, whatever its fingerprint. Returns how many there were."""
        return self._execute("DELETE FROM caps WHERE service = ?", (service,)).rowcount

    # Tasks

    def tasks(self) -> dict[str, Task]:
        """What was decided and not yet carried out, by service."""
        rows = self._rows("SELECT * FROM tasks ORDER BY service")
        return {task.service: task for task in self._made(_task, rows)}

    def put_task(self, task: Task) -> None:
        """Remember what is to be done, replacing what was to be done for that service."""
        self._execute("REPLACE INTO tasks VALUES (:service, :kind, :invocation, :created_us)", asdict(task))

    def remove_task(self, task: Task) -> None:
        """It was carried out; another that took its place meanwhile was not."""
        self._execute(
            "DELETE FROM tasks WHERE service = :service AND kind = :kind AND invocation = :invocation"
            " AND created_us = :created_us",
            asdict(task),
        )

    # Pauses

    def pauses(self) -> dict[str, Pause]:
        """What is paused, by service; "" stands for all of them."""
        return {row["service"]: Pause(**dict(row)) for row in self._rows("SELECT * FROM pauses ORDER BY service")}

    def pause(self, service: str) -> Pause | None:
        """The pause that holds for a service: its own, else that of all; None when there is none."""
        rows = self._rows("SELECT * FROM pauses WHERE service IN (?, '') ORDER BY service DESC LIMIT 1", (service,))
        return Pause(**dict(rows[0])) if rows else None

    def put_pause(self, pause: Pause) -> None:
        """Remember a pause."""
        self._execute("REPLACE INTO pauses VALUES (:service, :since_us, :by)", asdict(pause))

    def remove_pause(self, service: str) -> None:
        """End a pause, if there is one; "" is the one of all services."""
        self._execute("DELETE FROM pauses WHERE service = ?", (service,))

    # History

    def add(self, happening: Happening) -> bool:
        """Append to the history. Returns False, adding nothing, if that invocation has a row of that kind."""
        row = asdict(happening)
        row.pop("id")
        columns = [row.pop(name) for name in _COLUMNS]
        details = json.dumps({key: value for key, value in row.items() if value not in ("", None)}, ensure_ascii=False)
        insert = f"INSERT OR IGNORE INTO history ({', '.join(_COLUMNS)}, details) VALUES (?, ?, ?, ?, ?)"  # noqa: S608 - our own names
        added = self._execute(insert, (*columns, details))
        if added.rowcount:
            self._execute("DELETE FROM history WHERE id <= ?", ((added.lastrowid or 0) - HISTORY_ROWS,))
            self._forget_before(happening.time_us - KEPT_US)
        return bool(added.rowcount)

    def _forget_before(self, time_us: int) -> None:
        self._execute("DELETE FROM history WHERE time_us < ?", (time_us,))
        self._execute(
            "DELETE FROM caps WHERE learned_us < ?"
            " AND (service, fingerprint) NOT IN (SELECT name, fingerprint FROM services)",
            (time_us,),
        )

    def history(self, service: str | None = None, *, limit: int = HISTORY_ROWS) -> list[Happening]:
        """The latest rows of one service, or of all, oldest first."""
        rows = self._rows(
            "SELECT * FROM history WHERE :service IS NULL OR service = :service ORDER BY id DESC LIMIT :limit",
            {"service": service, "limit": limit},
        )
        return self._made(_happening, rows)[::-1]

    def happened(self, service: str, invocation: str, kind: Kind) -> bool:
        """Whether the history holds a row of that kind for that invocation."""
        query = "SELECT 1 FROM history WHERE service = ? AND invocation = ? AND kind = ?"
        return bool(self._rows(query, (service, invocation, kind)))

    # The journal cursor

    @property
    def cursor(self) -> str:
        """Journal position up to which everything was taken in; "" before the first."""
        rows = self._rows("SELECT value FROM meta WHERE key = 'cursor'")
        return str(rows[0]["value"]) if rows else ""

    @cursor.setter
    def cursor(self, cursor: str) -> None:
        self._execute("REPLACE INTO meta VALUES ('cursor', ?)", (cursor,))


def _check_trust(path: Path, status: os.stat_result) -> None:
    """Whoever may write to the store decides what root renders."""
    for place, of in ((path, status), (path.parent, path.parent.stat())):
        if why := "it is no plain file" if stat.S_ISLNK(of.st_mode) else trust.distrusted(of):
            raise StoreError(f"cannot trust the store {path}: {place}: {why}", hint=trust.way_out(place))


_DETAILS = {f.name for f in fields(Happening)} - {*_COLUMNS, "id"}


def _task(row: sqlite3.Row) -> Task:
    return Task(**{**dict(row), "kind": TaskKind(row["kind"])})


def _happening(row: sqlite3.Row) -> Happening:
    known = {key: value for key, value in _object(row["details"]).items() if key in _DETAILS}
    return Happening(row["time_us"], row["service"], Kind(row["kind"]), row["invocation"], id=row["id"], **known)


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"{text[:20]!r} is no JSON object")
    return value


def _positive(row: Mapping[str, Any]) -> None:
    if row["value"] is not None and row["value"] < 1:
        raise ValueError(f"a cap of {row['value']}")


CHECKS: Mapping[str, Callable[[Any], object]] = {
    "services": lambda row: _object(row["spec"]),
    "caps": _positive,
    "tasks": _task,
    "history": _happening,
}
"""By table, what raises ValueError for a row that cannot be as it was written."""
