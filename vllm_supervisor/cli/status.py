"""`vllm-supervisor status`: one screen that tells how every service is."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from vllm_supervisor.cli.options import OperatorCommand, console, json_option, say_json, service_argument, styled
from vllm_supervisor.learned import Flag

if TYPE_CHECKING:
    from rich.table import Table

    from vllm_supervisor.observe import ServiceStatus

_SHOWN = {"None": "vLLM's default", "True": "on", "False": "off"}
STYLES = {"ready": "green", "starting": "cyan", "restarting": "yellow", "failed": "red", "given-up": "bold red"}


@click.command("status", cls=OperatorCommand)
@service_argument(required=False)
@json_option
def command(name: str | None, as_json: bool) -> None:
    """Show every service, or one: state, phase, declared and effective value, remedies, last event."""
    from vllm_supervisor import our_daemon
    from vllm_supervisor.observe import statuses
    from vllm_supervisor.paths import Paths
    from vllm_supervisor.salvage import notices

    rows = statuses(Paths(), name)
    up, told = our_daemon.is_up(), notices(Paths())
    if as_json:
        say_json({"daemon": up, "notices": told, "services": [asdict(row) for row in rows]})
        return
    out = console()
    out.print(_table(rows))
    if any(row.learned for row in rows):
        out.print("To undo what was learned: `vllm-supervisor forget NAME`, then `vllm-supervisor apply`")
    for notice in told:
        out.print(styled(notice, "bold red"))
    if not up:
        out.print("vllm-supervisor.service is not running: nothing is remedied if a start fails", style="bold yellow")


def _table(rows: list[ServiceStatus]) -> Table:
    from rich.table import Table

    from vllm_supervisor.host import clock

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("SERVICE", "STATE", "SINCE", "MAX-NUM-SEQS", "REMEDIES", "LAST EVENT"):
        table.add_column(column, no_wrap=column != "LAST EVENT")
    for row in rows:
        state = f"{row.condition}: {row.phase}" if row.phase else str(row.condition)
        last = f"{clock.local(row.last.time_us)} {row.last.kind}: {row.last.why}" if row.last else ""
        table.add_row(
            row.name,
            styled(state, STYLES.get(row.condition, "")),
            clock.local(row.since_us) if row.since_us else "",
            "\n".join([values(row.declared, row.effective), *others(row)]),
            styled(remedies(row), "" if row.enabled and not row.paused else "yellow"),
            styled(last),
        )
    return table


def remedies(row: ServiceStatus) -> str:
    """How many were taken, and why there are none for now: `2 of 8, paused by alice`."""
    taken = f"{row.attempts} of {row.max_attempts}" if row.attempts else "none"
    off = "" if row.enabled else ", switched off"
    return taken + off + (f", paused by {row.paused.by}" if row.paused else "")


def values(declared: object, effective: object) -> str:
    """Declared and effective value for people: `256 (declared: 1024)`."""
    is_, was = (_SHOWN.get(text, text) for text in (str(effective), str(declared)))
    return is_ if declared == effective else f"{is_} (declared: {was})"


def others(row: ServiceStatus) -> list[str]:
    """The same of every flag but max-num-seqs that a remedy set, each with its name before it."""
    settings = [setting for setting in row.learned if setting.flag != Flag.MAX_NUM_SEQS]
    return [f"{setting.flag}: {values(setting.declared, setting.effective)}" for setting in settings]
