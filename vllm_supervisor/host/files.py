"""Files: whole or not at all, and one lock among our own processes."""

from __future__ import annotations

import fcntl
import glob
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from vllm_supervisor.errors import HostError, LockedError

UNIT_MODE = 0o644
"""systemd's own units are world-readable, and a unit of ours holds no secret."""

LOCK_MODE = 0o600
"""Whoever may open a file, if only to read it, may lock it: a user without rights would hold up every remedy."""

LOCK_POLL_S = 0.05

LOCK_TELL_S = 1.0
"""Nobody wonders about a wait that is shorter; most are."""

_VERSION = re.compile(r"vllm-([0-9A-Za-z.+!_-]{1,64})\.dist-info")


def read_text(path: Path) -> str | None:
    """The text of a file, or None where there is none.

    Raises:
        HostError: it is there and cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return None
    except OSError as e:
        raise HostError(f"cannot read {path}: {e.strerror}") from e


def write_atomically(path: Path, text: str, *, mode: int = UNIT_MODE) -> bool:
    """Put `text` at `path`, whole or not at all. Returns False, touching nothing, if that text is there already.

    The temporary file ends in `~`, which systemd and every backup-aware scanner of directories skips. One of a process
    that was killed is removed: the caller holds `exclusive`, so nobody else is writing that file.

    Raises:
        HostError: the directory or the disk does not allow it; `path` is what it was.
    """
    if read_text(path) == text:
        return False
    try:
        _sweep(path)
        fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix="~")
        try:
            with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
                os.fchmod(file.fileno(), mode)  # mkstemp gives 0600, and the umask must not decide
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        _sync_directory(path.parent)
    except OSError as e:
        raise HostError(f"cannot write {path}: {e.strerror}") from e
    return True


def remove(path: Path) -> None:
    """Remove a file, if it is there, for good.

    Raises:
        HostError: the directory does not allow it.
    """
    try:
        path.unlink(missing_ok=True)
        _sweep(path)
        _sync_directory(path.parent)
    except OSError as e:
        raise HostError(f"cannot remove {path}: {e.strerror}") from e


def move(source: Path, target: Path) -> None:
    """Rename a file within its directory, for good, over what is there.

    Raises:
        OSError: the directory does not allow it.
    """
    source.replace(target)
    _sync_directory(target.parent)


def make_directory(path: Path, *, mode: int) -> None:
    """Make a directory, and those above it, where there is none.

    Raises:
        HostError: it cannot be made.
    """
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as e:
        raise HostError(f"cannot make the directory {path}: {e.strerror}") from e


def vllm_version(executable: Path) -> str | None:
    """Version of the vLLM whose `vllm` program this is, read from its environment's metadata; None if that has none.

    Nothing is run: asking the program itself takes ten seconds.
    """
    with suppress(OSError):
        for metadata in sorted(executable.parent.parent.glob("lib/python3*/site-packages/vllm-*.dist-info")):
            # Whoever may write there may be the service's user: what is no version stays out of messages.
            if found := _VERSION.fullmatch(metadata.name):
                return found[1]
    return None


@contextmanager
def exclusive(path: Path, *, timeout_s: float = 30.0, tell: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the lock that keeps `apply` and the daemon from changing units at the same time.

    Args:
        path: the file; whoever holds the lock has its name in it.
        timeout_s: how long to wait for it.
        tell: is given a sentence, once, when that takes longer than `LOCK_TELL_S`.

    Raises:
        LockedError: another of our processes holds it for longer than that.
        HostError: there can be no such file.
    """
    make_directory(path.parent, mode=0o755)
    began_s, told = time.monotonic(), tell is None
    try:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, LOCK_MODE), "r+")
        os.fchmod(file.fileno(), LOCK_MODE)  # an earlier version made it readable to all
    except OSError as e:
        raise HostError(f"cannot open the lock {path}: {e.strerror}") from e
    with file:
        while not _locked(file.fileno()):
            waited_s = time.monotonic() - began_s
            if waited_s > timeout_s:
                raise LockedError(
                    f"cannot take the lock {path} within {timeout_s:g} s: {_holder(file)} is changing units",
                    hint=f"`fuser -v {path}` names it; try again when it has ended",
                )
            if tell is not None and not told and waited_s > LOCK_TELL_S:
                told = True
                tell(f"waiting for {_holder(file)}, which is changing units")
            time.sleep(LOCK_POLL_S)
        _sign(file, f"{' '.join([Path(sys.argv[0]).name, *sys.argv[1:]])} (PID {os.getpid()})")
        try:
            yield
        finally:
            _sign(file, "")


def _sign(file: IO[str], text: str) -> None:
    """A full disk does not keep anybody from the lock."""
    with suppress(OSError):
        file.seek(0)
        file.truncate()
        file.write(text)
        file.flush()


def _holder(file: IO[str]) -> str:
    file.seek(0)
    return file.read(200) or "another vllm-supervisor"


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sweep(path: Path) -> None:
    """Remove the temporary files that `write_atomically` left when it was killed over this one."""
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*~"):
        temporary.unlink(missing_ok=True)


def _sync_directory(path: Path) -> None:
    """Without this the rename itself may not survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
