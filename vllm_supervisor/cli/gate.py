"""`vllm-supervisor gate`: what ExecStartPost= runs, so that a unit is active only once it serves."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click

from vllm_supervisor.errors import FAILED

POLL_S = 0.5


@click.command("gate", hidden=True)
@click.option("--pid", type=int, required=True, help="Main process; when it is gone there is nothing to wait for.")
@click.option("--url", required=True, help="Base URL of the server.")
def command(pid: int, url: str) -> int:
    """Wait until the server answers /health and one canary request; fail as soon as its process is gone.

    There is no time limit of its own: systemd's TimeoutStartSec= is one.
    """
    from urllib.parse import urlsplit

    from vllm_supervisor.host import processes
    from vllm_supervisor.host.health import probe

    port = urlsplit(url).port or 0
    while _alive(pid):
        # Whoever answers may be another server that holds the port, while ours still loads and is about to die of that.
        if probe(url).ready and processes.listens(pid, port) and _alive(pid):
            return 0
        time.sleep(POLL_S)
    sys.stderr.write(f"vllm-supervisor gate: process {pid} ended before it served\n")
    return FAILED


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # A zombie still takes signals; it will not serve any more. The state is the field after the last bracket.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except PermissionError:
        return True
    except OSError:
        return False
