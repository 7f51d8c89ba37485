"""`vllm-supervisor history`: what happened, row by row."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from vllm_supervisor.cli.options import console, json_option, service_argument
from vllm_supervisor.errors import ConfigError


@click.command("history")
@service_argument(required=False)
@click.option("--lines", "-n", type=click.IntRange(min=1), default=100, show_default=True, help="The latest so many.")
@json_option
def command(name: str | None, lines: int, as_json: bool) -> None:
    """Show every event and act, oldest first."""
    from rich.text import Text

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
        click.echo(json.dumps([asdict(row) for row in rows], ensure_ascii=False, indent=2))
        return
    out = console()
    for row in rows:
        run = f" [invocation {row.invocation[:8]}]" if row.invocation else ""
        out.print(Text(f"{clock.local(row.time_us)}  {row.service}  {row.kind}: {row.why}{run}"))
        if row.quote:
            out.print(Text(f"    {row.rule}, {row.phase}: {row.quote}", style="dim"))
