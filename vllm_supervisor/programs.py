"""The one place that runs programs of the host: an argument list, never a shell, and never without a time limit."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from vllm_supervisor.errors import HostError, PermissionDeniedError

TIMEOUT_S = 60.0
"""systemctl answers in 10 ms; its own D-Bus calls give up after 25 s (systemd's BUS_DEFAULT_TIMEOUT_USEC)."""

_NOT_ALLOWED = ("Access denied", "Interactive authentication required", "Permission denied", "Operation not permitted")


def run(argv: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> str:
    """Run a program and return its standard output.

    Args:
        argv: program and arguments.
        timeout_s: seconds until it is killed.

    Raises:
        PermissionDeniedError: it says that we may not, and we are not root.
        HostError: it is missing, exits with another code, or takes too long; the message holds a command line that can
            be pasted into a shell, and what it printed.
    """
    line = shlex.join(argv)
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False)
    except FileNotFoundError as e:
        raise HostError(f"cannot run `{line}`: {argv[0]} is not on PATH") from e
    except subprocess.TimeoutExpired as e:
        raise HostError(f"cannot finish `{line}`: no answer within {timeout_s:g} s") from e
    if done.returncode == 0:
        return done.stdout.decode("utf-8", "replace")
    said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
    # What root is refused has another reason, and is no matter of becoming root.
    not_allowed = os.geteuid() != 0 and any(text in said for text in _NOT_ALLOWED)
    error = PermissionDeniedError if not_allowed else HostError
    raise error(f"cannot finish `{line}`: exit code {done.returncode}: {said or 'it said nothing'}")


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
        HostError: it is missing, or takes longer than `timeout_s`.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, timeout=timeout_s, check=False
            )
        except FileNotFoundError as e:
            raise HostError(f"{argv[0]} is not on PATH") from e
        except subprocess.TimeoutExpired as e:
            raise HostError(f"no answer within {timeout_s:g} s") from e
        return Ended(done.returncode, _head(out, limit_bytes), _head(err, limit_bytes))


def _head(file: IO[bytes], limit_bytes: int) -> str:
    file.seek(0)
    return file.read(limit_bytes).decode("utf-8", "replace")
