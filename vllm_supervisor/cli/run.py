"""`vllm-supervisor run`: the daemon."""

from __future__ import annotations

import click


@click.command("run")
def command() -> int:
    """Follow the journal and remedy failed starts (what vllm-supervisor.service runs)."""
    from vllm_supervisor.daemon import Daemon
    from vllm_supervisor.paths import Paths

    return Daemon(Paths()).run()
