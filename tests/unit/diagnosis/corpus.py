"""The corpus: real logs of vLLM and logs built from its templates, each under the id of the rule it must give."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from vllm_supervisor.diagnosis import Diagnosis, Tracker, Trackers, read

ROOT = Path(__file__).parents[2] / "corpus"


@dataclass(frozen=True)
class Case:
    """One log and what is expected of it: the directory's rule, and more in `NAME.expect.json`."""

    path: Path

    @property
    def id(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def rule(self) -> str | None:
        """The rule of the last run in the log; None for a log without a failure."""
        name = self.path.parent.name
        return None if name == "none" else name

    @cached_property
    def expected(self) -> dict[str, Any]:
        side = self.path.with_name(self.path.stem + ".expect.json")
        return json.loads(side.read_text()) if side.exists() else {}

    @property
    def lines(self) -> list[bytes]:
        return self.path.read_bytes().splitlines(keepends=True)


def cases() -> list[Case]:
    """Every log of the corpus."""
    files = (path for path in ROOT.glob("*/*") if not path.name.endswith(".expect.json"))
    return [Case(path) for path in sorted(files)]


def runs(lines: list[bytes]) -> list[Tracker]:
    """The runs in a log, read to its end."""
    trackers = Trackers()
    trackers.feed_all(read(lines))
    return [tracker for _, _, tracker in trackers]


def verdicts(lines: list[bytes]) -> list[Diagnosis | None]:
    """The diagnosis of each run in a log."""
    return [tracker.diagnosis() for tracker in runs(lines)]
