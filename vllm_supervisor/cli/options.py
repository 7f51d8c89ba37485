"""Options that several commands take, and how all of them speak to people."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vllm_supervisor.paths import Paths

if TYPE_CHECKING:
    from rich.console import Console

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
    return click.argument("name", required=required, metavar="NAME" if required else "[NAME]")


def console(*, stderr: bool = False) -> Console:
    """A console that is plain when it is no terminal, and never wraps what a program may read."""
    from rich.console import Console  # costs 40 ms, and the daemon and the gate have no use for it

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 10_000
    return Console(file=stream, width=width, highlight=False, soft_wrap=not stream.isatty(), emoji=False)


def tell(sentence: str) -> None:
    """Say what is being waited for, where it does not mix with the result."""
    click.echo(sentence, err=True)


def require_root() -> None:
    """Refuse early what would fail halfway for anybody but root.

    Raises:
        PermissionDeniedError: somebody else asks.
    """
    from vllm_supervisor.errors import PermissionDeniedError

    if os.geteuid() != 0:
        raise PermissionDeniedError("cannot do that as an unprivileged user: it concerns units of the system")
