"""Configurations of every shape: read as they were meant, however written; rendered alike; and any text at all."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.properties import searching
from tests.unit.config.asked import PIECES, STYLES, as_words, configurations, reversed_order, taken, written
from vllm_supervisor import __version__
from vllm_supervisor.config import load
from vllm_supervisor.units import Cap, Header, Host, header, intact, render_all, run_hash, serve_argv

HOST = Host(252, ("/opt/gate",))
CAPS = st.none() | st.builds(
    Cap,
    st.fixed_dictionaries(
        {},
        optional={
            "max-num-seqs": st.integers(1, 4096),
            "gpu-memory-utilization": st.just(0.85),
            "max-model-len": st.just(4096),
            "enforce-eager": st.just(True),
        },
    ),
    st.lists(st.sampled_from([*PIECES, "\n", "\r"]), max_size=5).map("".join),
)


@searching(60)
@given(configurations(), STYLES)
def test_what_is_asked_for_is_what_is_read(asked: dict[str, Any], style: str) -> None:
    """Names, texts with all their signs, numbers with their digits, whatever the style."""
    with tempfile.TemporaryDirectory() as directory:
        services = taken(written(asked, style), Path(directory))

    assert list(services) == sorted(asked["services"])
    for name, wanted in asked["services"].items():
        service = services[name]
        assert service.model == wanted["model"]
        assert service.gpus == tuple(wanted["gpus"])
        assert service.port == wanted["port"]
        assert service.environment == wanted.get("environment", {})
        assert {key: str(path) for key, path in service.credentials.items()} == wanted.get("credentials", {})
        for flag, value in wanted.get("arguments", {}).items():
            assert service.arguments[flag] == (value if "." in flag and isinstance(value, list) else as_words(value))
        for key in ("host", "max_num_seqs", "start_timeout"):
            assert key not in wanted or getattr(service, key) == wanted[key]
        words = serve_argv(service, None)
        assert words[:3] == [wanted.get("executable", "/opt/vllm/bin/vllm"), "serve", wanted["model"]]
        assert words.count("--port") >= 1


@searching(60)
@given(configurations(), CAPS, st.data())
def test_what_is_rendered(asked: dict[str, Any], cap: Cap | None, data: st.DataObject) -> None:
    """The same bytes whatever the order in the file; one line, one setting; and no byte can be changed unnoticed."""
    with tempfile.TemporaryDirectory() as directory:
        services = taken(written(asked, 'block"'), Path(directory))
        again = taken(written(reversed_order(asked), "json"), Path(directory))
        source = f"{directory}/config.yaml"
    caps = dict.fromkeys(services, cap) if cap else {}
    units = render_all(services, caps, HOST, {})
    assert units == render_all(dict(reversed(again.items())), caps, HOST, {})
    for text in units.values():
        assert header(text) == Header(__version__, source)
        assert intact(text)
        assert re.fullmatch("[0-9a-f]{16}", run_hash(text) or "")
        check_lines(text)
        at = data.draw(st.integers(text.index("\n") + 1, len(text) - 1), label="changed at")
        other = data.draw(st.sampled_from(sorted({" ", "x", "\n", "\\", "0"} - {text[at]})), label="to")
        assert not intact(text[:at] + other + text[at + 1 :])
        assert not intact(text[:at] + text[at + 1 :]), "one taken out"
        assert not intact(text[:at] + other + text[at:]), "one put in"


def check_lines(text: str) -> None:
    """Nothing but comments, sections and settings, none of them twice, and nothing that cannot be seen."""
    assert all(line.isprintable() for line in text.split("\n"))
    lines = text.replace(" \\\n    ", " ").split("\n")
    settings = [line for line in lines if line and not line.startswith("#")]
    assert all(re.match(r"\[(Unit|Service|Install)\]$|[A-Z][A-Za-z]+=", line) for line in settings), settings
    assert len(set(settings)) == len(settings)
    assert sum(line.startswith("ExecStart=") for line in settings) == 1
    variables = [line.split("=")[1].strip("\"'") for line in settings if line.startswith("Environment=")]
    assert len(set(variables)) == len(variables)


FRAGMENTS = st.sampled_from(
    [
        *("defaults", "services", "arguments", "environment", "model", "gpus", "port", "remediation", "floor", "host"),
        *(
            ": ",
            ":",
            "\n",
            "\n  ",
            "\n    ",
            "\n\t",
            "- ",
            "[",
            "]",
            "{",
            "}",
            ", ",
            "'",
            '"',
            "|",
            ">",
            "---\n",
            "...\n",
        ),
        *("&a ", "*a", "!!int ", "!x ", "? ", "# c", "%YAML 1.1\n", "@", "`", "<<: "),
        *("true", "yes", "null", "~", "0x1f", "1_000", "1e400", ".nan", "-.inf", "12:30:45", "9" * 30, "2024-01-01"),
        *("org/m", "/opt/vllm/bin/vllm", "a", "\ufeff", "\u2028", "\x85", "\0", "\x1b", "\ud7ff", "\U0001f600", "é"),
    ]
)
FILES = (
    st.binary(max_size=200)
    | st.lists(FRAGMENTS, max_size=40).map(lambda parts: "".join(parts).encode())
    | st.tuples(configurations(most=1), STYLES, st.randoms()).map(lambda drawn: damaged(*drawn))
)


def damaged(asked: dict[str, Any], style: str, chance: Any) -> bytes:
    """A right file with a few bytes of it changed, taken out or put in."""
    data = bytearray(written(asked, style).encode())
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(data))
        data[at : at + chance.randint(0, 3)] = chance.choice([b"", b"\n", b":", b"- ", b"\xff", b"{", b"'", b"x"])
    return bytes(data)


@searching(150)
@given(FILES)
def test_any_file_is_read_or_refused_in_words(content: bytes) -> None:
    """No exception, whatever the bytes; a problem is one line, at a line that there is."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "config.yaml"
        path.write_bytes(content)
        configuration = load(path)

    lines = len(re.findall(rb"\r\n|\n|\r|\xc2\x85|\xe2\x80[\xa8\xa9]", content)) + 1
    for problem in configuration.problems:
        assert problem.line is None or 1 <= problem.line <= lines
        assert problem.line is not None or not problem.key, "what has a key has a line"
        assert str(problem).isprintable()
        assert problem.message
    assert bool(configuration.broken) == bool(configuration.problems)
    assert not (configuration.broken and configuration.services)
    for text in render_all(configuration.services, {}, HOST, {}).values():
        check_lines(text)
