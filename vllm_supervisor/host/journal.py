"""The journal, read through systemd-python: history and what is being written now, as one stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
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


BATCH_BYTES = 8 << 20
"""What is kept of a batch before it is looked at; an entry of a service may be 32 MiB (ENTRY_SIZE_UNPRIV_MAX)."""

VALUE_BYTES = 1 << 16
"""journald breaks a line at 48 KiB (LineMax=), and readers cut what is compressed at this (sd_journal's threshold)."""


def unit_matches(units: Iterable[str]) -> list[list[str]]:
    """Matches for the units' own lines, and for what systemd and journald say about them; any one list may match.

    One term each: a second one costs a third of the speed, and whoever takes an entry apart must look at who wrote it
    anyway.
    """
    return [[f"{field}={unit}"] for unit in units for field in ("_SYSTEMD_UNIT", "UNIT", "OBJECT_SYSTEMD_UNIT")]


@dataclass(frozen=True, slots=True)
class Mark:
    """An entry and its place, in terms that do not change when somebody sets the clock.

    Attributes:
        cursor: of the entry.
        boot: ID of the boot it was received in.
        monotonic_us: microseconds since that boot.
    """

    cursor: str
    boot: str
    monotonic_us: int

    def before(self, other: Mark) -> bool:
        """Whether this entry came no later than another one, which is of the boot that still lasts."""
        return self.boot != other.boot or self.monotonic_us <= other.monotonic_us


class Journal:
    """A position in the journal that only sees what matches.

    A field of an entry is text, or bytes where it is not UTF-8, or a list of those where it repeats. Of one that is
    longer than `VALUE_BYTES` the beginning is given.

    Attributes:
        caught_up: whether the last read took all that was there.

    Raises:
        JournalError: it cannot be opened, or there is not one file of it.
    """

    def __init__(self) -> None:
        self._reader, self._matches = _opened(), list[list[str]]()
        self.caught_up = False

    def close(self) -> None:
        """Close it."""
        self._reader.close()

    def match(self, matches: Iterable[list[str]]) -> None:
        """See only entries that match one of these lists, all of its terms. Loses the position: seek afterwards."""
        self._reader.flush_matches()
        self._matches = list(matches)
        for terms in self._matches:
            for term in terms:
                self._reader.add_match(term)
            self._reader.add_disjunction()

    def seek_realtime(self, time_us: int) -> None:
        """Read on from the first entry at or after a time, in microseconds since the epoch."""
        self._reader.seek_realtime(time_us / 1e6)

    def seek_cursor(self, cursor: str) -> Mark | None:
        """Read on after the entry with this cursor; if it was rotated away, from what comes after its place.

        Returns:
            The entry at that place; None when there is none, or when it is no cursor.
        """
        try:
            self._reader.seek_cursor(cursor)
        except OSError:  # it is not, and the position is what it was
            return None
        if not self._reader._next():
            return None
        here = self._mark()
        if not self._reader.test_cursor(cursor):
            self._reader.seek_cursor(cursor)  # what was found instead has not been read yet
        return here

    def seek_mark(self, mark: Mark) -> None:
        """Read on from this entry, and it first."""
        self._reader.seek_cursor(mark.cursor)

    def seek_start(self) -> None:
        """Read everything that there is."""
        self._reader.seek_head()

    def seek_end(self) -> None:
        """Read on from what is written after now.

        That is after the last entry there is, whether it matches or not. Where none matches, libsystemd's own seek to
        the tail is an end that moves on: the next read finds the last of the entries that came since, not the first.
        """
        everything = _opened()
        everything.seek_tail()
        if everything._previous():
            self.seek_cursor(everything._get_cursor())
        everything.close()

    def read(self, limit: int, *, keep: Callable[[bytes | str], bool] | None = None) -> tuple[list[Fields], int]:
        """Take up to `limit` entries that are there already; never waits.

        Args:
            limit: entries to pass at the most; it ends earlier once those that were kept are `BATCH_BYTES` in all.
            keep: looks at a MESSAGE and says whether the other fields are worth reading; most lines are not, and
                reading all fields of an entry costs ten times as much as reading one. None keeps every entry.

        Returns:
            The entries that were kept, and how many were passed in all.

        Raises:
            JournalError: the journal cannot be read on; opening it again at the last cursor is the cure.
        """
        reader, passed = self._reader, 0
        step, get = reader._next, reader._get
        entries: list[Fields] = []
        size, self.caught_up = 0, False
        try:
            while passed < limit and size < BATCH_BYTES:
                if not step():
                    self.caught_up = True
                    break
                passed += 1
                if _believable(get) and (keep is None or keep(_message(get))):
                    fields = {key: _decoded(value) for key, value in reader._get_all().items()}
                    fields["__CURSOR"] = reader._get_cursor()
                    fields["__REALTIME_TIMESTAMP"] = reader._get_realtime()
                    entries.append(fields)
                    size += sum(len(value) for value in fields.values() if isinstance(value, str | bytes))
        except OSError as e:
            raise JournalError(f"cannot read the journal: {e}") from e
        return entries, passed

    def cursor(self) -> str:
        """Cursor of the entry that was passed last; "" when there was none."""
        try:
            return str(self._reader._get_cursor())
        except OSError:
            return ""

    def _mark(self) -> Mark:
        monotonic = self._reader._get_monotonic()
        return Mark(self._reader._get_cursor(), monotonic.bootid.hex(), int(monotonic.timestamp))

    def fileno(self) -> int:
        """Descriptor that becomes readable when something was written; journald may hold news back for 250 ms."""
        return int(self._reader.fileno())

    def process(self) -> None:
        """Take note of what made the descriptor readable.

        INVALIDATE (files were rotated) means read on, as APPEND does; from a fresh reader, since this one has lost a
        directory for good that was removed, whether or not it is there again.

        Raises:
            JournalError: there is no journal any more.
        """
        if self._reader.process() != journal.INVALIDATE or not (cursor := self.cursor()):
            return
        self._reader.close()
        self._reader = _opened()
        self.match(self._matches)
        self.seek_cursor(cursor)


def _opened() -> journal.Reader:
    try:
        reader = journal.Reader()
    except OSError as e:
        raise JournalError(f"cannot open the journal: {e}") from e
    if not (reader.has_persistent_files() or reader.has_runtime_files()):
        reader.close()
        raise JournalError("cannot open the journal: it has no files")
    return reader


def begin(invocation: str) -> Mark | None:
    """The first entry of one run of a unit; None when there is none.

    Raises:
        JournalError: the journal cannot be read.
    """
    journal = Journal()
    journal.match(
        [[f"_SYSTEMD_INVOCATION_ID={invocation}", "_TRANSPORT=stdout"], [f"INVOCATION_ID={invocation}", "_PID=1"]]
    )
    journal.seek_start()
    mark = journal._mark() if journal._reader._next() else None
    journal.close()
    return mark


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


def _entries(matches: list[list[str]], limit: int) -> list[Fields]:
    journal = Journal()
    journal.match(matches)
    journal.seek_start()
    entries, _ = journal.read(limit)
    journal.close()
    return entries


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(one) for one in value]
    try:
        return value[:VALUE_BYTES].decode()
    except UnicodeDecodeError:
        return value[:VALUE_BYTES]


def _believable(get: Callable[[str], Any]) -> bool:
    """Whether an entry can be evidence at all: a line of standard output, or a word of journald's or of PID 1's.

    Asked before anything else of it is read, since any process may send an entry of hundreds of MiB that claims a unit,
    and libsystemd hands fields over whole.
    """
    try:
        return get("_TRANSPORT") in (b"stdout", b"driver") or get("_PID") == b"1"
    except KeyError:  # no process wrote it
        return False


def _message(get: Callable[[str], Any]) -> bytes | str:
    try:
        message = get("MESSAGE")
    except KeyError:
        return b""
    return message if isinstance(message, bytes | str) else b""
