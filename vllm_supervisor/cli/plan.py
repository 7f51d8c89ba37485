"""`vllm-supervisor plan`: what apply would change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vllm_supervisor.cli.options import config_option, console, styled, tell
from vllm_supervisor.errors import CHANGES, OK, ConfigError

if TYPE_CHECKING:
    from vllm_supervisor.planning import Plan


@click.command("plan")
@config_option
def command(config: Path) -> int:
    """Show what `apply` would change, and touch nothing.

    Exit code 0: nothing would change; 3: something would; 78: the configuration has problems.
    """
    from vllm_supervisor.paths import Paths
    from vllm_supervisor.planning import plan

    planned = plan(replace(Paths(), config=config.absolute()), tell)
    show(planned)
    report_problems(planned)
    return CHANGES if planned.anything else OK


def show(planned: Plan) -> None:
    """Print the diffs, the notes and the summary."""
    out = console()
    for change in planned.changes:
        for line in change.diff.splitlines():
            style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
            out.print(styled(line, "bold" if line.startswith(("+++", "---")) else style))
        for note in change.notes:
            out.print(styled(f"{change.name}: {note}", "yellow"))
    out.print(styled(planned.summary, "bold"))


def report_problems(planned: Plan) -> None:
    """Raise what is wrong with the configuration, all of it at once, if anything is.

    Raises:
        ConfigError: there are problems.
    """
    if planned.problems:
        lines = [f"  {problem}" for problem in planned.problems]
        count = "1 problem" if len(lines) == 1 else f"{len(lines)} problems"
        raise ConfigError("\n".join([f"cannot use all of the configuration: {count}", *lines]))
