r"""From what a process printed to what it said: colours, prefixes and headers taken off one log line.

vLLM's prefixes changed six times, and collectors put their own in front. All of these say the same:

    ERROR 03-01 10:00:00 engine.py:366] RuntimeError: …
    (VllmWorker rank=1 pid=7) ERROR 03-01 10:00:00 [multiproc_executor.py:470] RuntimeError: …
    ESC[0;36m(EngineCore_DP0 pid=98)ESC[0;0m ESC[31mERROR ESC[0m ESC[90m01-26 09:25:37ESC[0m … RuntimeError: …
    (RayWorkerWrapper pid=7, ip=10.0.0.2) … RuntimeError: … [repeated 30x across cluster]
    Feb 22 06:55:47 host python3.12[16233]: (APIServer pid=16233) RuntimeError: …

Every pattern here is anchored and takes time linear in the text: the text is hostile.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from vllm_supervisor.redact import printable, redact

LINE_LIMIT = 65536
"""Characters of a line that are looked at: journald cuts at 48 KiB; what we look for stands at the beginning."""

_WRAPPERS_LIMIT = 8
_RECORD_LINES_LIMIT = 2000

ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_LEVELS = "DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL"
_HEADER = re.compile(
    rf"(?P<level>{_LEVELS})\s+\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{{1,9}})?\s+"
    r"(?:\[[^\]\s]{1,200}:\d{1,7}\]|[^\]\s]{1,200}:\d{1,7}\]) ?"
)
_UVICORN = re.compile(rf"(?P<level>{_LEVELS}):[ \t]+")
_PROCESS = re.compile(
    r"\((?P<process>[A-Za-z_][\w.:-]{0,63})(?: rank=\d{1,7})? pid=(?P<pid>\d{1,10})(?:, ip=[0-9A-Fa-f.:]{1,45})?\) ?"
)
_STAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z| ?[+-]\d\d:?\d\d)?"
_WRAPPERS = (
    # journalctl's short forms, and syslog
    re.compile(
        rf"(?:[A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{{1,9}})?|{_STAMP}) [\w.-]{{1,253}} "
        r"(?:(?P<process>[^\s\[\]]{1,64})\[(?P<pid>\d{1,10})\]|kernel): ?"
    ),
    # Google Cloud Logging and its like; the level is the collector's, not vLLM's
    re.compile(rf"(?:{_LEVELS}|DEFAULT|NOTICE) {_STAMP} \[[\w.-]{{1,64}}: [^\]\s]{{1,253}}\] "),
    # containerd's files, `docker logs -t`, `kubectl logs --timestamps`
    re.compile(rf"{_STAMP} (?:(?:stdout|stderr) [FP] )?"),
    # `kubectl logs --prefix`
    re.compile(r"\[pod/[\w./-]{1,253}\] "),
    # docker compose, `kubectl` plug-ins
    re.compile(r"[A-Za-z][\w.-]{0,63} +\| ?"),
    # torchrun, and torch's own excepthook
    re.compile(r"\[rank\d{1,7}\]: ?"),
)
# VLLM_LOGGING_PREFIX: one word of the operator's choice, directly before vLLM's own header or process name
_OWN_PREFIX = re.compile(
    rf"[^\s'\"`(]{{0,63}}[^\s'\"`(:] ?(?=(?:\(\w{{1,64}} pid=\d{{1,10}}\) )?(?:{_LEVELS})\s+\d\d-\d\d \d\d:)"
)
_RAY_REPEATED = re.compile(r" \[repeated \d{1,9}x across cluster\](?: \(Ray deduplicates logs by default\..*)?$")
_PROGRESS = re.compile(r"[^\r\n|]{0,200}?\d{1,3}%(?:\||[^\r\n|]{0,20}\|)[^\r\n\]]{0,300}\[[^\r\n\]]{0,100}\]")
_EXCEPTION = re.compile(
    r"(?P<class>(?:[A-Za-z_]\w{0,63}\.){0,12}(?:[A-Za-z_]\w{0,80})?"
    r"(?:Error|Exception|Interrupt|Exit|OutOfResources|Timeout|NotFound|Failure)(?:_\w{1,60})?)"
    r"(?:: ?(?P<message>.*)|$)",
    re.DOTALL,
)
_ANY_CLASS = re.compile(r"(?P<class>(?:[A-Za-z_]\w{0,63}\.){0,12}[A-Z]\w{0,80})(?:: (?P<message>.*)|$)", re.DOTALL)
_WORKER_FAILED = re.compile(r"(?:RuntimeError: )?Worker failed with error ['\"](?P<message>.*)", re.DOTALL)
_WORKER_TAIL = re.compile(r"['\"], please check the stack trace above for the root cause.*$", re.DOTALL)
_BLANKS = re.compile(r"\s{2,}")

ERROR_LEVELS = frozenset({"ERROR", "CRITICAL", "FATAL"})


@dataclass(frozen=True, slots=True)
class Line:
    """One line, undressed.

    Attributes:
        process: name of the process as the prefix gives it (`Worker_TP1`), "" without a prefix.
        pid: its pid as the prefix gives it, "" without a prefix.
        level: the level of the log record; "" for what was printed without one.
        text: what is left; leading white space is kept, since it tells a traceback's source lines.
    """

    process: str
    pid: str
    level: str
    text: str

    @property
    def is_error(self) -> bool:
        """True for a record of level ERROR or above."""
        return self.level in ERROR_LEVELS


@dataclass(frozen=True, slots=True)
class Raised:
    """The last line of a traceback, taken apart.

    Attributes:
        kind: class name without its modules (`OutOfMemoryError`); "" when the error was told by another process.
        message: what it says.
        relayed: True when EngineCore repeats what a worker raised: the frames above it are not the cause's.
    """

    kind: str
    message: str
    relayed: bool = False


def lines(message: bytes | str) -> Iterator[Line]:
    """Undress one message. Most give one line; a record in JSON with a traceback, or text with newlines, gives more.

    Never raises, whatever the bytes; looks at no more than `LINE_LIMIT` characters.
    """
    text = message[:LINE_LIMIT] if isinstance(message, str) else message[:LINE_LIMIT].decode("utf-8", "replace")
    if text.startswith("{") and (record := _record(text)) is not None:
        yield from record
    else:
        yield from _plain(text)


def _plain(text: str) -> Iterator[Line]:
    if "\x1b" in text:
        text = ANSI.sub("", text)
    for part in text.rstrip("\r\n\0 \t").split("\n", _RECORD_LINES_LIMIT):
        yield from _undress(part.rstrip("\r\0 \t"))


def _record(text: str) -> list[Line] | None:
    """A log record in JSON: vLLM's `--logging-config.formatter json`, or docker's json-file around any line."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    if isinstance(inner := record.get("log"), str):
        return list(_plain(inner))
    level, message = record.get("levelname"), record.get("message")
    if not isinstance(level, str) or not isinstance(message, str):
        return None
    trace = record.get("exc_info")
    parts = [*message.split("\n"), *(trace.split("\n") if isinstance(trace, str) else [])][:_RECORD_LINES_LIMIT]
    process, pid = str(record.get("processName", "")), str(record.get("process", ""))
    return [Line(process, pid, level, part) for part in parts]


def _undress(text: str) -> Iterator[Line]:
    process = pid = level = ""
    for _ in range(_WRAPPERS_LIMIT):
        if found := _HEADER.match(text) or _UVICORN.match(text):
            level, text = found["level"], text[found.end() :]
            break
        if found := _PROCESS.match(text):
            process, pid = found["process"], found["pid"]
        elif found := _wrapper(text):
            named = found.groupdict()
            process, pid = named.get("process") or process, named.get("pid") or pid
        elif text.startswith("\r"):
            text = text.lstrip("\r")
            continue
        else:
            break
        text = text[found.end() :]
    if level:
        yield Line(process, pid, level, text.replace("\r", " "))
        return
    yield from _unlevelled(process, pid, text)


def _unlevelled(process: str, pid: str, text: str) -> Iterator[Line]:
    """Printed past the logger. A progress bar redraws itself after a CR, and the next print may be glued to its end."""
    if "\r" in text:
        text = text.rsplit("\r", 1)[1]
    if (bar := _PROGRESS.match(text)) and (rest := text[bar.end() :].strip()):
        yield Line(process, pid, "", bar[0])
        for line in _undress(rest):
            yield Line(line.process or process, line.pid or pid, line.level, line.text)
        return
    yield Line(process, pid, "", _RAY_REPEATED.sub("", text) if text.endswith(("cluster]", ")")) else text)


def _wrapper(text: str) -> re.Match[str] | None:
    for pattern in (*_WRAPPERS, _OWN_PREFIX):
        if found := pattern.match(text):
            return found
    return None


def raised(text: str, *, in_traceback: bool = False) -> Raised | None:
    """Take the last line of a traceback apart; None when the text is none.

    Args:
        text: an undressed line.
        in_traceback: True when a traceback is open, so that any class name ends it, not only one that sounds like it.
    """
    if relayed := _WORKER_FAILED.match(text):
        return Raised("", _WORKER_TAIL.sub("", relayed["message"]), relayed=True)
    if (found := _EXCEPTION.match(text)) or (in_traceback and (found := _ANY_CLASS.match(text))):
        return Raised(found["class"].rpartition(".")[2], found["message"] or "")
    return None


def quote(text: str, limit: int) -> str:
    """The text on one line, at most `limit` characters, fit to be kept and shown: see `redact`."""
    flat = redact(_BLANKS.sub(" ", printable(text[: 4 * limit]).strip()))
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
