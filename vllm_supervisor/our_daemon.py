"""Our own daemon, as commands of ours see it."""

from __future__ import annotations

from contextlib import suppress

from vllm_supervisor.errors import HostError
from vllm_supervisor.host import systemd
from vllm_supervisor.paths import SUPERVISOR_UNIT


def tell() -> None:
    """Have the daemon, if it runs, read again what is in force."""
    if is_up():
        with suppress(HostError):  # it has just ended, and will read everything when it comes back
            systemd.hang_up(SUPERVISOR_UNIT)


def is_up() -> bool:
    """Whether the daemon that would remedy a failed start is running."""
    # "reloading" is what we bring about ourselves by telling it of an apply.
    return systemd.show([SUPERVISOR_UNIT])[SUPERVISOR_UNIT].active_state in ("active", "reloading")
