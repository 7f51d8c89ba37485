"""Many runs of many units in one stream, each kept apart."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator

from vllm_supervisor.diagnosis.journal import Entry
from vllm_supervisor.diagnosis.model import Finding
from vllm_supervisor.diagnosis.tracker import Tracker

RUNS_LIMIT = 512
"""Runs kept; the one that was silent longest is forgotten first."""


class Trackers:
    """One `Tracker` for each (unit, invocation).

    Args:
        limit: how many runs are kept.
        small_default: the units whose `Tracker` is told so of the cards.
    """

    def __init__(self, *, limit: int = RUNS_LIMIT, small_default: Collection[str] = ()) -> None:
        self._limit, self._small_default = limit, small_default
        self._runs: OrderedDict[tuple[str, str], Tracker] = OrderedDict()
        self._latest: dict[str, str] = {}
        self._broken: set[tuple[str, str, str]] = set()

    def __iter__(self) -> Iterator[tuple[str, str, Tracker]]:
        for (unit, invocation), tracker in self._runs.items():
            yield unit, invocation, tracker

    def __len__(self) -> int:
        return len(self._runs)

    def feed(self, entry: Entry) -> tuple[Tracker, Finding | None]:
        """Take one entry. Returns the run it belongs to, and what it means if it says something new."""
        tracker = self._run(entry)
        if entry.service is not None:
            tracker.gated = True
        if entry.lifecycle is not None:
            return tracker, tracker.lifecycle(entry.lifecycle)
        if self._is_rest_of_a_line(entry) or entry.message is None:
            return tracker, None
        return tracker, tracker.line(entry.message, process=entry.process)

    def feed_all(self, entries: Iterable[Entry]) -> None:
        """Take a whole log; no more lines will come after it."""
        for entry in entries:
            self.feed(entry)
        for tracker in self._runs.values():
            tracker.end()

    def get(self, unit: str, invocation: str) -> Tracker | None:
        """The run's tracker, if it is known."""
        return self._runs.get((unit, invocation))

    def forget(self, unit: str, invocation: str) -> None:
        """Drop a run."""
        self._runs.pop((unit, invocation), None)

    def _run(self, entry: Entry) -> Tracker:
        invocation = entry.invocation or self._latest.get(entry.unit, "")
        key = (entry.unit, invocation)
        tracker = self._runs.get(key)
        if tracker is None:
            if before := self._runs.get((entry.unit, self._latest.get(entry.unit, ""))):
                before.superseded()
            tracker = self._runs[key] = Tracker(stamped=entry.stamped, small_default=entry.unit in self._small_default)
            self._latest[entry.unit] = invocation
            while len(self._runs) > self._limit:
                (unit, oldest), _ = self._runs.popitem(last=False)
                if self._latest.get(unit) == oldest:
                    del self._latest[unit]
        elif entry.stamped is not None:
            tracker.stamp(entry.stamped)
        self._runs.move_to_end(key)
        return tracker

    def _is_rest_of_a_line(self, entry: Entry) -> bool:
        """Lines of more than 48 KiB are broken by journald; what comes after the break is no line of its own."""
        key = (entry.unit, entry.invocation, entry.process)
        is_rest = key in self._broken
        if entry.cut:
            if len(self._broken) < self._limit:
                self._broken.add(key)
        else:
            self._broken.discard(key)
        return is_rest
