"""The arguments of services held against the flags of the vLLM each of them runs, before a running one is stopped.

A vLLM is asked once: its answer is kept until another version, or a package beside it, is installed. A vLLM that
cannot be asked stops nothing: its services are applied as they are, with a note.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vllm_supervisor import units
from vllm_supervisor.config import Complaint, Service
from vllm_supervisor.errors import HostError
from vllm_supervisor.host import files, vllm
from vllm_supervisor.paths import Paths
from vllm_supervisor.units import Option

# Variables that decide which code, and so which flags, one and the same vLLM loads.
_LOADING = ("PYTHONPATH", "VLLM_PLUGINS")
# With this flag the program hands all of its arguments on to another one, whose flags are its own.
_HANDS_ON = "omni"


@dataclass(slots=True)
class Checked:
    """What came out.

    Attributes:
        complaints: what would be refused.
        unchecked: by service, why its arguments were not checked.
        answers: file -> text of what was asked now, to be kept.
    """

    complaints: list[Complaint] = field(default_factory=list)
    unchecked: dict[str, str] = field(default_factory=dict)
    answers: dict[Path, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Reply:
    """What a vLLM takes, or why that is not known; `asked` is the text to keep, "" if it was kept already."""

    options: Mapping[str, Option] | None
    reason: str = ""
    asked: str = ""


def check(
    paths: Paths,
    services: Iterable[Service],
    versions: Mapping[str, str | None],
    tell: Callable[[str], None],
) -> Checked:
    """Hold the arguments of some services against their vLLM's flags. Writes nothing.

    Args:
        paths: where the answers are kept.
        services: which ones.
        versions: of vLLM, by service; None where it is not known.
        tell: is given a sentence before a vLLM is asked, which takes a while.

    Raises:
        HostError: an answer was kept and cannot be read.
    """
    checked = Checked()
    replies: dict[Path, _Reply] = {}
    for service in services:
        if not service.arguments:
            continue
        file = _kept_at(paths, service)
        if _HANDS_ON in service.arguments:
            reply = _Reply(None, f"with `{_HANDS_ON}` they are not vLLM's own")
        else:
            reply = replies[file] = replies.get(file) or _reply(file, service, tell)
        if reply.options is None:
            checked.unchecked[service.name] = reply.reason
            continue
        checked.complaints += units.complaints(service, reply.options, versions.get(service.name))
        if reply.asked:
            checked.answers[file] = reply.asked
    return checked


def keep(paths: Paths, answers: Mapping[Path, str]) -> None:
    """Write down what was asked, so that it need not be asked again.

    Raises:
        LockedError: another of our processes holds the lock for too long.
        HostError: it cannot be written.
    """
    if not answers:
        return
    files.make_directory(paths.state, mode=0o700)
    files.make_directory(paths.flags, mode=0o700)
    with files.exclusive(paths.lock):
        for file, text in answers.items():
            files.write_atomically(file, text, mode=0o600)


def _kept_at(paths: Paths, service: Service) -> Path:
    """One file for a program, whatever its version, so that answers of versions past do not pile up."""
    question = [str(service.executable), *(service.environment.get(name) for name in _LOADING)]
    return paths.flags / f"{units.digest(json.dumps(question))}.json"


def _reply(file: Path, service: Service, tell: Callable[[str], None]) -> _Reply:
    stamp = vllm.stamp(service.executable)
    if stamp is None:
        return _Reply(None, f"{service.executable} is not there")
    if options := _kept(file, stamp):
        return _Reply(options)
    tell(f"asking {service.executable} for its flags: up to two minutes, once for each version")
    try:
        answer = json.loads(
            vllm.ask(service.executable, user=service.user, group=service.group, environment=service.environment)
        )
        asked = json.dumps({"stamp": stamp, "options": answer}, indent=0)
        return _Reply(units.read_options(answer), asked=asked)
    except HostError as e:
        return _Reply(None, str(e))
    except (ValueError, RecursionError):
        return _Reply(None, f"cannot read what {service.executable} answered when it was asked for its flags")


def _kept(file: Path, stamp: str) -> Mapping[str, Option] | None:
    """What was answered earlier; None if that was another version, or if somebody has been at the file."""
    try:
        kept = json.loads(files.read_text(file) or "null")
        return units.read_options(kept["options"]) if kept["stamp"] == stamp else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
