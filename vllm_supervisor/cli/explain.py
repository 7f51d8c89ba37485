"""`vllm-supervisor explain`: the story of one service, and how to undo what was done."""

from __future__ import annotations

import click

from vllm_supervisor.cli.options import OperatorCommand, console, service_argument, styled
from vllm_supervisor.cli.status import others, values


@click.command("explain", cls=OperatorCommand)
@service_argument()
def command(name: str) -> None:
    """Show what happened to a service, with the quoted log lines, and how to undo it."""
    from vllm_supervisor.explain import explain
    from vllm_supervisor.paths import Paths

    told = explain(Paths(), name)
    out = console()
    out.print(styled(f"{name} is {told.status.condition}", "bold"))
    out.print(styled(f"max-num-seqs: {values(told.status.declared, told.status.effective)}"))
    for line in others(told.status):
        out.print(styled(line))
    for line in told.story:
        out.print(styled(line))
    for line in told.advice:
        out.print(styled(line, "yellow"))
