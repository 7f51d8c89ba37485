"""The one place that runs programs of the host: an argument list, never a shell, and never without a time limit."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence

from vllm_supervisor.errors import HostError, PermissionDeniedError

TIMEOUT_S = 60.0
"""systemctl answers in 10 ms; its own D-Bus calls give up after 25 s (systemd's BUS_DEFAULT_TIMEOUT_USEC)."""

_NOT_ALLOWED = ("Access denied", "Interactive authentication required", "Permission denied", "Operation not permitted")


def run(argv: Sequence[str], *, timeout_s: float = TIMEOUT_S, ok: Sequence[int] = (0,)) -> str:
    """Run a program and return its standard output.

    Args:
        argv: program and arguments.
        timeout_s: seconds until it is killed.
        ok: exit codes that are no failure.

    Raises:
        PermissionDeniedError: it says that we may not.
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
    if done.returncode in ok:
        return done.stdout.decode("utf-8", "replace")
    said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
    error = PermissionDeniedError if any(text in said for text in _NOT_ALLOWED) else HostError
    raise error(f"cannot finish `{line}`: exit code {done.returncode}: {said or 'it said nothing'}")
