"""What is wrong with the file of a store, and what can still be read of it. Nothing here changes the file.

sqlite notices a damaged page when it reads it; `integrity_check` reads all of them. It does not notice a damaged
write-ahead log: it takes the transactions up to the damage, and forgets the others without a word. So the log's own
checksums are looked at here, as sqlite's file format (section 4) describes them.
"""

from __future__ import annotations

import shutil
import sqlite3
import struct
from contextlib import closing, suppress
from pathlib import Path

from vllm_supervisor.errors import DamagedStoreError
from vllm_supervisor.store import CHECKS, HISTORY_ROWS, MIGRATIONS, Row, Store, error

PAGE = 4096
"""Bytes; sqlite's default since 3.12."""

HOPELESS = 1000
"""Rows in a row that cannot be read, after which no further is tried: a page holds some fifty."""

MANY = 100_000
"""Pages, which no store comes near to: a header that tells of more is garbage."""

_MAGIC = 0x377F0682  # the lowest bit tells the byte order of the checksums
_ROUNDS = 1 << 20  # the first salt counts how often the log was begun again; frames of earlier rounds may follow
_HEADER, _FRAME = struct.Struct(">8I"), struct.Struct(">6I")


def complaint(path: Path) -> str:
    """What is wrong with a store, as a phrase; "" when nothing is, or when there is none.

    Raises:
        StoreError: it cannot be looked at.
    """
    log = log_of(path)
    try:
        if not _size(path):
            return "it is empty, and its write-ahead log is not" if _size(log) else ""
        if wrong := _wrong_with_log(log):
            return wrong
        with closing(_look(path)) as db:
            (found,) = db.execute("PRAGMA integrity_check(1)").fetchone()
            if found != "ok":
                return str(found).partition("\n")[0]
            for table in _tables(db):
                for row in db.execute(f"SELECT * FROM {table}"):  # noqa: S608 - a name out of sqlite itself
                    CHECKS.get(table, bool)(dict(row))
    except (sqlite3.Error, OSError, ValueError) as e:
        told = error(f"cannot look into the store {path}", e)
        if not isinstance(told, DamagedStoreError):
            raise told from e
        return str(e)
    return ""


def log_of(path: Path) -> Path:
    """Where sqlite keeps the write-ahead log of a file."""
    return path.with_name(f"{path.name}-wal")


def readable(path: Path, scratch: Path) -> dict[str, list[Row]]:
    """Every row that can be read and looks as it was written, by table.

    Args:
        path: the damaged file.
        scratch: an empty directory to work in; it takes as much room as the file.

    Raises:
        OSError: there is no room.
        StoreError: likewise.
    """
    copy = scratch / "copy.sqlite"
    for source, target in ((path, copy), (log_of(path), log_of(copy))):
        with suppress(FileNotFoundError):
            shutil.copyfile(source, target)
    if copy.exists():
        _lengthen(copy)
    trusted = set(_names(copy)) or _with_another_first_page(copy, scratch)
    with closing(_look(copy)) as db:
        return {table: [row for row in _rows(db, table) if _sound(table, row)] for table in sorted(trusted)}


def _lengthen(copy: Path, least: int = 0) -> None:
    """Give a file that was cut its length again, since sqlite reads nothing of one that a table begins beyond."""
    with copy.open("r+b") as file:
        pages = int.from_bytes(file.read(32)[28:], "big")
        size = file.seek(0, 2)
        file.truncate(max(size, least, pages * PAGE if pages < MANY else 0))


def _names(path: Path) -> list[str]:
    if _size(path):  # else sqlite would delete the log beside it
        with suppress(sqlite3.Error), closing(_look(path)) as db:
            return _tables(db)
    return []


def _with_another_first_page(copy: Path, scratch: Path) -> set[str]:
    """Put a new store's first page, which says where each table begins, before what is left of the others.

    Returns:
        The tables that begin in the same place in every store: those of the first version. Where a later one begins
        depends on when it was added.
    """
    template = scratch / "template.sqlite"
    Store(template).close()
    _lengthen(copy, template.stat().st_size)
    first = bytearray(template.read_bytes()[:PAGE])
    first[28:32] = bytes(4)  # the number of pages: sqlite then asks for the size of the file
    with copy.open("r+b") as file:
        file.write(first)
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(MIGRATIONS[0])
        return set(_tables(db))


def _tables(db: sqlite3.Connection) -> list[str]:
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    return [name for (name,) in db.execute(query)]


def _look(path: Path) -> sqlite3.Connection:
    """Without writing: a connection that writes would empty a sound log into a damaged file."""
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    db.row_factory = sqlite3.Row
    return db


def _rows(db: sqlite3.Connection, table: str) -> list[Row]:
    """From either end up to the damage, then one by one what lies between."""
    up, whole = _scan(db, table, "ASC")
    if whole:
        return [*map(_row, up)]
    down, _ = _scan(db, table, "DESC")
    first = up[-1]["rowid_"] + 1 if up else 1
    last = min(first + 2 * HISTORY_ROWS, down[-1]["rowid_"] if down else first + 2 * HISTORY_ROWS)
    between: list[sqlite3.Row] = []
    missed = 0
    for number in range(first, last):
        try:
            between += db.execute(f"SELECT rowid AS rowid_, * FROM {table} WHERE rowid = ?", (number,))  # noqa: S608
            missed = 0
        except sqlite3.Error:
            missed += 1
            if missed == HOPELESS:
                break
    return [*map(_row, (*up, *between, *reversed(down)))]


def _row(row: sqlite3.Row) -> Row:
    return {key: row[key] for key in row.keys() if key != "rowid_"}  # noqa: SIM118 - it iterates over its values


def _scan(db: sqlite3.Connection, table: str, order: str) -> tuple[list[sqlite3.Row], bool]:
    """The rows before the first that cannot be read, and whether that was all of them."""
    rows: list[sqlite3.Row] = []
    try:
        rows.extend(db.execute(f"SELECT rowid AS rowid_, * FROM {table} ORDER BY rowid {order}"))  # noqa: S608
    except sqlite3.Error:
        return rows, False
    return rows, True


def _sound(table: str, row: Row) -> bool:
    try:
        CHECKS.get(table, bool)(row)
    except (ValueError, TypeError):
        return False
    return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _wrong_with_log(log: Path) -> str:
    """A last transaction that is not whole is what a power cut leaves, and nothing is wrong with it."""
    try:
        data = log.read_bytes()
    except FileNotFoundError:
        return ""
    if not data:
        return ""
    magic, _, page, _, *salts_and_sums = _HEADER.unpack(data[: _HEADER.size].ljust(_HEADER.size, b"\0"))
    salts, order = salts_and_sums[:2], ">" if magic & 1 else "<"
    sums = _checksum(data[: _HEADER.size - 8], order, (0, 0))
    if magic & ~1 != _MAGIC or page != PAGE or list(sums) != salts_and_sums[2:]:
        return "its write-ahead log begins with garbage"
    wrong, broken = "its write-ahead log has garbage before its end", False
    for place in range(_HEADER.size, len(data) - page - _FRAME.size + 1, page + _FRAME.size):
        _, commits, *rest = _FRAME.unpack_from(data, place)
        if rest[:2] != salts:
            earlier = (salts[0] - rest[0]) % (1 << 32) < _ROUNDS or rest[:2] == [0, 0]
            return "" if earlier else wrong
        if broken and commits:
            return wrong
        if not broken:
            sums = _checksum(data[place : place + 8], order, sums)
            sums = _checksum(data[place + _FRAME.size : place + _FRAME.size + page], order, sums)
            broken = list(sums) != rest[2:]
    return ""


def _checksum(data: bytes, order: str, sums: tuple[int, int]) -> tuple[int, int]:
    one, two = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = (one + first + two) & 0xFFFFFFFF
        two = (two + second + one) & 0xFFFFFFFF
    return one, two
