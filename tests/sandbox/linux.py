"""The few calls to the kernel that the standard library does not have, with errors that say what could not be done."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

# linux/mount.h, linux/sched.h, linux/prctl.h
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x1, 0x2, 0x4, 0x8
MS_REMOUNT, MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 0x20, 0x1000, 0x2000, 0x4000, 0x40000
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS = 0x00020000, 0x02000000, 0x04000000
CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = 0x08000000, 0x20000000, 0x40000000
PR_SET_PDEATHSIG, PR_CAPBSET_DROP = 1, 24

_libc = ctypes.CDLL(None, use_errno=True)


class KernelError(Exception):
    """The kernel said no; one sentence starting with "cannot", for the test runner to show."""


def _check(result: int, what: str) -> None:
    if result == -1:
        raise KernelError(f"cannot {what}: {os.strerror(ctypes.get_errno())}")


def mount(source: str | Path, target: str | Path, fstype: str = "", flags: int = 0, data: str = "") -> None:
    """Mount, bind, move or remount, as the flags say."""
    result = _libc.mount(
        os.fsencode(source), os.fsencode(target), fstype.encode(), ctypes.c_ulong(flags), os.fsencode(data)
    )
    _check(result, f"mount {fstype or source} on {target}")


def bind(source: str | Path, target: str | Path, *, read_only: bool = False) -> None:
    """Show `source` at `target` too."""
    mount(source, target, flags=MS_BIND)
    if read_only:  # the kernel takes this flag in a second step only
        mount("none", target, flags=MS_REMOUNT | MS_BIND | MS_RDONLY)


def unshare(namespaces: int) -> None:
    """Leave the namespaces that these flags name for new ones."""
    _check(_libc.unshare(namespaces), "make namespaces (root with CAP_SYS_ADMIN is needed)")


def die_with_parent() -> None:
    """Have the kernel kill us when our parent ends."""
    _check(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL), "ask to be killed with the parent")


def drop_capability(number: int) -> None:
    """Have no program that we start get this capability, not even root's."""
    _check(_libc.prctl(PR_CAPBSET_DROP, number), "drop a capability")
