"""Processes with the names, signals and pipes that the parts of vLLM have."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

_STOPS = (signal.SIGTERM, signal.SIGINT)
_HIGHEST_DESCRIPTOR = 256  # none of ours is near it


class Terminated(BaseException):
    """SIGTERM or SIGINT arrived; like KeyboardInterrupt it passes through `except Exception`."""


def rename(title: str) -> None:
    """Show the calling process as `title` to ps, in full as its command line and in 15 bytes as its name.

    The kernel lets a process write over its own arguments; how far they reach is in /proc/self/stat.
    """
    with suppress(OSError):
        Path("/proc/self/comm").write_text(title[:15], encoding="ascii")
        stat = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
        first, last = map(int, stat.rpartition(")")[2].split()[45:47])
        with Path("/proc/self/mem").open("r+b", buffering=0) as own:
            own.seek(first)
            own.write(title.encode()[: last - first - 1].ljust(last - first, b"\0"))


def name_main() -> None:
    """Show the calling process to ps as `vllm`, keeping its command line."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text("vllm", encoding="ascii")


def fork(run: Callable[[], int], *, title: str, keep: Iterable[int], ignore_term: bool) -> int:
    """Run a function in a child process and return its process ID.

    In the child SIGTERM and SIGINT raise `Terminated` (or do nothing at all), and every descriptor above stderr that
    is not in `keep` is closed, so that the end of a process shows at the other end of its pipes.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        child = os.fork()
        if child == 0:
            _run_child(run, title, {*keep}, ignore_term)
        return child
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)


def _run_child(run: Callable[[], int], title: str, keep: set[int], ignore_term: bool) -> NoReturn:
    code = 70
    try:
        signal.set_wakeup_fd(-1)
        for number in _STOPS:
            signal.signal(number, signal.SIG_IGN if ignore_term else _terminate)
        for descriptor in range(3, _HIGHEST_DESCRIPTOR):
            if descriptor not in keep:
                with suppress(OSError):
                    os.close(descriptor)
        rename(title)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
        code = run()
    except Terminated:
        code = 0
    except BaseException:
        import traceback  # costs as much as a whole start, and only a bug needs it

        traceback.print_exc()
    finally:
        os._exit(code)


def _terminate(_number: int, _frame: object) -> NoReturn:
    """Once: a process that is ending is not to be interrupted by the next signal."""
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)
    raise Terminated


class Signals:
    """SIGTERM and SIGINT as something to select on; reading `descriptor` empties it.

    Args:
        ignore_term: SIGTERM is ignored altogether.
    """

    def __init__(self, *, ignore_term: bool) -> None:
        self.descriptor, wakeup = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGTERM, signal.SIG_IGN if ignore_term else _note)
        signal.signal(signal.SIGINT, _note)

    def take(self) -> int:
        """How many signals came since the last call; two that the kernel had pending at once are one."""
        try:
            return len(os.read(self.descriptor, 64))
        except BlockingIOError:
            return 0


def _note(_number: int, _frame: object) -> None:
    """The number is in the wakeup descriptor by now."""
