"""Finding out what program a `vllm` is, and reading the options of its parser."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_supervisor.host import list_flags, vllm

# A parser made somewhere deep inside, by a program that logs while it is imported.
PROGRAM = """#!{python}
import argparse, sys
print("INFO importing")
class Flexible(argparse.ArgumentParser):
    def parse_args(self, args=None, namespace=None):
        return super().parse_args([a.replace("_", "-") for a in sys.argv[1:]], namespace)
if __name__ == "__main__":
    other = argparse.ArgumentParser(add_help=False)
    other.add_subparsers().add_parser("bench")
    other.parse_known_args([])
    parser = Flexible()
    serve = parser.add_subparsers().add_parser("serve")
    serve.add_argument("model_tag", nargs="?")
    serve.add_argument("--max-model-len", "-m", type=int)
    serve.add_argument("--eager", action=argparse.BooleanOptionalAction)
    serve.add_argument("--dtype", choices=["auto", "half"])
    serve.add_argument("--level", type=int, choices=[1, 2])
    serve.add_argument("--case", type=str.lower, choices=["a", "b"])
    serve.add_argument("--hidden", nargs="+", help=argparse.SUPPRESS)
    {end}
    print("serving")
"""


def program(directory: Path, end: str, first: str = "") -> Path:
    path = directory / "vllm"
    path.write_text(first + PROGRAM.format(python=sys.executable, end=end))
    return path


def run(path: Path) -> subprocess.CompletedProcess[str]:
    script = Path(list_flags.__file__).read_text()
    return subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)


def test_the_options_are_those_of_the_parser(tmp_path: Path) -> None:
    """Hidden ones included, nothing else on standard output, and the program goes no further."""
    done = run(program(tmp_path, "parser.parse_args()"))

    assert done.returncode == 0
    assert json.loads(done.stdout) == {
        "-h": {"nargs": 0, "choices": None},
        "--help": {"nargs": 0, "choices": None},
        "--max-model-len": {"nargs": None, "choices": None},
        "-m": {"nargs": None, "choices": None},
        "--eager": {"nargs": 0, "choices": None},
        "--no-eager": {"nargs": 0, "choices": None},
        "--dtype": {"nargs": None, "choices": ["auto", "half"]},
        "--level": {"nargs": None, "choices": None},
        "--case": {"nargs": None, "choices": None},
        "--hidden": {"nargs": "+", "choices": None},
    }
    assert "serving" not in done.stderr


def test_a_program_that_parses_in_another_way_says_nothing(tmp_path: Path) -> None:
    """Standard output stays empty, whatever the program prints."""
    assert run(program(tmp_path, "")).stdout == ""


@pytest.mark.parametrize(
    ("head", "words"),
    [
        pytest.param("#!/opt/v/bin/python\n", ["/opt/v/bin/python"], id="environment"),
        pytest.param("#!/usr/bin/env python3.12\n", ["/usr/bin/env", "python3.12"], id="env"),
        pytest.param("#! /usr/bin/python3 -s\n", ["/usr/bin/python3", "-s"], id="option"),
        pytest.param("#!/bin/sh\n'''exec' /a/very/long/python \"$0\" \"$@\"\n", ["BESIDE"], id="long-path"),
        pytest.param("#!/bin/bash\nexec vllm\n", [], id="wrapper"),
        pytest.param("\x7fELF", [], id="binary"),
        pytest.param("", [], id="empty"),
    ],
)
def test_what_runs_a_program(tmp_path: Path, head: str, words: list[str]) -> None:
    """The words of its first line where they name a Python, or the Python beside it."""
    beside = tmp_path / "python"
    beside.touch()
    path = tmp_path / "vllm"
    path.write_text(head)

    assert vllm._interpreter(path) == [str(beside) if word == "BESIDE" else word for word in words]


def test_a_stamp_changes_with_what_is_installed(tmp_path: Path) -> None:
    """With the program behind a link, and with the packages beside it."""
    real, packages, link = tmp_path / "bin/vllm", tmp_path / "lib/python3.11/site-packages", tmp_path / "vllm"
    packages.mkdir(parents=True)
    real.parent.mkdir()
    real.touch()
    link.symlink_to(real)
    before = vllm.stamp(link)
    assert before == vllm.stamp(link)

    (packages / "vllm-0.33.0.dist-info").mkdir()

    assert before != vllm.stamp(link)


def test_no_program_has_no_stamp(tmp_path: Path) -> None:
    """Nor has a directory, or a link to itself."""
    (tmp_path / "loop").symlink_to("loop")

    assert [vllm.stamp(tmp_path / name) for name in ("none", ".", "loop")] == [None, None, None]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param("Traceback\n  File\nImportError: x\n\n", "ImportError: x", id="traceback"),
        pytest.param("a\x1b]0;title\x07b\r\n", "a]0;titleb", id="terminal"),
        pytest.param("", "", id="nothing"),
        pytest.param("x" * 9999, "x" * 300, id="long"),
    ],
)
def test_the_last_line(text: str, line: str) -> None:
    """What is repeated of a complaint fits a terminal."""
    assert vllm._last_line(text) == line
