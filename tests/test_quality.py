"""Linter, formatter, type checker and spell checker, over everything that is committed here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CLONE = Path(__file__).resolve().parents[1]
PROGRAMS = Path(sys.prefix, "bin")
MODULE = [sys.executable, "-m"]
SHELL_SCRIPTS = ["dev", ".ci/run", "packaging/fresh-machine"]


def complaints(command: list[str]) -> str:
    """What a checker prints when it is not content, else nothing."""
    done = subprocess.run(command, cwd=CLONE, capture_output=True, text=True)
    return f"{done.stdout}{done.stderr}" if done.returncode else ""


@pytest.mark.parametrize(
    "command",
    [
        pytest.param([*MODULE, "ruff", "check", "."], id="ruff"),
        pytest.param([*MODULE, "ruff", "format", "--check", "--diff", "."], id="format"),
        pytest.param([*MODULE, "mypy"], id="mypy"),
        pytest.param([str(PROGRAMS / "codespell")], id="codespell"),
        pytest.param([str(PROGRAMS / "shellcheck"), *SHELL_SCRIPTS], id="shellcheck"),
    ],
)
def test_code(command: list[str]) -> None:
    """`./dev lint` runs this file; the settings are in pyproject.toml."""
    if found := complaints(command):
        pytest.fail(found, pytrace=False)
