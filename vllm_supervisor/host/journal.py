"""The journal, read through systemd-python: history and what is being written now, as one stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any

from systemd import journal

from vllm_supervisor.errors import JournalError

Fields = Mapping[str, Any]

# SD_MESSAGE_UNIT_STOPPED, _UNIT_RESTART_SCHEDULED, _UNIT_FAILURE_RESULT of sd-messages.h
_STOPPED = "9d1aaa27d60140bd96365438aad20286"
_RESTART_SCHEDULED = "5eb03494b6584870a536b337290809b3"
_FAILED = "d9b373ed55a64feb8242e02dbe79a49c"


class End(Enum):
    """What ended a run of a unit, as far as systemd has said."""

    FAILED = "it failed, and is left so"
    RESTARTED = "it failed, and systemd starts it again"
    STOPPED = "a stop job"
    NOT_SAID = "nothing was said of an end"


_ENDS = {_FAILED: End.FAILED, _RESTART_SCHEDULED: End.RESTARTED, _STOPPED: End.STOPPED}


def unit_matches(units: Iterable[str]) -> list[list[str]]:
    """Matches for the units' own lines, and for what systemd and journald say about them; any one list may match.

    One term each: a second one costs a third of the speed, and whoever takes an entry apart must look at who wrote it
    anyway.
    """
    return [[f"{field}={unit}"] for unit in units for field in ("_SYSTEMD_UNIT", "UNIT", "OBJECT_SYSTEMD_UNIT")]


class Journal:
    """A position in the journal that only sees what matches.

    A field of an entry is text, or bytes where it is not UTF-8, or a list of those where it repeats.

    Raises:
        JournalError: it cannot be opened.
    """

    def __init__(self) -> None:
        try:
            self._reader = journal.Reader()
        except OSError as e:
            raise JournalError(f"cannot open the journal: {e}") from e

    def close(self) -> None:
        """Close it."""
        self._reader.close()

    def match(self, matches: Iterable[list[str]]) -> None:
        """See only entries that match one of these lists, all of its terms. Loses the position: seek afterwards."""
        self._reader.flush_matches()
        for terms in matches:
            for term in terms:
                self._reader.add_match(term)
            self._reader.add_disjunction()

    def seek_realtime(self, time_us: int) -> None:
        """Read on from the first entry at or after a time, in microseconds since the epoch."""
        self._reader.seek_realtime(time_us / 1e6)

    def seek_cursor(self, cursor: str) -> int | None:
        """Read on after the entry with this cursor; if it was rotated away, from what comes after its place.

        Returns:
            When the entry at that place was received, microseconds since the epoch; None when there is none.
        """
        self._reader.seek_cursor(cursor)
        if not self._reader._next():
            return None
        here_us = int(self._reader._get_realtime())
        if not self._reader.test_cursor(cursor):
            self._reader.seek_cursor(cursor)  # what was found instead has not been read yet
        return here_us

    def seek_end(self) -> None:
        """Read on from what is written after now."""
        self._reader.seek_tail()
        self._reader._previous()  # after seek_tail alone the next read may start over from the head

    def read(self, limit: int, *, keep: Callable[[bytes | str], bool] | None = None) -> tuple[list[Fields], int]:
        """Take up to `limit` entries that are there already; never waits.

        Args:
            limit: entries to pass at the most.
            keep: looks at a MESSAGE and says whether the other fields are worth reading; most lines are not, and
                reading all fields of an entry costs ten times as much as reading one. None keeps every entry.

        Returns:
            The entries that were kept, and how many were passed in all: fewer than `limit` means caught up.

        Raises:
            JournalError: the journal cannot be read on; opening it again at the last cursor is the cure.
        """
        reader, passed = self._reader, 0
        step, get = reader._next, reader._get
        entries: list[Fields] = []
        try:
            while passed < limit and step():
                passed += 1
                if keep is None or keep(_message(get)):
                    fields = {key: _decoded(value) for key, value in reader._get_all().items()}
                    fields["__CURSOR"] = reader._get_cursor()
                    fields["__REALTIME_TIMESTAMP"] = reader._get_realtime()
                    entries.append(fields)
        except OSError as e:
            raise JournalError(f"cannot read the journal: {e}") from e
        return entries, passed

    def cursor(self) -> str:
        """Cursor of the entry that was passed last; "" when there was none."""
        try:
            return str(self._reader._get_cursor())
        except OSError:
            return ""

    def fileno(self) -> int:
        """Descriptor that becomes readable when something was written; journald may hold news back for 250 ms."""
        return int(self._reader.fileno())

    def process(self) -> None:
        """Take note of what made the descriptor readable.

        What it was does not matter: INVALIDATE (files were rotated) means read on, as APPEND does.
        """
        self._reader.process()


def begin_us(invocation: str) -> int | None:
    """When the first entry of one run of a unit was received, microseconds since the epoch; None when there is none.

    Raises:
        JournalError: the journal cannot be read.
    """
    first = _first([[f"_SYSTEMD_INVOCATION_ID={invocation}"], [f"INVOCATION_ID={invocation}", "_PID=1"]])
    return int(first["__REALTIME_TIMESTAMP"]) if first else None


def end(invocation: str) -> End:
    """What ended this run of a unit: the last that systemd said of it counts.

    "Stopped" is the only word systemd says of the stop of a unit that is still starting, and some versions say it too
    when they start a unit again by themselves; then they say that first.

    Raises:
        JournalError: the journal cannot be read.
    """
    said = End.NOT_SAID
    for fields in _entries([[f"INVOCATION_ID={invocation}", "_PID=1", f"MESSAGE_ID={word}"] for word in _ENDS], 100):
        word = _ENDS[fields["MESSAGE_ID"]]
        said = said if word is End.STOPPED and said is End.RESTARTED else word
    return said


def _first(matches: list[list[str]]) -> Fields | None:
    return next(iter(_entries(matches, 1)), None)


def _entries(matches: list[list[str]], limit: int) -> list[Fields]:
    journal = Journal()
    journal.match(matches)
    journal.seek_realtime(0)
    entries, _ = journal.read(limit)
    journal.close()
    return entries


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(one) for one in value]
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _message(get: Callable[[str], Any]) -> bytes | str:
    try:
        message = get("MESSAGE")
    except KeyError:
        return b""
    return message if isinstance(message, bytes | str) else b""
