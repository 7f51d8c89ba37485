"""`vllm-supervisor resume`: the end of `pause`."""

from __future__ import annotations

import click

from vllm_supervisor.cli.options import OperatorCommand, operator, say, service_argument


@click.command("resume", cls=OperatorCommand)
@service_argument(required=False)
@click.option("--all", "everything", is_flag=True, help="End every pause.")
def command(name: str | None, everything: bool) -> None:
    """Start automatic remedies for a service again; the latest failure is answered at once.

    A remedy that was decided before the pause is carried out now, if the service still needs it.
    """
    from vllm_supervisor.paths import Paths
    from vllm_supervisor.pausing import ALL, resume

    if (name is None) is not everything:
        raise click.UsageError("give the NAME of a service, or --all")
    if resume(Paths(), name or ALL, operator()):
        say(f"{name or 'every service'} goes on: failures are answered again")
    else:
        say(f"{name} is not paused" if name else "nothing is paused")
