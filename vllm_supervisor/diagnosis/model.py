"""The words of a diagnosis: phases, acts, findings, what systemd said, and the verdict on one run of a unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from types import MappingProxyType

QUOTE_LIMIT = 500
"""Longest quoted line, in characters: enough for every sentence of vLLM's that we know, short enough for one screen."""

NO_NUMBERS: Mapping[str, float] = MappingProxyType({})


class Phase(StrEnum):
    """Where a run of vLLM is, as its log tells."""

    STARTING = "starting"
    LOADING = "loading"
    PROFILING = "profiling"
    KV_CACHE = "kv-cache"
    GRAPH_CAPTURE = "graph-capture"
    WARM_UP = "warm-up"
    READY = "ready"
    STOPPING = "stopping"


class Act(StrEnum):
    """What a diagnosis calls for."""

    LOWER = "lower"
    """Start again with a lower `max_num_seqs`."""
    SET = "set"
    """Start again with the `max_num_seqs` that the message itself names."""
    WAIT = "wait"
    """Start again unchanged, a bounded number of times."""
    REPORT = "report"
    """Tell the operator and change nothing."""
    NONE = "none"
    """Nothing failed."""


class Rank(IntEnum):
    """How close a rule is to the root cause. The highest wins; among equals, the first in the log."""

    ECHO = 0
    """Says only that something failed, the same for every cause."""
    CONSEQUENCE = 1
    """What the other processes print when one of them fails; a cause only when there is no better one."""
    GENERAL = 2
    """Names the cause but not the place, or the kind of mistake but not which."""
    CAUSE = 3
    """Names the cause."""
    EXACT = 4
    """vLLM's own sentence about the cause, which repeats in other words what came just before it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one log line means.

    Attributes:
        rule: id of the rule that matched.
        phase: where the run was.
        quote: the line without colours, prefixes and header; at most `QUOTE_LIMIT` characters.
        numbers: what the line tells, each with its unit in the name (`tried_gib`, `dummy_requests_seqs`).
        source: process that printed it, as vLLM names it (`Worker_TP1`); "" when the line does not say.
        line: its number within the run, counted from 1; 0 for a message of systemd's.
    """

    rule: str
    phase: Phase
    quote: str
    numbers: Mapping[str, float] = field(default_factory=lambda: NO_NUMBERS)
    source: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a run failed, and what that calls for.

    Attributes:
        rule: id of the rule, "unknown" when none matched.
        act: what it calls for.
        phase: where the run was when it failed.
        finding: the line that tells.
        ready_before: True when the run had been ready: memory that runs out while serving changes no flag.
        tried: `max_num_seqs` that did not fit, as far as the log or the unit's stamp tells.
        bound: the largest `max_num_seqs` that the message itself says fits.
        certain: True when there is no need to wait for the exit.
        advice: one sentence for the operator, with the computed value where the message allows one.
    """

    rule: str
    act: Act
    phase: Phase
    finding: Finding
    ready_before: bool
    tried: int | None
    bound: int | None
    certain: bool
    advice: str


class LifecycleKind(StrEnum):
    """What systemd or journald said about a unit."""

    STARTING = "starting"
    STARTED = "started"
    STOPPING = "stopping"
    EXITED = "exited"
    FAILED = "failed"
    AUTO_RESTART = "auto-restart"
    START_LIMIT = "start-limit"
    OOM_KILL = "oom-kill"
    SUPPRESSED = "suppressed"


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """One message of systemd's (or, for SUPPRESSED, journald's) about a unit.

    Attributes:
        kind: what happened.
        command: of an EXITED, which of the unit's commands ended: `ExecStart`, `ExecStartPost`, …
        exit_code: of an EXITED, how: `exited`, `killed`, `dumped`.
        exit_status: of an EXITED, the exit status or the signal's number.
        result: of a FAILED, systemd's word for it: `exit-code`, `timeout`, `oom-kill`, …
        count: of a SUPPRESSED, how many lines are missing.
        text: the message itself.
    """

    kind: LifecycleKind
    command: str = ""
    exit_code: str = ""
    exit_status: int | None = None
    result: str = ""
    count: int = 0
    text: str = ""
