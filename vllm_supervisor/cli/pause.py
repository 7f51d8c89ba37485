"""`vllm-supervisor pause`: let failures be watched and told, and nothing be done about them."""

from __future__ import annotations

import click

from vllm_supervisor.cli.options import OperatorCommand, operator, say, service_argument


@click.command("pause", cls=OperatorCommand)
@service_argument(required=False)
@click.option("--all", "everything", is_flag=True, help="Every service, and those added later.")
def command(name: str | None, everything: bool) -> None:
    """Stop automatic remedies for a service, until `resume`.

    Failures are still recorded, with what would have been done. A reboot does not end it; `apply` works as usual.
    """
    from vllm_supervisor.paths import Paths
    from vllm_supervisor.pausing import ALL, pause

    if (name is None) is not everything:
        raise click.UsageError("give the NAME of a service, or --all")
    there = pause(Paths(), name or ALL, operator())
    what = name or "every service"
    if there:
        say(f"{what} was paused before, by {there.by}")
    else:
        say(f"{what} is paused: nothing is done about failures until `vllm-supervisor resume {name or '--all'}`")
