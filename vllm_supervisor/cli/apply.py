"""`vllm-supervisor apply`: make the host what the YAML says."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vllm_supervisor.cli.options import config_option, console, require_root, say, styled, tell
from vllm_supervisor.cli.plan import report_problems
from vllm_supervisor.errors import ConfigError, NotServedError

if TYPE_CHECKING:
    from vllm_supervisor.apply import Progress, Watch
    from vllm_supervisor.paths import Paths
    from vllm_supervisor.planning import Plan

LOOK_S = 0.5
QUIET_S = 10.0


@click.command("apply")
@config_option
@click.option("--no-wait", is_flag=True, help="Return once systemd has taken the jobs.")
def command(config: Path, no_wait: bool) -> int:
    """Write the units, start or restart what changed, and wait until it serves.

    A second run changes nothing and restarts nothing. Exit code 4: a service did not come up, now or before; 78: the
    configuration has problems (the services of the files concerned were left as they are).
    """
    from vllm_supervisor import our_daemon
    from vllm_supervisor.apply import apply
    from vllm_supervisor.host import clock
    from vllm_supervisor.paths import Paths

    require_root()
    paths = replace(Paths(), config=config.absolute())
    since_us = clock.realtime_us()
    planned = apply(paths, tell)
    out = console(stderr=True)
    for change in planned.changes:
        for note in change.notes:
            out.print(styled(f"{change.name}: {note}", "yellow"))
    say(planned.summary if planned.anything else f"nothing to do: {planned.summary}")
    if not our_daemon.is_up():
        out.print(
            "vllm-supervisor.service is not running: services start, and nothing is remedied if one fails",
            style="yellow",
        )
    if not no_wait:
        _wait(paths, planned, since_us)
        _failed_before(planned)
    _refusals(planned)
    report_problems(planned)
    return 0


def _failed_before(planned: Plan) -> None:
    failed = [change.name for change in planned.changes if change.failed]
    if failed:
        raise NotServedError(f"cannot call everything served: {', '.join(failed)} failed before, and nothing changed")


def _refusals(planned: Plan) -> None:
    from vllm_supervisor.planning import Verb

    notes = [f"  {note}" for change in planned.changes if change.verb is Verb.REFUSE for note in change.notes]
    if notes:
        raise ConfigError("\n".join(["cannot write every unit:", *notes]))


def _wait(paths: Paths, planned: Plan, since_us: int) -> None:
    from vllm_supervisor.apply import Outcome, Watch

    names = {change.unit: change.name for change in planned.changes if change.start}
    if not names:
        return
    watch = Watch(paths, names, since_us)
    ended = _follow_live(watch) if sys.stdout.isatty() else _follow_plain(watch)
    failed = [progress for progress in ended if progress.outcome is not Outcome.READY]
    if failed:
        lines = [f"  {progress.name}: {progress.doing}" for progress in failed]
        raise NotServedError(
            "\n".join([f"cannot bring up {len(failed)} of {len(ended)} services:", *lines]),
            hint=f"vllm-supervisor explain {failed[0].name}",
        )


def _follow_plain(watch: Watch) -> list[Progress]:
    """One line whenever a service does something else, and every ten seconds when only its numbers change."""
    said: dict[str, tuple[str, float]] = {}
    while True:
        seen = watch.look()
        for progress in seen:
            text = _words(progress)
            last, last_s = said.get(progress.name, ("", 0.0))
            only_numbers = _without_numbers(text) == _without_numbers(last)
            if text != last and (not only_numbers or progress.seconds - last_s > QUIET_S):
                said[progress.name] = (text, progress.seconds)
                say(f"{progress.name}: {text} ({progress.seconds:.0f} s)")
        if all(progress.outcome for progress in seen):
            return seen
        time.sleep(LOOK_S)


def _follow_live(watch: Watch) -> list[Progress]:
    """One line for each service, redrawn in place."""
    from rich.live import Live
    from rich.table import Table

    def table(seen: list[Progress]) -> Table:
        rows = Table.grid(padding=(0, 2))
        for progress in seen:
            style = {"ready": "green", "failed": "red", "down": "red"}.get(progress.outcome or "", "")
            rows.add_row(progress.name, f"{progress.seconds:.0f} s", styled(_words(progress)), style=style)
        return rows

    seen = watch.look()
    with Live(table(seen), console=console(), refresh_per_second=4) as live:
        while not all(progress.outcome for progress in seen):
            time.sleep(LOOK_S)
            seen = watch.look()
            live.update(table(seen))
    return seen


def _without_numbers(text: str) -> str:
    return "".join(character for character in text if not character.isdigit())


def _words(progress: Progress) -> str:
    return f"{progress.doing}, now with {progress.value}" if progress.value else progress.doing
