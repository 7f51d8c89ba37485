"""Time: monotonic seconds for every deadline, realtime microseconds for what people read later."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def monotonic_s() -> float:
    """Seconds that never step; only differences mean something."""
    return time.monotonic()


def realtime_us() -> int:
    """Microseconds since the epoch, as journald counts them."""
    return time.time_ns() // 1000


def local(time_us: int) -> str:
    """A realtime in the host's time zone, for people: `2026-11-29 03:12:45`."""
    return datetime.fromtimestamp(time_us / 1e6).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def stamp(time_us: int) -> str:
    """A realtime as a part of a file's name: `20261129T193012Z`."""
    return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%Y%m%dT%H%M%SZ")
