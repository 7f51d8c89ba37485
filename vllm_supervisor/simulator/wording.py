r"""What a release writes: its log lines and the frames of its tracebacks, read from `generations/RELEASE.txt`.

Two kinds of section, introduced by `[lines]` and `[frames NAME]`:

- a log line is `KEY LEVEL FILE:LINE TEXT`. TEXT is a `str.format` template in which `\n` starts a new line. A key may
  occur more than once; its lines are then written together. A release that does not write a line has no such key.
- a frame is `PATH:LINE FUNCTION | CODE`. PATH is below site-packages, or below Python's library when it starts with
  `python/`; the part of CODE that Python underlines stands in «»; the code is left out where Python finds no source.
  `= NAME` puts in the frames of another section.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

_NEWEST = "0.32.0"
_SITE = "/opt/vllm/lib/python3.12/site-packages/"
_PLACES = {"python/": "/usr/lib/python3.12/", "bin/": "/opt/vllm/bin/"}


class LogLine(NamedTuple):
    """One line of vLLM's logger: level, `file.py:123`, and its text without a final newline."""

    level: str
    source: str
    text: str


class Wording:
    """The lines and frames of one release.

    Args:
        text: its file.
        newest: the file of the newest known release, for the sections of frames that `text` lacks: those of failures
            that were not seen in the older one. Function names, which recognizers go by, are the same there.
    """

    def __init__(self, text: str, newest: str) -> None:
        self._lines: dict[str, list[LogLine]] = {}
        sections = _sections(text)
        for row in sections.pop("lines"):
            key, level, source, template = row.split(None, 3)
            self._lines.setdefault(key, []).append(LogLine(level, source, template.replace("\\n", "\n")))
        self._frames = _sections(newest) | sections

    def lines(self, key: str, **values: Any) -> list[LogLine]:
        """The log lines of a key, filled in; none when the release does not write it."""
        return [line._replace(text=line.text.format(**values)) for line in self._lines.get(key, ())]

    def traceback(self, sections: Sequence[str], error: str) -> list[str]:
        """A traceback through the frames of `sections`, in order, that ends in `error`; without newlines."""
        frames = (line for section in sections for line in self._frame_lines(section))
        return ["Traceback (most recent call last):", *frames, *error.split("\n")]

    def _frame_lines(self, section: str) -> list[str]:
        lines: list[str] = []
        for row in self._frames[section]:
            lines += self._frame_lines(row[2:]) if row.startswith("= ") else _frame(row)
        return lines


def load(release: str) -> Wording:
    """Read the wording of a known release."""
    directory = Path(__file__).with_name("generations")
    texts = [(directory / f"{name}.txt").read_text(encoding="utf-8") for name in (release, _NEWEST)]
    return Wording(*texts)


def chained(cause: Sequence[str], effect: Sequence[str]) -> list[str]:
    """Two tracebacks as Python prints `raise ... from ...`."""
    return [*cause, "", "The above exception was the direct cause of the following exception:", "", *effect]


def _sections(text: str) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    rows: list[str] = []
    for row in text.splitlines():
        if row.startswith("["):
            rows = sections.setdefault(row.strip("[]").removeprefix("frames "), [])
        elif row and not row.startswith("#"):
            rows.append(row)
    return sections


def _frame(row: str) -> list[str]:
    place, _, code = row.partition(" | ")
    spot, _, function = place.partition(" ")
    path, _, number = spot.rpartition(":")
    lines = [f'  File "{_full(path)}", line {number}, in {function}']
    if not code:
        return lines
    before, marked, after = (*code.split("«"), "")[0], "", ""
    if "«" in code:
        marked, _, after = code.partition("«")[2].partition("»")
    lines.append(f"    {before}{marked}{after}")
    if marked:
        lines.append(" " * (4 + len(before)) + "^" * len(marked))
    return lines


def _full(path: str) -> str:
    for start, place in _PLACES.items():
        if path.startswith(start):
            return place + path.removeprefix(start)
    return path if path.endswith(".pyx") else _SITE + path
