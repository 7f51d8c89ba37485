"""What a process gets from quoted words in `ExecStart=` and `Environment=`: a real systemd is asked, many at a time."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import product

import pytest

from tests.sandbox import PYTHON, Sandbox, SandboxError
from vllm_supervisor.units import environment_assignment, exec_word

# Each means something to systemd's parser, to printf-like specifiers, to a shell, to YAML or to a terminal.
NASTY = [
    *" \t\"'\\%$;#=&|<>()[]{}*?~!`^,:-+@",
    "%n",
    "%%",
    "$$",
    "$HOME",
    "${HOME}",
    "\\n",
    "\\x41",
    "\\\\",
    "\r",
    "\x01",
    "\x1b[31m",
    "\x7f",
    "\x85",
    "\u2028",
    "\u202e",
    "\ufeff",
    "é",
    "漢",
    "\U0001f600",
]
PRINTER = "/opt/print-words"


def words() -> Iterator[str]:
    """Every nasty piece alone, every pair of them, and longer mixtures with plain text."""
    yield ""
    yield from NASTY
    yield from ("".join(pair) for pair in product(NASTY, repeat=2))
    chance = random.Random(20261129)
    for length in range(3, 9):
        yield from ("".join(chance.choices([*NASTY, "a", "0", "/", "--flag"], k=length)) for _ in range(60))
    yield '{"method": "eagle", "path": "C:\\\\x", "note": "it\'s 100% $HOME"}'
    yield "x" * 100_000


def run(box: Sandbox, setting: str) -> dict[str, list[str]]:
    """Start a unit with that setting once; what its process was given, as `argv` and `environ`."""
    program = (
        "import json, os, sys; "
        "json.dump({'argv': [os.fsencode(a).decode() for a in sys.argv[1:]], "
        "'environ': [f'{k}={v}' for k, v in os.environ.items()]}, open('/run/words.json', 'w'))"
    )
    box.write(PRINTER, f"#!{PYTHON} -IS\n{program.replace('; ', chr(10), 1)}\n", mode=0o755)
    box.write("/etc/systemd/system/words.service", f"[Service]\nType=oneshot\n{setting}\n")
    box.run(["systemctl", "daemon-reload"], check=True)
    box.run(["systemctl", "start", "words"], check=True)
    given: dict[str, list[str]] = json.loads(box.read("/run/words.json"))
    return given


def test_a_process_receives_exactly_the_words(box: Sandbox) -> None:
    expected = list(words())
    line = " \\\n    ".join(map(exec_word, expected))

    assert run(box, f"ExecStart={PRINTER} \\\n    {line}")["argv"] == expected


def test_a_process_receives_exactly_the_variables(box: Sandbox) -> None:
    expected = [(f"V{i}", word) for i, word in enumerate(words())]
    lines = "\n".join(f"Environment={environment_assignment(name, value)}" for name, value in expected)

    given = set(run(box, f"{lines}\nExecStart={PRINTER}")["environ"])

    assert [f"{name}={value}" for name, value in expected if f"{name}={value}" not in given] == []


@pytest.mark.parametrize("bare", ["$HOME", "%n", ";", '"', "a b", "\\x41"])
def test_the_words_do_need_quoting(box: Sandbox, bare: str) -> None:
    """Put down as they are they would arrive as something else, or the unit would not load: the check can fail."""
    try:
        given = run(box, f"ExecStart={PRINTER} {bare}")["argv"]
    except SandboxError:
        given = []

    assert given != [bare]
