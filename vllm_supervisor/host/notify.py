"""sd_notify: what we tell systemd about ourselves, and what we tell it on behalf of a service."""

from __future__ import annotations

import array
import os
import socket
import struct
from contextlib import suppress

import sdnotify

MANAGER_SOCKET = "/run/systemd/notify"
"""Where PID 1 listens for notifications of system units."""


class Notifier:
    """Our own messages to systemd; without NOTIFY_SOCKET (run by hand) they go nowhere."""

    def __init__(self) -> None:
        self._notifier = sdnotify.SystemdNotifier()
        self._said = ""

    def ready(self) -> None:
        """Start-up is over."""
        self._notifier.notify("READY=1")

    def reloading(self, monotonic_s: float) -> None:
        """A reload begins; `ready` ends it."""
        self._notifier.notify(f"RELOADING=1\nMONOTONIC_USEC={int(monotonic_s * 1e6)}")

    def stopping(self) -> None:
        """Shutdown begins."""
        self._notifier.notify("STOPPING=1")

    def watchdog(self) -> None:
        """The loop is alive."""
        self._notifier.notify("WATCHDOG=1")

    def status(self, text: str) -> None:
        """One line for `systemctl status`; sent only when it changed."""
        if text != self._said:
            self._said = text
            self._notifier.notify(f"STATUS={' '.join(text.split())}")  # a line of its own would be another message


def watchdog_interval_s() -> float:
    """Half of WatchdogSec=, the interval sd_watchdog_enabled(3) recommends; infinite when no watchdog runs."""
    usec = os.environ.get("WATCHDOG_USEC", "")
    return int(usec) / 2e6 if usec.isdigit() and int(usec) else float("inf")


def status_for(pid: int, text: str) -> bool:
    """Say STATUS= for the main process of another unit, which knows nothing of systemd.

    The kernel lets a process with CAP_SYS_ADMIN name any PID as the sender; without it systemd takes us for a stranger
    and ignores the message, with no error. The unit needs NotifyAccess=main.

    Returns:
        False when the message could not be sent (the process is gone, no systemd).
    """
    line = text.replace("\n", " ")
    credentials = struct.pack("3i", pid, os.getuid(), os.getgid())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender, suppress(OSError):
        sender.connect(MANAGER_SOCKET)
        sender.sendmsg(
            [f"STATUS={line}".encode()], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, array.array("b", credentials))]
        )
        return True
    return False
