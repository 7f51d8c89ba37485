"""Options that several commands take, and how all of them speak: what they print never commands a terminal."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vllm_supervisor.paths import Paths

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_GIVEN = "vllm_supervisor.arguments"
_SHOWN_ANYHOW = "\n\t\xa0"

config_option = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Paths().config,
    show_default=True,
    help="The YAML file; conf.d/*.yaml beside it belongs to it.",
)

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")


def service_argument(required: bool = True) -> Callable[[Any], Any]:
    """The name of a service, as in the YAML."""
    return click.argument("name", required=required, metavar="NAME" if required else "[NAME]", callback=_service_name)


def _service_name(_context: click.Context, _parameter: click.Parameter, name: str | None) -> str | None:
    if name is not None and not re.fullmatch("[a-z0-9][a-z0-9-]*", name):
        raise click.BadParameter(
            f"{name!r} is no name of a service: those are as in the YAML, without vllm- and .service"
        )
    return name


class OperatorCommand(click.Command):
    """A command for people without root too: root's side carries it out for those in the group vllm-operators.

    Its arguments are handed over as they were given, so none of them may name a file.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the arguments as they were given, and have click look at them here too."""
        ctx.meta[_GIVEN] = [*args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Carry the command out, or have it carried out."""
        if os.geteuid() == 0:
            return super().invoke(ctx)
        from vllm_supervisor.host import control

        answer = control.ask(Paths().control, [self.name or "", *ctx.meta[_GIVEN]])
        click.echo(answer.out, nl=False)
        click.echo(answer.err, nl=False, err=True)
        return answer.code


def operator() -> str:
    """Who gives this command: the user who became root for it, else the user of the process."""
    from vllm_supervisor.host import control

    return os.environ.get("SUDO_USER") or control.user_name(os.getuid())


def console(*, stderr: bool = False) -> Console:
    """A console that is plain when it is no terminal, and never wraps what a program may read."""
    from rich.console import Console  # costs 40 ms, and the daemon and the gate have no use for it

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 10_000
    return Console(file=stream, width=width, highlight=False, soft_wrap=not stream.isatty(), emoji=False)


def shown(text: str, escape: Callable[[str], str] = lambda char: char.encode("unicode_escape").decode()) -> str:
    """The text, with whatever a terminal would obey spelt out: a log line, or a file's text, may hold anything."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in _SHOWN_ANYHOW else escape(char) for char in text)


def styled(text: str, style: str = "") -> Text:
    """Text for `console`, with a style of ours and none of its own."""
    from rich.text import Text

    return Text(shown(text), style=style)


def say(text: str, *, err: bool = False) -> None:
    """Print a line on standard output, or on standard error."""
    click.echo(shown(text), err=err)


def say_json(document: object) -> None:
    """Print one JSON document."""
    text = json.dumps(document, ensure_ascii=False, indent=2)
    click.echo(shown(text, escape=lambda char: json.dumps(char)[1:-1]))


def tell(sentence: str) -> None:
    """Say what is being waited for, where it does not mix with the result."""
    say(sentence, err=True)


def require_root() -> None:
    """Refuse early what would fail halfway for anybody but root.

    Raises:
        PermissionDeniedError: somebody else asks.
    """
    from vllm_supervisor.errors import PermissionDeniedError

    if os.geteuid() != 0:
        raise PermissionDeniedError("cannot do that as an unprivileged user: it concerns units of the system")
