"""The one place that runs programs of the host: an argument list, never a shell, and never without a time limit."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from vllm_supervisor.errors import HostError, PermissionDeniedError, TimedOutError

TIMEOUT_S = 30.0
"""systemctl answers in 10 ms; its own D-Bus calls give up after 25 s (systemd's BUS_DEFAULT_TIMEOUT_USEC)."""

SIGN_OF_LIFE_S = 0.5
"""How often somebody who waits for a program says that it is alive; the shortest watchdog that makes sense is 2 s."""

GOODBYE_S = 1.0
"""How long a killed program may take to end. One that hangs in a driver may take for ever, and is left behind."""

_NOT_ALLOWED = ("Access denied", "Interactive authentication required", "Permission denied", "Operation not permitted")

_signs_of_life: list[Callable[[], None]] = []


def while_waiting(say_alive: Callable[[], None]) -> None:
    """Have this called again and again while a program runs, such as to feed a watchdog.

    Each wait has an end, so to wait is not to hang: whoever does it in a row for longer than its watchdog's time is
    slow, and a restart would make it start over.
    """
    _signs_of_life[:] = [say_alive]


def run(argv: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> str:
    """Run a program and return its standard output.

    Args:
        argv: program and arguments.
        timeout_s: seconds until it is killed.

    Raises:
        PermissionDeniedError: it says that we may not, and we are not root.
        TimedOutError: it takes longer than that.
        HostError: it is missing, cannot be started, or exits with another code; the message holds a command line that
            can be pasted into a shell, and what it printed.
    """
    line = shlex.join(argv)
    try:
        code, out, err = _run(argv, subprocess.PIPE, subprocess.PIPE, timeout_s)
    except FileNotFoundError as e:
        raise HostError(f"cannot run `{line}`: {argv[0]} is not on PATH") from e
    except OSError as e:  # no descriptor or no process left, say
        raise HostError(f"cannot run `{line}`: {e.strerror}") from e
    except subprocess.TimeoutExpired as e:
        raise TimedOutError(f"cannot finish `{line}`: no answer within {timeout_s:g} s") from e
    if code == 0:
        return out.decode("utf-8", "replace")
    said = (err or out).decode("utf-8", "replace").strip()
    # If root is refused, becoming root does not help: there is another reason.
    not_allowed = os.geteuid() != 0 and any(text in said for text in _NOT_ALLOWED)
    error = PermissionDeniedError if not_allowed else HostError
    raise error(f"cannot finish `{line}`: exit code {code}: {said or 'it said nothing'}")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended, and what it printed on standard output and standard error."""

    code: int
    out: str
    err: str


def run_bounded(argv: Sequence[str], *, timeout_s: float, limit_bytes: int) -> Ended:
    """Run a program that may print without end, and keep the first `limit_bytes` of either stream.

    What it prints goes to unnamed files, whose size the caller bounds by LimitFSIZE= or its like.

    Raises:
        HostError: it is missing, cannot be started, or takes longer than `timeout_s`.
    """
    try:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            code, _, _ = _run(argv, out, err, timeout_s)
            return Ended(code, _head(out, limit_bytes), _head(err, limit_bytes))
    except FileNotFoundError as e:
        raise HostError(f"{argv[0]} is not on PATH") from e
    except OSError as e:
        raise HostError(f"it cannot be run: {e.strerror}") from e
    except subprocess.TimeoutExpired as e:
        raise TimedOutError(f"no answer within {timeout_s:g} s") from e


def _run(
    argv: Sequence[str], stdout: int | IO[bytes], stderr: int | IO[bytes], timeout_s: float
) -> tuple[int, bytes, bytes]:
    """Unlike `subprocess.run` it says meanwhile that it lives, and does not wait for what even SIGKILL does not end."""
    deadline_s = time.monotonic() + timeout_s
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
    while True:
        try:
            out, err = process.communicate(timeout=max(min(SIGN_OF_LIFE_S, deadline_s - time.monotonic()), 0))
            return process.returncode, out or b"", err or b""
        except subprocess.TimeoutExpired:
            for say_alive in _signs_of_life:
                say_alive()
            if time.monotonic() >= deadline_s:
                _end(process)
                raise
        except BaseException:
            _end(process)
            raise


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(GOODBYE_S)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _head(file: IO[bytes], limit_bytes: int) -> str:
    file.seek(0)
    return file.read(limit_bytes).decode("utf-8", "replace")
