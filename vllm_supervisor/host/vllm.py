"""A vLLM that is installed here: asking it which options its `serve` takes.

Asking runs its code, and that code may be writable by the user the service runs as, while we are root. So it runs in a
unit of its own, as that user, without privileges or network, on a file system it cannot write to, for a limited time;
and whatever it answers is input like any other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from vllm_supervisor import programs
from vllm_supervisor.errors import HostError

TIMEOUT_S = 120
"""vLLM 0.32 takes 16 s of CPU time to import; with three busy processes to each CPU it answered after 24 to 39 s."""

MAX_BYTES = 1 << 20
"""vLLM 0.32 answers with 26 KiB."""

_LINE = 300  # characters of a complaint that are repeated
_CONFINED = (
    f"RuntimeMaxSec={TIMEOUT_S + 1}",  # ends what outlives our own patience
    f"LimitFSIZE={4 * MAX_BYTES}",
    "LimitCORE=0",
    "WorkingDirectory=/",
    "NoNewPrivileges=yes",
    "CapabilityBoundingSet=",
    "ProtectSystem=strict",
    "PrivateTmp=yes",
    "PrivateNetwork=yes",
    "RestrictSUIDSGID=yes",
)


def stamp(executable: Path) -> str | None:
    """A text that changes when another vLLM, or a package beside it, is installed; None where there is no such file."""
    try:
        real = executable.resolve(strict=True)
        places = [real, *sorted(real.parent.parent.glob("lib/python3*/site-packages"))]
        return "\n".join(f"{place} {place.stat().st_mtime_ns}" for place in places) if real.is_file() else None
    except (OSError, RuntimeError):  # RuntimeError: links in a circle
        return None


def ask(executable: Path, *, user: str, group: str | None, environment: Mapping[str, str]) -> str:
    """What `list_flags` prints for this `vllm`, at most `MAX_BYTES` of it. Not to be trusted.

    Args:
        executable: the `vllm` program, written in Python.
        user: whom it runs as.
        group: likewise; None for the user's own.
        environment: variables of the service.

    Raises:
        HostError: it is no Python program, fails, or takes longer than `TIMEOUT_S`.
    """
    cannot = f"cannot ask {executable} for its flags"
    interpreter = _interpreter(executable)
    if not interpreter:
        raise HostError(f"{cannot}: it is not a Python program")
    script = resources.files("vllm_supervisor.host").joinpath("list_flags.py").read_text("utf-8")
    confined = [f"--property={setting}" for setting in _CONFINED]
    # Caches go where they vanish with the unit.
    variables = [f"--setenv={k}={v}" for k, v in {"HOME": "/tmp", "NO_COLOR": "1", **environment}.items()]  # noqa: S108
    argv = ["systemd-run", "--quiet", "--pipe", "--wait", "--collect", "--service-type=exec"]
    argv += [f"--description=Flags of {executable}", f"--uid={user}", *([f"--gid={group}"] if group else [])]
    try:
        ended = programs.run_bounded(
            [*argv, *confined, *variables, "--", *interpreter, "-c", script, str(executable)],
            timeout_s=TIMEOUT_S,
            limit_bytes=MAX_BYTES,
        )
    except HostError as e:
        raise HostError(f"{cannot}: {e}") from e
    if ended.code:
        raise HostError(f"{cannot}: exit code {ended.code}: {_last_line(ended.err) or 'it said nothing'}")
    return ended.out


def _interpreter(executable: Path) -> list[str]:
    """The words that run a Python script: those of its first line, or the `python` beside it; [] for another program.

    Where an interpreter's path is too long for a first line, installers write a script for `sh` that is one for Python
    as well.
    """
    try:
        real = executable.resolve(strict=True)
        # Somebody may put a pipe in its place after it was looked at.
        with open(real, "rb", opener=lambda path, how: os.open(path, how | os.O_NONBLOCK)) as file:
            first, second = file.readline(1024).decode(), file.readline(1024)
    except (OSError, RuntimeError, UnicodeDecodeError):
        return []
    words = first.removeprefix("#!").split() if first.startswith("#!") else []
    if any(Path(word).name.startswith("python") for word in words):
        return words
    beside = real.with_name("python")
    return [str(beside)] if words and second.startswith(b"'''exec'") and beside.exists() else []


def _last_line(text: str) -> str:
    """The last line that says something, fit for a terminal."""
    lines = ["".join(c for c in line if c.isprintable()).strip() for line in text.splitlines()]
    return next((line[:_LINE] for line in reversed(lines) if line), "")
