"""What people without root may have done for them, how it is asked for, and that output never commands a terminal."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from vllm_supervisor import cli
from vllm_supervisor.cli import COMMANDS, answer, main, program
from vllm_supervisor.cli.options import OperatorCommand, say, say_json, shown
from vllm_supervisor.cli.status import remedies
from vllm_supervisor.errors import HostError
from vllm_supervisor.host import control
from vllm_supervisor.store import Pause


def commands():
    return {name: program.get_command(click.Context(program), name) for name in COMMANDS}


def test_the_commands_for_people_without_root():
    """These five, and no argument of theirs is a file: root's side takes them as they come."""
    allowed = {name: command for name, command in commands().items() if isinstance(command, OperatorCommand)}

    assert set(allowed) == {"status", "history", "explain", "pause", "resume"}
    assert not [
        (name, parameter.name)
        for name, command in allowed.items()
        for parameter in command.params
        if isinstance(parameter.type, click.Path | click.File) or "config" in (parameter.name or "")
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["apply"],
        ["plan", "--config", "/etc/shadow"],
        ["classify", "/etc/shadow"],
        ["forget", "a"],
        ["run"],
        ["answer"],
        ["--version"],
        ["no-such-command"],
        ["status", "--config", "/etc/shadow"],
        ["status", "/etc/shadow"],
        ["explain", "a\nb"],
        ["explain", "../a"],
        ["history", "-n", "0"],
        ["pause"],
        ["pause", "a", "--all"],
    ],
)
def test_nothing_else_is_carried_out(arguments):
    """A usage error, whatever is asked for; nothing of a file comes back."""
    told = answer.carried_out(arguments)

    assert told.code == 2
    assert told.out == ""
    assert "root:" not in told.err


def exchange(sent, *, close=True):
    """What root's side makes of these bytes."""
    client, server = socket.socketpair()
    with client, server:
        client.sendall(sent)
        if close:
            client.shutdown(socket.SHUT_WR)
        return control.read_request(server)


def test_a_request_is_read():
    """One line; what follows it does not matter."""
    assert exchange(b'["status", "--json"]\nmore', close=False) == ["status", "--json"]


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b'["status"', id="half-a-line"),
        pytest.param(b"[" + b'"a",' * 2000 + b'"a"]\n', id="too-long"),
        pytest.param(b"[" * 4000 + b"\n", id="deep"),
        pytest.param(b"\xff\xfe\n", id="no-text"),
        pytest.param(b"{}\n", id="an-object"),
        pytest.param(b"[]\n", id="empty"),
        pytest.param(b'["status", 1]\n', id="a-number"),
        pytest.param(b'"status"\n', id="a-word"),
    ],
)
def test_what_is_no_request_is_refused(sent):
    """One kind of error, which the process ends with in order."""
    with pytest.raises(HostError, match="cannot read the request"):
        exchange(sent)


def test_a_client_that_says_nothing_is_hung_up_on(monkeypatch):
    """Also one that sends a byte now and then: the time is that of the whole line."""
    monkeypatch.setattr(control, "READ_S", 0.1)

    with pytest.raises(HostError, match="timed out"):
        exchange(b"[", close=False)


def test_a_client_that_takes_no_answer_is_hung_up_on(monkeypatch):
    """Its process must not stay for ever."""
    monkeypatch.setattr(control, "WRITE_S", 0.1)
    client, server = socket.socketpair()

    with client, server, pytest.raises(HostError, match="cannot answer"):
        control.reply(server, control.Answer(0, "x" * (4 << 20), ""))


HOSTILE = "\x1b[2J\x1b]0;title\x07 \x9b31m \x00 \x7f \u202e \u2028 \ud800 \r"


def test_nothing_that_is_printed_commands_a_terminal(capsys):
    """It is spelt out instead of left out: it is evidence."""
    say(f"one\n\ttwo {HOSTILE}")
    printed = capsys.readouterr().out

    assert printed.startswith("one\n\ttwo \\x1b[2J\\x1b]0;title\\x07 \\x9b31m \\x00 \\x7f \\u202e \\u2028 \\ud800 \\r")
    assert shown("plain, ü, 模型") == "plain, ü, 模型"


def test_one_place_prints():
    """Every command speaks through `options`, where that is looked at."""
    sources = {path.stem: path.read_text() for path in Path(cli.__file__).parent.glob("*.py") if path.stem != "options"}

    assert len(sources) > 10
    assert [name for name, text in sources.items() if re.search(r"click\.echo|rich\.text|json\.dumps", text)] == []


def test_json_stays_json(capsys):
    """What a terminal would obey is escaped as JSON has it, and comes out as it went in."""
    say_json({"quote": HOSTILE + "\U000e0001"})
    printed = capsys.readouterr().out

    assert all(char.isprintable() or char == "\n" for char in printed)
    assert json.loads(printed) == {"quote": HOSTILE + "\U000e0001"}


def test_a_hostile_log_is_classified_without_obeying_it(capsys, tmp_path):
    """The line that tells may hold anything: vLLM prints what it was given."""
    log = tmp_path / "log"
    record = {"levelname": "ERROR", "message": f"RuntimeError: Cannot find model \x1b[2J{HOSTILE[:-3]}"}
    log.write_text(
        json.dumps(record) + "\nRuntimeError: CUDA out of memory occurred when warming up sampler with 8 dummy"
    )

    main(["classify", str(log)])

    assert all(char.isprintable() or char == "\n" for char in capsys.readouterr().out)


@pytest.mark.parametrize(
    ("attempts", "enabled", "paused", "expected"),
    [
        (0, True, None, "none"),
        (2, True, None, "2 of 8"),
        (2, False, None, "2 of 8, switched off"),
        (0, True, Pause("a", 1, "alice"), "none, paused by alice"),
        (0, False, Pause("", 1, "alice"), "none, switched off, paused by alice"),
    ],
)
def test_status_says_when_nothing_would_be_done(attempts, enabled, paused, expected):
    """Switched off in the YAML, or paused and by whom."""
    row = SimpleNamespace(attempts=attempts, max_attempts=8, enabled=enabled, paused=paused)

    assert remedies(row) == expected
