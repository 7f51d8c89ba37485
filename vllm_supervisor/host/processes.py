"""Processes: who is in a control group, what a process was started with, and what it is called."""

from __future__ import annotations

import errno
from pathlib import Path

import psutil

CGROUP_ROOT = Path("/sys/fs/cgroup")


def in_control_group(control_group: str) -> list[int]:
    """PIDs in a unit's control group and below it; [] when it is gone, which systemd sees to once it is empty.

    Args:
        control_group: systemd's ControlGroup property, such as `/system.slice/vllm-a.service`.
    """
    if not control_group:
        return []
    root = CGROUP_ROOT if (CGROUP_ROOT / "cgroup.procs").exists() else CGROUP_ROOT / "systemd"  # v1 or hybrid
    pids: list[int] = []
    for file in [*root.joinpath(control_group.lstrip("/")).rglob("cgroup.procs")]:
        try:
            pids += map(int, file.read_text().split())
        except OSError as e:
            if e.errno not in (errno.ENOENT, errno.ENODEV):  # removed between the listing and the reading
                raise
    return pids


def environment(pid: int) -> dict[str, str]:
    """The environment a process was started with; {} when it is gone or may not be read."""
    try:
        return psutil.Process(pid).environ()
    except psutil.Error:
        return {}


def listens(pid: int, port: int) -> bool:
    """Whether a process or one of its descendants has a TCP socket that listens on a port.

    Where that may not be looked at it is taken for true: a server that answers is then all that can be known.
    """
    try:
        main = psutil.Process(pid)
        return any(_listens(process, port) for process in [main, *main.children(recursive=True)])
    except psutil.AccessDenied:
        return True
    except psutil.NoSuchProcess:
        return False


def _listens(process: psutil.Process, port: int) -> bool:
    try:
        sockets = process.net_connections(kind="tcp")
    except psutil.NoSuchProcess:  # a child that ended between the listing and the look
        return False
    return any(socket.status == psutil.CONN_LISTEN and socket.laddr.port == port for socket in sockets)


def describe(pid: int) -> str:
    """A process for people: `VLLM::EngineCore (PID 4207, user vllm)`."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            return f"{process.name()} (PID {pid}, user {process.username()})"
    except psutil.Error:
        return f"PID {pid}"
