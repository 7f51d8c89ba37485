"""Whom root believes: who may write to the configuration or the store, or where they lie, decides what root runs.

As sudo has it for sudoers: each of them belongs to root, and neither everybody nor a group other than root's may write
to it. A directory like /tmp does no harm: others may make files there, which do not belong to root, and replace none.
"""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from vllm_supervisor.errors import ConfigError


def distrusted(status: os.stat_result) -> str:
    """Who besides root and ourselves may write to a file or directory, as half a sentence; "" for nobody."""
    if status.st_uid not in (0, os.geteuid()):
        return f"its owner is user {status.st_uid}, not root"
    if status.st_mode & stat.S_IWOTH:
        return "every user may write to it"
    if status.st_mode & stat.S_IWGRP and status.st_gid != 0:
        return f"group {status.st_gid} may write to it"
    return ""


def way_out(path: Path) -> str:
    """The command that mends it."""
    name = shlex.quote(str(path))
    return f"`chown root:root {name} && chmod go-w {name}`"


def check_directories(file: Path) -> None:
    """Look at the directories that lead to a file, by its path and, where that is a link, to where it leads.

    Raises:
        ConfigError: somebody besides root could put another file in its place.
        OSError: one of them is not there.
    """
    for directory in dict.fromkeys([*file.absolute().parents, *file.resolve().parents]):
        status = directory.stat()
        shared = status.st_uid == 0 and status.st_mode & stat.S_ISVTX
        if not shared and (why := distrusted(status)):
            raise ConfigError(f"cannot trust {file}: {directory}: {why}", hint=way_out(directory))
