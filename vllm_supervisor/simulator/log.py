"""How one process writes: log lines and uvicorn's access lines to stdout, everything else to stderr.

All of it goes out in whole lines and in pieces a pipe takes undivided, so that the lines of several processes mix but
are never torn.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from vllm_supervisor.simulator.generations import Prefix
from vllm_supervisor.simulator.wording import Wording

_STDOUT, _STDERR = 1, 2
_PIPE_BUF = 4096  # bytes Linux writes to a pipe in one piece
_COLOURS = {Prefix.WORKERS_COLOURED: "\x1b[1;36m", Prefix.LINES_COLOURED: "\x1b[0;36m"}


class Log:
    """The output of the calling process.

    Args:
        wording: the lines of the release.
        style: who carries a prefix.
        name: the process in the prefix; empty for a process that has none.
        debug: whether lines of level DEBUG are written.
    """

    def __init__(self, wording: Wording, style: Prefix, name: str, *, debug: bool = False) -> None:
        self.wording = wording
        self._debug = debug
        label = f"({name} pid={os.getpid()})" if name else ""
        if style is Prefix.LINES_COLOURED and os.environ.get("NO_COLOR"):
            style = Prefix.LINES
        colour = _COLOURS.get(style, "") if label else ""
        prefix = f"{colour}{label}\x1b[0;0m " if colour else f"{label} " if label else ""
        self._logged = prefix
        self._raw = "" if style is Prefix.LOGGED else prefix

    def write(self, key: str, more: Sequence[str] = (), **values: Any) -> None:
        """Write the log lines of a key; `more` are further lines of the same message, such as a traceback."""
        for line in self.wording.lines(key, **values):
            if line.level == "DEBUG" and not self._debug:
                continue
            header = f"{self._logged}{line.level} {time.strftime('%m-%d %H:%M:%S')} [{line.source}] "
            _emit(_STDOUT, "\r\n".join(header + text for text in (*line.text.split("\n"), *more)) + "\n")

    def access(self, text: str) -> None:
        """Write a line of uvicorn's access log."""
        _emit(_STDOUT, f"{self._raw}{text}\n")

    def error(self, lines: Iterable[str]) -> None:
        """Write lines to stderr as Python, uvicorn and tqdm do."""
        _emit(_STDERR, "".join(f"{self._raw}{line}\n" for line in lines))

    def bar(self, text: str) -> None:
        """Write to stderr without ending the line, as a progress bar that is redrawn does."""
        _emit(_STDERR, text)

    def flood(self, count: int) -> None:
        """Write `count` numbered log lines as fast as they go out."""
        header = (
            f"{self._logged}WARNING {time.strftime('%m-%d %H:%M:%S')} [autotuner.py:612] [Autotuner]: skipping tactic "
        )
        for start in range(0, count, 10_000):
            numbers = range(start + 1, min(start + 10_000, count) + 1)
            _emit(_STDOUT, "".join(f"{header}{number} of {count}\n" for number in numbers))


def pieces(data: bytes) -> Iterator[bytes]:
    """Cut text into whole lines of together at most `_PIPE_BUF` bytes; a longer line is a piece of its own."""
    start = 0
    while start < len(data):
        end = start + _PIPE_BUF
        if end < len(data):
            end = data.rfind(b"\n", start, end) + 1 or data.find(b"\n", start) + 1 or len(data)
        yield data[start:end]
        start = end


def _emit(stream: int, text: str) -> None:
    for piece in pieces(text.encode()):
        rest = piece
        while rest:
            rest = rest[os.write(stream, rest) :]
