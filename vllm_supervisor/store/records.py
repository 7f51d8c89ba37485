"""The records of the store: what each row means, and how it is read back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

from vllm_supervisor.learned import Flag, Values, checked

Row = Mapping[str, Any]
"""A row of a table, by column."""


class Kind(StrEnum):
    """What a row of history tells."""

    APPLIED = "applied"
    REMOVED = "removed"
    READY = "ready"
    LOWERED = "lowered"  # max-num-seqs
    CHANGED = "changed"  # another flag, which the operator opened
    GAVE_UP = "gave-up"
    WAITING = "waiting"
    REPORTED = "reported"
    DOWN = "down"  # nobody starts it again
    STARTED_AGAIN = "started-again"
    LEFT_DOWN = "left-down"
    LEFT_ALONE = "left-alone"
    FORGOT = "forgot"
    RELEARNED = "relearned"  # from a unit file, since the store knew nothing of it
    STORE_DAMAGED = "store-damaged"  # of no service
    PAUSED = "paused"
    RESUMED = "resumed"
    WITHHELD = "withheld"  # what would have been done about a failure, had the service not been paused


class TaskKind(StrEnum):
    """What is still to be done about a unit."""

    START = "start"  # by `apply`, of a service that is new or changed
    RELAUNCH = "relaunch"  # by the daemon, at a lower value
    STOP = "stop"  # by the daemon, after giving up


@dataclass(frozen=True, slots=True)
class AppliedService:
    """A service as `apply` last put it in force.

    Attributes:
        name: its key in the YAML.
        unit: name of its unit.
        spec: the validated service as JSON.
        fingerprint: of this spec, with the vLLM version found at that time.
        applied_us: realtime, microseconds since the epoch.
    """

    name: str
    unit: str
    spec: str
    fingerprint: str
    applied_us: int


@dataclass(frozen=True, slots=True)
class LearnedCap:
    """What was learned of one service under one fingerprint.

    Attributes:
        values: what remedies set; `max-num-seqs` is an upper bound, since the operator may declare less.
        attempts: relaunches so far.
        treated: invocation that was last answered.
        exhausted: True after giving up.
        reason: one sentence for people, with the quoted line.
        learned_us: realtime, microseconds since the epoch.
    """

    service: str
    fingerprint: str
    values: Values
    attempts: int
    treated: str
    exhausted: bool
    reason: str
    learned_us: int


@dataclass(frozen=True, slots=True)
class Task:
    """A remedy that was decided; it is deleted once systemd has taken the job."""

    service: str
    kind: TaskKind
    invocation: str
    created_us: int


@dataclass(frozen=True, slots=True)
class Pause:
    """The operator's word that no remedy is wanted for now.

    Attributes:
        service: its name; "" for every service, also those that come later.
        since_us: realtime, microseconds since the epoch.
        by: user who paused it.
    """

    service: str
    since_us: int
    by: str


@dataclass(frozen=True, slots=True)
class Happening:
    """One row of history.

    Attributes:
        time_us: realtime, microseconds since the epoch.
        kind: what happened. For one invocation each kind is kept once, however often the journal is read.
        invocation: systemd's invocation ID, or "" for what concerns no run.
        why: one sentence.
        rule: the diagnosis, or "".
        phase: phase of the start in which it happened, or "".
        quote: the log line, or "".
        advice: of the rule, with the numbers of that line, where a remedy was decided; or "".
        tried: `max_num_seqs` that ran, in sequences.
        flag: what was changed, as vLLM spells it, or "".
        to: value it was changed to; 1 for a switch.
        attempt: k of `attempts`.
        attempts: n, the most there will be.
    """

    time_us: int
    service: str
    kind: Kind
    invocation: str = ""
    why: str = ""
    rule: str = ""
    phase: str = ""
    quote: str = ""
    advice: str = ""
    tried: int | None = None
    flag: str = ""
    to: float | None = None
    attempt: int | None = None
    attempts: int | None = None
    id: int = field(default=0, compare=False)


_DETAILS = {f.name for f in fields(Happening)} - {"time_us", "service", "kind", "invocation", "id"}


def details(happening: Happening) -> str:
    """What has no column of its own in the history, as JSON."""
    told = {name: value for name, value in asdict(happening).items() if name in _DETAILS and value not in ("", None)}
    return json.dumps(told, ensure_ascii=False)


def read_happening(row: Row) -> Happening:
    """A row of the history. This and the next two raise ValueError for one that cannot be as it was written."""
    known = {key: value for key, value in _object(row["details"]).items() if key in _DETAILS}
    return Happening(row["time_us"], row["service"], Kind(row["kind"]), row["invocation"], id=row["id"], **known)


def read_task(row: Row) -> Task:
    """A row of the tasks."""
    return Task(row["service"], TaskKind(row["kind"]), row["invocation"], row["created_us"])


def read_cap(row: Row) -> LearnedCap:
    """A row of the caps."""
    return LearnedCap(
        row["service"],
        row["fingerprint"],
        _values(row),
        row["attempts"],
        row["treated"],
        bool(row["exhausted"]),
        row["reason"],
        row["learned_us"],
    )


def _values(row: Row) -> Values:
    if learned := row.get("learned"):
        return checked(_object(learned))
    old = {  # a column for each, before version 4 of the schema
        Flag.MAX_NUM_SEQS: row["value"],
        Flag.GPU_MEMORY_UTILIZATION: row.get("gpu_memory_utilization"),
        Flag.MAX_MODEL_LEN: row.get("max_model_len"),
        Flag.ENFORCE_EAGER: bool(row.get("enforce_eager")) or None,
    }
    return checked({flag: value for flag, value in old.items() if value is not None})


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"{text[:20]!r} is no JSON object")
    return value


CHECKS: Mapping[str, Callable[[Any], object]] = {
    "services": lambda row: _object(row["spec"]),
    "caps": read_cap,
    "tasks": read_task,
    "history": read_happening,
}
"""By table, what raises ValueError for a row that cannot be as it was written."""
