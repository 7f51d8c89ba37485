"""The command line: one small file for each command, imported only when that command is run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import click

from vllm_supervisor import __version__
from vllm_supervisor.cli.options import say
from vllm_supervisor.errors import INTERRUPTED, UNREAD, USAGE, SupervisorError

COMMANDS = (
    "plan",
    "apply",
    "status",
    "history",
    "explain",
    "forget",
    "pause",
    "resume",
    "classify",
    "rules",
    "schema",
    "run",
    "gate",
    "answer",
)


class _Commands(click.Group):
    """Finds a command in the module of its name, so that the daemon and the gate load none of the others."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"vllm_supervisor.cli.{cmd_name}")
        command: click.Command = module.command
        return command


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="vllm-supervisor", message="%(prog)s %(version)s")
def program() -> None:
    """Run vLLM services under systemd, and bring them up again when sampler warm-up runs out of GPU memory."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. An expected failure is one line and a hint on standard error."""
    try:
        result = program.main(args=argv, prog_name="vllm-supervisor", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except SupervisorError as e:
        say(f"vllm-supervisor: {e}", err=True)
        if e.hint:
            say(f"  hint: {e.hint}", err=True)
        return e.exit_code
    except click.ClickException as e:
        e.show()
        return USAGE
    except click.Abort:
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away, and Python would complain about it at exit
        return UNREAD
