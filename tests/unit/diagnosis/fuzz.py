"""A coverage-guided fuzzer for the normaliser and the tracker: `./dev fuzz [SECONDS]`.

That installs atheris and runs `python -m tests.unit.diagnosis.fuzz [CORPUS_DIRECTORY] [libFuzzer options]`. Without a
directory it starts from the samples of the catalogue. What fails is kept as `crash-…` in the current directory, and
becomes an input of test_fuzzed.py once it is mended.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris  # type: ignore[import-not-found,unused-ignore]

with atheris.instrument_imports(include=["vllm_supervisor"]):
    from tests.unit.diagnosis.fuzzed import one, seeds


def directory() -> str:
    """A directory with a file for each seed."""
    made = Path(tempfile.mkdtemp(prefix="fuzz-seeds-"))
    for name, data in seeds():
        (made / name).write_bytes(data)
    return str(made)


if __name__ == "__main__":
    named = any(not argument.startswith("-") for argument in sys.argv[1:])
    atheris.Setup([*sys.argv, *([] if named else [directory()])], one)
    atheris.Fuzz()
