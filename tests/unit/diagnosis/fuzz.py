"""A coverage-guided fuzzer for the normaliser and the tracker: `./dev fuzz [SECONDS]`.

That installs atheris and runs `python -m tests.unit.diagnosis.fuzz [CORPUS_DIRECTORY] [libFuzzer options]`. Without a
directory it starts from the samples of the catalogue. What fails is kept as `crash-…` in the current directory.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import atheris  # type: ignore[import-not-found,unused-ignore]

with atheris.instrument_imports(include=["vllm_supervisor"]):
    from vllm_supervisor.diagnosis import CATALOGUE, Tracker, Trackers, read

SLOWEST_S = 1.0  # for inputs of at most 64 KiB


def one(data: bytes) -> None:
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
    assert time.process_time() - began < SLOWEST_S, "too slow"


def seeds() -> str:
    """A directory with a file for each sample."""
    directory = Path(tempfile.mkdtemp(prefix="fuzz-seeds-"))
    for rule in CATALOGUE:
        for number, text in enumerate((*rule.samples, *rule.near_misses)):
            (directory / f"{rule.id}-{number}").write_text(text)
    return str(directory)


if __name__ == "__main__":
    named = any(not argument.startswith("-") for argument in sys.argv[1:])
    atheris.Setup([*sys.argv, *([] if named else [seeds()])], one)
    atheris.Fuzz()
