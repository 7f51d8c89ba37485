"""Reading our own unit texts: whose they are, and whether a running process has what they say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from vllm_supervisor.units.argv import Cap, digest

RUN_VARIABLE = "SUPERVISED_RUN"  # not VLLM_*: vLLM warns of variables of that kind which it does not know
_UNMARKED = "0" * 16
RUN_PLACEHOLDER = f"Environment={RUN_VARIABLE}={_UNMARKED}"
_CHECKSUM = "# Checksum of what follows: "
_HEADER = re.compile(r"# Written by vllm-supervisor (?P<version>\S+) from (?P<source>.+)")
_RUN = re.compile(rf"Environment={RUN_VARIABLE}=([0-9a-f]{{16}})")
# As `render` writes what was learned: each flag, then the reason.
_LEARNED = "# Runs with "
_CHANGED = re.compile(r"--(?P<flag>[a-z-]+)(?: (?P<value>[\d.]+) instead of [^,:]+)?(?:, |: )")
_FINGERPRINT = re.compile(r"LogExtraFields=VLLM_SUPERVISOR_FINGERPRINT=([0-9a-f]{16})")
# The digest itself, and a time limit that a process which has started no longer asks for.
_NOT_ITS_BUSINESS = re.compile(rf"Environment=(?:{RUN_VARIABLE}|VLLM_ENGINE_READY_TIMEOUT_S)=")

# Read by systemd itself whenever it acts; the process knows nothing of them, so a reload is enough. LogExtraFields= and
# the rate limit do wait for the next start, but they describe a run and are no reason to end one. Everything that is
# not named here is taken for the process's: to restart once too often is the safer mistake.
MANAGER_SIDE = frozenset(
    {
        "After",
        "Description",
        "ExecStartPost",
        "ExecStartPre",
        "KillMode",
        "LogExtraFields",
        "LogRateLimitBurst",
        "LogRateLimitIntervalSec",
        "NotifyAccess",
        "OOMPolicy",
        "Restart",
        "RestartMaxDelaySec",
        "RestartPreventExitStatus",
        "RestartSec",
        "RestartSteps",
        "StartLimitBurst",
        "StartLimitIntervalSec",
        "TimeoutStartFailureMode",
        "TimeoutStartSec",
        "TimeoutStopSec",
        "WantedBy",
        "Wants",
    }
)


@dataclass(frozen=True, slots=True)
class Header:
    """What the first line of a unit of ours says.

    Attributes:
        version: of this program when it wrote the unit.
        source: the file that the service stands in.
    """

    version: str
    source: str


def header(text: str) -> Header | None:
    """The header of a unit that this program wrote; None for any other text."""
    found = _HEADER.fullmatch(text.partition("\n")[0])
    return Header(found["version"], found["source"]) if found else None


def run_hash(text: str) -> str | None:
    """The mark that a process started from this unit carries in its environment; None in a unit without one."""
    return next((found[1] for line in text.split("\n") if (found := _RUN.fullmatch(line))), None)


def intact(text: str) -> bool:
    """Whether a unit of ours is as it was written; False once somebody changed it by hand."""
    _, checksum, rest = [*text.split("\n", 2), "", ""][:3]
    return header(text) is not None and checksum == _CHECKSUM + digest(rest)


def learned(text: str) -> tuple[str, Cap] | None:
    """What remedies had set when a unit of ours was written, and the fingerprint it holds for.

    None where that is nothing, and for a unit that is not as it was written.
    """
    told = next((line for line in text.split("\n") if line.startswith(_LEARNED)), "")
    stamp = next((found[1] for line in text.split("\n") if (found := _FINGERPRINT.fullmatch(line))), "")
    if not (told and stamp and intact(text)):
        return None
    place, values = len(_LEARNED), dict[str, float]()
    while flag := _CHANGED.match(told, place):
        values[flag["flag"]] = json.loads(flag["value"]) if flag["value"] else True
        place = flag.end()
    return stamp, Cap(values, told[place:])


def needs_restart(old: str, new: str) -> bool:
    """Whether a process started from `old` must be restarted to have what `new` says."""
    return _process_side(old) != _process_side(new)


def _process_side(text: str) -> list[tuple[str, str]]:
    """The settings that a process gets at its start, in order, without the mark that is made from them."""
    return [
        (key, value)
        for key, value in _settings(text)
        if key not in MANAGER_SIDE and not _NOT_ITS_BUSINESS.match(f"{key}={value}")
    ]


def marked(text: str) -> str:
    """A fresh unit with its two digests: what a process gets at `RUN_PLACEHOLDER`, the whole text under the header."""
    run = text.replace(RUN_PLACEHOLDER, RUN_PLACEHOLDER.replace(_UNMARKED, _process_hash(text)), 1)
    first, rest = run.split("\n", 1)
    return f"{first}\n{_CHECKSUM}{digest(rest)}\n{rest}"


def _process_hash(text: str) -> str:
    return digest("\n".join(f"{key}={value}" for key, value in _process_side(text)))


def _settings(text: str) -> Iterator[tuple[str, str]]:
    """Key and value of each setting; lines that end in a backslash are joined, comments are left out."""
    pending = ""
    for line in text.split("\n"):
        if line.lstrip().startswith(("#", ";")):
            continue
        if line.endswith("\\"):
            pending += line[:-1]
            continue
        key, equals, value = (pending + line).partition("=")
        pending = ""
        if equals:
            yield key.strip(), value.strip()
