"""What the fuzzer does with one input, and what it starts from; tests feed it some inputs without the fuzzer."""

from __future__ import annotations

import time
from collections.abc import Iterator

from vllm_supervisor.diagnosis import CATALOGUE, Tracker, Trackers, read

SLOWEST_S = 1.0
"""Processor time, for inputs of at most 64 KiB."""


def one(data: bytes, slowest_s: float = SLOWEST_S) -> None:
    """Feed one input as a log: it must not raise, must not take long, and must not change its verdict by colour."""
    began = time.process_time()
    log = data.split(b"\n")
    trackers = Trackers()
    trackers.feed_all(read(line + b"\n" for line in log))
    for _, _, tracker in trackers:
        tracker.diagnosis()
    plain, coloured = Tracker(), Tracker()
    for line in log:
        plain.line(line)
        coloured.line(line.replace(b"(", b"\x1b[0;36m(").replace(b") ", b")\x1b[0;0m "))
    want, got = plain.diagnosis(), coloured.diagnosis()
    assert (want and want.rule) == (got and got.rule), (want, got)
    assert time.process_time() - began < slowest_s, "too slow"


def seeds() -> Iterator[tuple[str, bytes]]:
    """Each sample and near miss of the catalogue, with a name."""
    for rule in CATALOGUE:
        for number, text in enumerate((*rule.samples, *rule.near_misses)):
            yield f"{rule.id}-{number}", text.encode()
