"""`vllm-supervisor answer`: carry out one command of an operator without root, as vllm-supervisor-control@.service."""

from __future__ import annotations

import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING

import click

from vllm_supervisor.cli.options import OperatorCommand, say
from vllm_supervisor.errors import USAGE, HostError

if TYPE_CHECKING:
    from vllm_supervisor.host.control import Answer


@click.command("answer", hidden=True)
def command() -> int:
    """Read one request from the connection on standard input, carry it out as root, and answer.

    Only commands that are made for it, and they take no file. Who may ask is what the socket's group and mode say.
    """
    from vllm_supervisor.host import control

    connection = control.take_over(sys.stdin.fileno())
    try:
        os.environ["SUDO_USER"] = control.peer(connection)  # root acts for that user, as with sudo
        control.reply(connection, carried_out(control.read_request(connection)))
    except HostError as e:
        say(str(e), err=True)  # into the journal: whoever asked is gone, or never meant to
    return 0


def carried_out(arguments: list[str]) -> Answer:
    """What the command did and said, or a refusal."""
    from vllm_supervisor.cli import main, program
    from vllm_supervisor.host.control import Answer

    found = program.get_command(click.Context(program), arguments[0])
    if not isinstance(found, OperatorCommand):
        return Answer(USAGE, "", "vllm-supervisor: cannot do that for anybody but root\n")
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(arguments)
    return Answer(code, out.getvalue(), err.getvalue())
