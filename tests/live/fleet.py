"""A host with vLLM services on it, for the live tests and the demo: the simulator as `vllm`, our daemon, our YAML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from subprocess import CompletedProcess
from typing import Any

from tests.sandbox import CLONE, LIMIT_S, PYTHON, SUPERVISOR, Sandbox

CONFIG = "/etc/vllm-supervisor/config.yaml"
VLLM = "/opt/vllm/bin/vllm"
DAEMON = "vllm-supervisor.service"
GO = "/run/let-go"
# A Python program as the real one is: it is asked for its flags as the real one is.
PROGRAM = f"""#!{PYTHON}
import os, sys
from vllm_supervisor.simulator.__main__ import main
sys.exit(main(sys.argv[1:], dict(os.environ)))
"""


class Fleet:
    """A sandbox with a pretended vLLM in /opt/vllm and the daemon's own unit, byte for byte as it is shipped."""

    def __init__(self, box: Sandbox) -> None:
        self.box = box
        box.write(VLLM, PROGRAM, mode=0o755)
        box.write(f"/etc/systemd/system/{DAEMON}", (CLONE / "units" / DAEMON).read_text())

    def start_daemon(self) -> None:
        """Start the daemon; returns once it is ready."""
        self.box.run(["systemctl", "daemon-reload"], check=True)
        self.box.run(["systemctl", "start", DAEMON], check=True)

    def configure(self, services: Mapping[str, Mapping[str, Any]], **defaults: Any) -> None:
        """Write the YAML: `defaults` for all, over an executable, a short time scale and a small model."""
        everything = {
            "defaults": {"executable": VLLM, **defaults},
            "services": {name: dict(service) for name, service in services.items()},
        }
        self.box.write(CONFIG, json.dumps(everything, indent=2))  # which is YAML, and has no anchors

    def held(self) -> str:
        """An executable whose starts wait for `let_go`, however long it takes to prepare what they will meet."""
        wait = f"until [ -e {GO} ]; do sleep 0.05; done"
        self.box.write("/opt/vllm/bin/held", f'#!/bin/sh\n{wait}\nexec {VLLM} "$@"\n', mode=0o755)
        return "/opt/vllm/bin/held"

    def let_go(self) -> None:
        """From now on no start waits."""
        self.box.run(["touch", GO], check=True)

    def run(self, *arguments: str, timeout: float = LIMIT_S) -> CompletedProcess[str]:
        """Run a command of ours, however it ends."""
        return self.box.run([SUPERVISOR, *arguments], timeout=timeout)

    def supervisor(self, *arguments: str, check: bool = True, timeout: float = LIMIT_S) -> str:
        """Run a command of ours; its standard output."""
        done = self.run(*arguments, timeout=timeout)
        if check and done.returncode:
            raise AssertionError(f"{arguments}: exit code {done.returncode}\n{done.stdout}{done.stderr}\n{self.log()}")
        return done.stdout

    def status(self) -> dict[str, dict[str, Any]]:
        """`status --json`, by service."""
        return {row["name"]: row for row in json.loads(self.supervisor("status", "--json"))["services"]}

    def history(self, name: str) -> list[dict[str, Any]]:
        """`history --json` of one service."""
        rows: list[dict[str, Any]] = json.loads(self.supervisor("history", name, "--json"))
        return rows

    def steps(self, name: str) -> list[tuple[int, int]]:
        """Every lowering in the history, as (tried, to)."""
        return [(row["tried"], row["to"]) for row in self.history(name) if row["kind"] == "lowered"]

    def unit(self, name: str) -> str:
        """The unit file of a service."""
        return self.box.read(f"/etc/systemd/system/vllm-{name}.service")

    def show(self, name: str, prop: str) -> str:
        """One property of a service's unit."""
        done = self.box.run(["systemctl", "show", f"vllm-{name}", "--value", "-p", prop])
        return done.stdout.strip()

    def wait_for(self, name: str, condition: str) -> dict[str, Any]:
        """Wait until a service is in that condition; its status then."""
        return self.box.wait_until(
            lambda: (row := self.status()[name])["condition"] == condition and row, f"{name} {condition}"
        )

    def log(self) -> str:
        """What everything said, for a failing test."""
        return self.box.run(["journalctl", "--no-pager", "-o", "short-precise", "-n", "150"]).stdout
