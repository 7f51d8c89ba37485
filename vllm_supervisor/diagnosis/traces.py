"""Tracebacks being printed, each process's apart: the functions in them tell what was being done."""

from __future__ import annotations

import re

PROCESSES_LIMIT = 256
"""Tracebacks open at once; a node has 8 to 16 ranks."""

_FRAMES_LIMIT = 512  # of one traceback; the deepest real one, through inductor, has about 120
_FRAME = re.compile(r'\s{0,40}File "(?:[^"\n]{0,4096}/)?([^"/\n]{1,255})", line \d{1,9}, in (\S{1,200})')
_CALL = re.compile(r"\bself\.(?:model_runner\.|worker\.)?(\w{1,60})\(")
_BEGIN = "Traceback (most recent call last):"


class Trace:
    """The traceback a process is printing.

    Attributes:
        is_open: True between its first line and the exception that ends it.
        validating: the header of pydantic's report, while its details follow; else "".
    """

    __slots__ = ("frames", "is_open", "validating")

    def __init__(self) -> None:
        self.frames: set[str] = set()
        self.is_open = False
        self.validating = ""

    def takes(self, text: str) -> bool:
        """Take a line that is part of a traceback's inside; False for any other."""
        if frame := _FRAME.match(text):
            self.is_open = True  # even if the first line was lost
            if len(self.frames) < _FRAMES_LIMIT:
                self.frames.update((frame[2], f"{frame[1]}:{frame[2]}"))
            return True
        if text.startswith(_BEGIN):
            self.frames.clear()
            self.is_open, self.validating = True, ""
            return True
        return False

    def source(self, text: str) -> None:
        """The line under a frame names what it called: all there is of a function that has no frame of its own."""
        if self.is_open and len(self.frames) < _FRAMES_LIMIT:
            self.frames.update(_CALL.findall(text, 0, 200))

    def close(self) -> frozenset[str]:
        """The exception came: the functions that led to it, as `name` and as `file.py:name`."""
        frames, self.frames, self.is_open = frozenset(self.frames), set(), False
        return frames


class Traces:
    """One `Trace` for each process; the oldest are dropped when there are too many."""

    def __init__(self) -> None:
        self._traces: dict[tuple[str, str], Trace] = {}

    def __len__(self) -> int:
        return len(self._traces)

    @property
    def any_open(self) -> bool:
        """True while some process is in the middle of a traceback."""
        return any(trace.is_open for trace in self._traces.values())

    def of(self, process: str, pid: str) -> Trace:
        """The trace of a process, told by the journal's `_PID` and by the pid in the line's prefix."""
        trace = self._traces.get((process, pid))
        if trace is None:
            if len(self._traces) >= PROCESSES_LIMIT:
                del self._traces[next(iter(self._traces))]
            trace = self._traces[process, pid] = Trace()
        return trace
