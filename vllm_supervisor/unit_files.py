"""Unit files as they lie on the host: whether one is still as we wrote it, and whether a process runs from it."""

from __future__ import annotations

from pathlib import Path

from vllm_supervisor import units
from vllm_supervisor.host import files, processes
from vllm_supervisor.host.systemd import UnitState
from vllm_supervisor.paths import Paths


def hindrance(paths: Paths, state: UnitState) -> str:
    """Why a unit must not be rewritten, as a sentence; "" when nothing is in the way."""
    text = files.read_text(paths.units / state.name)
    if text is None:
        return f"{paths.units / state.name} is gone: `vllm-supervisor apply` writes it again"
    if units.header(text) is None:
        return f"{paths.units / state.name} was replaced by a file that was not written by us"
    if not units.intact(text):
        return f"{paths.units / state.name} was changed by hand: `vllm-supervisor apply` shows how, and puts it right"
    for drop_in in state.drop_ins:
        if replaces_command(files.read_text(Path(drop_in)) or ""):
            return f"the drop-in {drop_in} replaces ExecStart=, so the unit's own --max-num-seqs has no effect"
    return ""


def replaces_command(drop_in: str) -> bool:
    """Whether a drop-in file sets ExecStart=."""
    settings = (line.partition("=") for line in drop_in.splitlines())
    return any(equals and key.strip() == "ExecStart" for key, equals, _ in settings)


def runs(pid: int, text: str) -> bool:
    """Whether a process was started from this unit text; False for PID 0 and for a process that may not be read."""
    return bool(pid) and processes.environment(pid).get(units.RUN_VARIABLE) == units.run_hash(text)
