"""`vllm-supervisor history`: what happened, row by row."""

from __future__ import annotations

from dataclasses import asdict

import click

from vllm_supervisor.cli.options import OperatorCommand, console, json_option, say_json, service_argument, styled
from vllm_supervisor.errors import ConfigError


@click.command("history", cls=OperatorCommand)
@service_argument(required=False)
@click.option("--lines", "-n", type=click.IntRange(min=1), default=100, show_default=True, help="How many to show.")
@json_option
def command(name: str | None, lines: int, as_json: bool) -> None:
    """Show every event and every change, oldest first."""
    from vllm_supervisor.host import clock
    from vllm_supervisor.observe import open_store
    from vllm_supervisor.paths import Paths

    store = open_store(Paths())
    rows = store.history(name, limit=lines)
    there = store.services()
    store.close()
    if name and not rows and name not in there:
        raise ConfigError(f"cannot find {name!r} in the history", hint=f"there are: {', '.join(there) or 'none'}")
    if as_json:
        say_json([asdict(row) for row in rows])
        return
    out = console()
    for row in rows:
        run = f" [invocation {row.invocation[:8]}]" if row.invocation else ""
        out.print(styled(f"{clock.local(row.time_us)}  {row.service}  {row.kind}: {row.why}{run}"))
        if row.quote:
            out.print(styled(f"    {row.rule}, {row.phase}: {row.quote}", "dim"))
