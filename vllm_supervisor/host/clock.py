"""Time: monotonic seconds for every deadline, realtime microseconds for what people read later."""

from __future__ import annotations

import time
from datetime import datetime


def monotonic_s() -> float:
    """Seconds that never step; only differences mean something."""
    return time.monotonic()


def realtime_us() -> int:
    """Microseconds since the epoch, as journald counts them."""
    return time.time_ns() // 1000


def local(time_us: int) -> str:
    """A realtime in the host's time zone, for people: `2026-11-29 03:12:45`."""
    return datetime.fromtimestamp(time_us / 1e6).astimezone().strftime("%Y-%m-%d %H:%M:%S")
