"""Entries of the journal, taken apart: whose they are, which run they belong to, and whether that can be believed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from vllm_supervisor.diagnosis.model import Lifecycle, LifecycleKind

# MESSAGE_ID= values of systemd's and journald's, as sd-messages.h lists them.
_STARTING = "7d4958e842da4a758f6c1cdc7b36dcc5"
_STARTED = "39f53479d3a045ac8e11786248231fbf"
_STOPPING = "de5b426a63be47a7b6ac3eaac82e2f6f"
_START_FAILED = "be02cf6855d2428ba40df7e9d022f03d"
_EXITED = "98e322203f7a4ed290d09fe03c09fe15"
_SUCCESS = "7ad2d189f7e94e70a38c781354912448"
_FAILED = "d9b373ed55a64feb8242e02dbe79a49c"
_RESTART = "5eb03494b6584870a536b337290809b3"
_OOM_KILL = "fe6faa94e7774663a0da52717891d8ef"
_OOMD_KILL = "d989611b15e44c9dbf31e3c81256e4ed"
_SUPPRESSED = "a596d6fe7bfa4994828e72309e95d61e"

_KINDS = {
    _STARTING: LifecycleKind.STARTING,
    _STARTED: LifecycleKind.STARTED,
    _STOPPING: LifecycleKind.STOPPING,
    _START_FAILED: LifecycleKind.FAILED,
    _EXITED: LifecycleKind.EXITED,
    _SUCCESS: LifecycleKind.EXITED,
    _FAILED: LifecycleKind.FAILED,
    _RESTART: LifecycleKind.AUTO_RESTART,
    _OOM_KILL: LifecycleKind.OOM_KILL,
    _OOMD_KILL: LifecycleKind.OOM_KILL,
}
LIFECYCLE_IDS = frozenset({*_KINDS, _SUPPRESSED})
"""The MESSAGE_ID= values worth reading."""

STAMP_SERVICE = "VLLM_SUPERVISOR_SERVICE"
STAMP_MAX_NUM_SEQS = "VLLM_SUPERVISOR_MAX_NUM_SEQS"
STAMP_FINGERPRINT = "VLLM_SUPERVISOR_FINGERPRINT"

_SUPPRESSED_TEXT = re.compile(r"Suppressed (\d{1,12}) messages from (\S{1,256})")
_FIELD_LIMIT = 1 << 28  # journald itself refuses larger fields (768 MiB in all, far less in practice)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry that is ours to judge: a line a unit's process printed, or what systemd said about the unit.

    Attributes:
        unit: `vllm-NAME.service`; "" when a pasted log does not say.
        invocation: systemd's invocation ID of the run; "" where journald does not know it: it is the latest then.
        process: what tells the writer from the unit's other processes: its `_PID`; "" when not known.
        message: the line; None for a lifecycle event, and for a line too long to be exported.
        lifecycle: the event; None for a line.
        cut: True when journald broke the line here: the next of this process is its rest.
        stamped: `max_num_seqs` the unit was rendered with; None for vLLM's default, or without a stamp.
        fingerprint: the stamp that tells what else memory use depends on; None without one.
        service: the service's name in the YAML; None for units that were not rendered here.
        cursor: the journal's cursor, "" when there is none.
        realtime_us: when it was written, in microseconds since the epoch; 0 when not known.
    """

    unit: str
    invocation: str
    process: str = ""
    message: bytes | str | None = None
    lifecycle: Lifecycle | None = None
    cut: bool = False
    stamped: int | None = None
    fingerprint: str | None = None
    service: str | None = None
    cursor: str = ""
    realtime_us: int = 0


def entry_from_journal(fields: Mapping[str, object]) -> Entry | None:
    """Take one journal entry apart; None for what is not evidence about a unit.

    Only fields that journald itself adds tell who wrote an entry. A unit's own lines must have come through its
    standard output or error; lifecycle events must come from PID 1 as root, reports of lost lines from journald itself.
    Anybody can write `UNIT=` into the journal, and nobody is believed for it.

    Args:
        fields: as `journalctl -o json` gives them, or python-systemd: text, bytes, a list of bytes as numbers, None for
            a field that is too long, or a list for one that repeats.
    """
    transport = _text(fields.get("_TRANSPORT"))
    if transport == "stdout":
        return _own_line(fields)
    message_id = _text(fields.get("MESSAGE_ID"))
    if transport == "driver" and message_id == _SUPPRESSED:
        return _suppressed(fields)
    if message_id in _KINDS and _text(fields.get("_PID")) == "1" and _text(fields.get("_UID")) == "0":
        return _said_by_systemd(fields, message_id)
    return None


def _own_line(fields: Mapping[str, object]) -> Entry | None:
    unit = _text(fields.get("_SYSTEMD_UNIT"))
    if not unit.endswith(".service"):
        return None
    seqs = _text(fields.get(STAMP_MAX_NUM_SEQS))
    return Entry(
        unit=unit,
        # A busy journald finds a writer gone that ended right after its last line, which is the one that matters; the
        # unit it knows all the same, since the stream was opened by systemd.
        invocation=_text(fields.get("_SYSTEMD_INVOCATION_ID")),
        process=_text(fields.get("_PID")),
        message=_message(fields.get("MESSAGE")),
        cut=_text(fields.get("_LINE_BREAK")) == "line-max",
        stamped=int(seqs) if seqs.isascii() and seqs.isdigit() and len(seqs) < 10 else None,
        fingerprint=_text(fields.get(STAMP_FINGERPRINT)) or None,
        service=_text(fields.get(STAMP_SERVICE)) or None,
        cursor=_text(fields.get("__CURSOR")),
        realtime_us=_integer(fields.get("__REALTIME_TIMESTAMP")) or 0,
    )


def _said_by_systemd(fields: Mapping[str, object], message_id: str) -> Entry | None:
    unit = _text(fields.get("UNIT"))
    event = _event(fields, message_id)
    if not unit.endswith(".service") or event is None:
        return None
    return Entry(
        unit=unit,
        invocation=_text(fields.get("INVOCATION_ID")),
        lifecycle=event,
        cursor=_text(fields.get("__CURSOR")),
        realtime_us=_integer(fields.get("__REALTIME_TIMESTAMP")) or 0,
    )


def _event(fields: Mapping[str, object], message_id: str) -> Lifecycle | None:
    kind, text = _KINDS[message_id], _text(fields.get("MESSAGE"))
    if message_id == _SUCCESS:  # systemd says nothing else of a process that ends with status 0
        return Lifecycle(kind, command="ExecStart", exit_code="exited", exit_status=0, result="success", text=text)
    if message_id == _START_FAILED:
        result = _text(fields.get("JOB_RESULT"))
        return Lifecycle(kind, result=result, text=text) if result in ("failed", "timeout") else None
    if kind is LifecycleKind.EXITED:
        return Lifecycle(
            kind,
            command=_text(fields.get("COMMAND")),
            exit_code=_text(fields.get("EXIT_CODE")),
            exit_status=_integer(fields.get("EXIT_STATUS")),
            text=text,
        )
    result = _text(fields.get("UNIT_RESULT"))
    if kind is LifecycleKind.FAILED and result == "start-limit-hit":
        kind = LifecycleKind.START_LIMIT
    return Lifecycle(kind, result=result, count=_integer(fields.get("N_RESTARTS")) or 0, text=text)


def _suppressed(fields: Mapping[str, object]) -> Entry | None:
    """A report that lines of a unit were dropped. The process may be gone, and its run not known any more."""
    found = _SUPPRESSED_TEXT.match(_text(fields.get("MESSAGE")))
    if found is None:
        return None
    event = Lifecycle(LifecycleKind.SUPPRESSED, count=int(found[1]), text=found[0])
    # journald writes the invocation with a stray "=" before it
    invocation = _text(fields.get("OBJECT_SYSTEMD_INVOCATION_ID")).lstrip("=")
    return Entry(found[2], invocation, lifecycle=event, cursor=_text(fields.get("__CURSOR")))


def _text(value: object) -> str:
    """A field as text; "" for one that is not there, too long, or given twice, which journald's own never are."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def _integer(value: object) -> int | None:
    text = _text(value)
    return int(text) if text.isascii() and text.removeprefix("-").isdigit() and len(text) < 20 else None


def _message(value: object) -> bytes | str | None:
    """MESSAGE in any of its shapes. One that repeats came from no standard output; its first value stands for it."""
    if isinstance(value, list):
        if all(isinstance(each, int) and 0 <= each < 256 for each in value):
            return bytes(value)
        return _message(value[0]) if value and not isinstance(value[0], list) else None
    return value if isinstance(value, str | bytes) else None


def read_json(stream: Iterable[bytes]) -> Iterator[Entry]:
    """Read `journalctl -o json` (or json-seq, json-sse): one object a line; what is none is passed over."""
    for line in stream:
        text = line.strip().lstrip(b"\x1e").removeprefix(b"data: ")
        if not text.startswith(b"{"):
            continue
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(fields, dict) and (entry := entry_from_journal(fields)):
            yield entry


def read_export(stream: Iterable[bytes]) -> Iterator[Entry]:
    """Read `journalctl -o export`: fields `NAME=value`, or NAME and a length for binary ones; a blank line between."""
    fields: dict[str, object] = {}
    pending = _Bytes(stream)
    while (line := pending.line()) is not None:
        if line in (b"\n", b""):
            if entry := entry_from_journal(fields):
                yield entry
            fields = {}
            continue
        name, equals, value = line.removesuffix(b"\n").partition(b"=")
        if not equals:
            size = int.from_bytes(pending.take(8), "little")
            value = pending.take(size) if size <= _FIELD_LIMIT else b""
            pending.take(1)
        fields[name.decode("utf-8", "replace")] = value
    if entry := entry_from_journal(fields):
        yield entry


class _Bytes:
    """Lines and counted bytes from an iterable of chunks, each ending in a newline where there is one."""

    def __init__(self, stream: Iterable[bytes]) -> None:
        self._chunks = iter(stream)
        self._rest = b""

    def line(self) -> bytes | None:
        """The next line with its newline; None at the end."""
        parts = [self._rest]
        while b"\n" not in parts[-1]:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            parts.append(chunk)
        text = b"".join(parts)
        line, newline, self._rest = text.partition(b"\n")
        return line + newline if text else None

    def take(self, size: int) -> bytes:
        """The next `size` bytes, fewer at the end."""
        parts, have = [self._rest], len(self._rest)
        while have < size:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            parts.append(chunk)
            have += len(chunk)
        text = b"".join(parts)
        self._rest = text[size:]
        return text[:size]
