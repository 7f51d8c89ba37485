"""One sqlite file.

The file is `synchronous=FULL` in WAL mode: after a commit returned, a power cut loses nothing of it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from vllm_supervisor import trust
from vllm_supervisor.errors import DamagedStoreError, StoreError
from vllm_supervisor.store import records
from vllm_supervisor.store.records import AppliedService, Happening, Kind, LearnedCap, Pause, Row, Task
from vllm_supervisor.store.schema import MIGRATIONS

HISTORY_ROWS = 10_000
"""Rows of history kept; the oldest go first. A host with 64 services and a failure each day fills it in five months."""

KEPT_US = 400 * 86_400 * 1_000_000
"""Older rows of history go too, and caps that were learned before then for settings that are not in force: a year, so
that the same season can be compared, and a month more."""

BUSY_TIMEOUT_S = 10.0
"""How long to wait for another of our processes to end its transaction; those take milliseconds."""

LOG_PAGES = 100
"""Pages after which sqlite empties its write-ahead log; a short one is quickly looked through for damage."""

T = TypeVar("T")

_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


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

    def _made(self, make: Callable[[Row], T], rows: Sequence[sqlite3.Row]) -> list[T]:
        try:
            return [make(dict(row)) for row in rows]
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
        return next(iter(self._made(records.read_cap, rows)), None)

    def put_cap(self, cap: LearnedCap) -> None:
        """Remember a cap, replacing what was known under its fingerprint."""
        self._execute(
            "REPLACE INTO caps (service, fingerprint, learned, attempts, treated, exhausted, reason, learned_us)"
            " VALUES (:service, :fingerprint, :learned, :attempts, :treated, :exhausted, :reason, :learned_us)",
            {**asdict(cap), "learned": json.dumps(cap.values)},
        )

    def forget_caps(self, service: str) -> int:
        """Drop every cap of a service, whatever its fingerprint. Returns how many there were."""
        return self._execute("DELETE FROM caps WHERE service = ?", (service,)).rowcount

    # Tasks

    def tasks(self) -> dict[str, Task]:
        """What was decided and not yet carried out, by service."""
        rows = self._rows("SELECT * FROM tasks ORDER BY service")
        return {task.service: task for task in self._made(records.read_task, rows)}

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
        row = {**asdict(happening), "details": records.details(happening)}
        added = self._execute(
            "INSERT OR IGNORE INTO history (time_us, service, kind, invocation, details)"
            " VALUES (:time_us, :service, :kind, :invocation, :details)",
            row,
        )
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
        return self._made(records.read_happening, rows)[::-1]

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
