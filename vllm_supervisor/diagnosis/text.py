"""A pasted log, told apart into runs: `journalctl -o cat`, `-o short`, or what docker and Kubernetes keep."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from vllm_supervisor.diagnosis import markers
from vllm_supervisor.diagnosis.journal import Entry, read_export, read_json
from vllm_supervisor.diagnosis.model import Lifecycle, LifecycleKind
from vllm_supervisor.diagnosis.normalise import lines

_UNIT = r"(?P<unit>[\w.@:\\-]{1,240}\.service)"
_EXITED = re.compile(
    _UNIT + r": (?P<which>Main|Control) process exited, code=(?P<code>exited|killed|dumped),? "
    r"status=(?P<status>\d{1,3})(?:/|$)"
)
_FAILED = re.compile(_UNIT + r": Failed with result '(?P<result>[a-z-]{1,40})'")
_RESTART = re.compile(_UNIT + r": Scheduled restart job, restart counter is at (?P<count>\d{1,9})")
_LIMIT = re.compile(_UNIT + r": Start request repeated too quickly")
_SUCCESS = re.compile(_UNIT + r": (?:Deactivated successfully|Succeeded)\.")
_OOM = re.compile(_UNIT + r": A process of this unit has been killed by the OOM killer")
_KERNEL_OOM = re.compile(
    r"(?:\[ *[\d.]{1,20}\] )?(?:Out of memory|Memory cgroup out of memory): Killed process \d{1,10} "
)
_JOB = re.compile(r"(?P<what>Starting|Started|Stopping) " + _UNIT + r"(?: - .{0,300}?)?\.{0,3}$")
_SUPPRESSED = re.compile(r"Suppressed (?P<count>\d{1,12}) messages from " + _UNIT)
_WORDS = re.compile(rb"\.service|Killed process")

_CONTROL = "control"  # which command of the unit it was, the text does not say

_JOBS = {
    "Starting": LifecycleKind.STARTING,
    "Started": LifecycleKind.STARTED,
    "Stopping": LifecycleKind.STOPPING,
}


def read(stream: Iterable[bytes]) -> Iterator[Entry]:
    """Read a log of any of the formats we know; the first line that is not blank tells which it is."""
    chunks = iter(stream)
    head: list[bytes] = []
    for chunk in chunks:
        head.append(chunk)
        if chunk.strip():
            break
    first = head[-1].lstrip(b"\x1e \t") if head else b""
    rest = _chain(head, chunks)
    if first.startswith((b"{", b"data: {")) and (b'"__CURSOR"' in first or b'"__REALTIME_TIMESTAMP"' in first):
        return read_json(rest)
    if first.startswith(b"__CURSOR="):
        return read_export(rest)
    return read_text(rest)


def _chain(head: list[bytes], rest: Iterator[bytes]) -> Iterator[bytes]:
    yield from head
    yield from rest


def read_text(stream: Iterable[bytes]) -> Iterator[Entry]:
    """Read plain text, a line each. Nothing in it can be trusted, so what it tells is for people only.

    Runs are told apart by systemd's own lines where they are there, else by the banner that vLLM prints first.
    """
    runs = _Runs()
    for chunk in stream:
        line = chunk.rstrip(b"\n")
        if _WORDS.search(line) and (said := _systemd(line)):
            yield runs.event(*said)
        else:
            yield runs.line(line)


def _systemd(line: bytes) -> tuple[str, Lifecycle] | None:
    """What systemd's line says, and about which unit."""
    first = next(iter(lines(line)))
    if first.level or first.process not in ("", "systemd"):
        return None
    text = first.text
    if _KERNEL_OOM.match(text):
        return "", Lifecycle(LifecycleKind.OOM_KILL, text=text)
    if found := _JOB.match(text):
        return found["unit"], Lifecycle(_JOBS[found["what"]], text=text)
    if found := _EXITED.match(text):
        command = "ExecStart" if found["which"] == "Main" else _CONTROL
        status = int(found["status"])
        return found["unit"], Lifecycle(
            LifecycleKind.EXITED, command=command, exit_code=found["code"], exit_status=status, text=text
        )
    if found := _SUCCESS.match(text):
        return found["unit"], Lifecycle(
            LifecycleKind.EXITED, command="ExecStart", exit_code="exited", exit_status=0, result="success", text=text
        )
    return _result(text)


def _result(text: str) -> tuple[str, Lifecycle] | None:
    if found := _FAILED.match(text):
        limit = found["result"] == "start-limit-hit"
        kind = LifecycleKind.START_LIMIT if limit else LifecycleKind.FAILED
        return found["unit"], Lifecycle(kind, result=found["result"], text=text)
    if found := _RESTART.match(text):
        return found["unit"], Lifecycle(LifecycleKind.AUTO_RESTART, count=int(found["count"]), text=text)
    if found := _SUPPRESSED.match(text):
        return found["unit"], Lifecycle(LifecycleKind.SUPPRESSED, count=int(found["count"]), text=text)
    for pattern, kind in ((_LIMIT, LifecycleKind.START_LIMIT), (_OOM, LifecycleKind.OOM_KILL)):
        if found := pattern.match(text):
            return found["unit"], Lifecycle(kind, text=text)
    return None


class _Runs:
    """Numbers the runs of a pasted log.

    Its lines belong to the unit that systemd's lines name first; what they say of other units is kept apart.
    """

    def __init__(self) -> None:
        self._number = 1
        self._unit = ""
        self._lines = 0
        self._bannered = self._over = False

    def _next(self) -> None:
        self._number += 1
        self._lines = 0
        self._bannered = self._over = False

    def event(self, unit: str, event: Lifecycle) -> Entry:
        self._unit = self._unit or unit
        if unit not in ("", self._unit):
            return Entry(unit, "", lifecycle=event)
        if event.kind is LifecycleKind.STARTING and (self._lines or self._over):
            self._next()
        if event.command == _CONTROL and not self._lines:
            event = replace(event, command="ExecStartPre")
        entry = Entry("", str(self._number), lifecycle=event)
        if event.kind is LifecycleKind.AUTO_RESTART:
            self._next()
        elif event.kind is LifecycleKind.FAILED or event.command == "ExecStart":
            self._over = True
        return entry

    def line(self, line: bytes) -> Entry:
        if b"version " in line and any(_is_banner(each.text) for each in lines(line)):
            if self._bannered or self._over:
                self._next()
            self._bannered = True
        self._lines += 1
        return Entry("", str(self._number), message=line)


def _is_banner(text: str) -> bool:
    found = markers.find(text)
    return found is not None and found[0].starts
