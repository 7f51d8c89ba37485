"""The values of a decision: what the operator allows, what is known, what happened, what to do."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm_supervisor.config import Remediation
from vllm_supervisor.learned import Flag, Values


@dataclass(frozen=True, slots=True)
class State:
    """What is known of one service under one fingerprint.

    Attributes:
        bounds: what the operator allows.
        declared: flags as the operator wrote them.
        learned: flags as remedies set them.
        attempts: relaunches so far.
        treated: invocation whose failure was last answered; its evidence counts no second time.
        exhausted: True after giving up, until something fits or the operator forgets what was learned.
        paused: the operator wants nothing decided for now.
    """

    bounds: Remediation
    declared: Values = field(default_factory=dict)
    learned: Values = field(default_factory=dict)
    attempts: int = 0
    treated: str = ""
    exhausted: bool = False
    paused: bool = False

    @property
    def effective(self) -> int | None:
        """`max-num-seqs` as the unit is rendered: the lower of declared and learned, None for vLLM's own default."""
        flag = Flag.MAX_NUM_SEQS
        return min((int(values[flag]) for values in (self.declared, self.learned) if flag in values), default=None)


@dataclass(frozen=True, slots=True)
class DidNotFit:
    """An invocation ran out of GPU memory in a way that a lower `max-num-seqs` cures.

    Attributes:
        invocation: systemd's invocation ID of the run.
        tried: sequences that did not fit; None when neither the log nor the unit tells.
        bound: the largest value the message itself says fits; None when it names none.
        ready_before: True when the service had been ready in that invocation.
    """

    invocation: str
    tried: int | None
    bound: int | None = None
    ready_before: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """An invocation failed for another reason.

    Attributes:
        invocation: systemd's invocation ID of the run.
        rule: the diagnosis.
        transient: True when starting again unchanged, later, is the answer.
        estimate: the context length that vLLM itself says would fit, in tokens; None when it names none.
        ready_before: True when the service had been ready in that invocation.
    """

    invocation: str
    rule: str
    transient: bool = False
    estimate: int | None = None
    ready_before: bool = False


@dataclass(frozen=True, slots=True)
class Served:
    """An invocation became ready: `/health` answered, and so did one canary request."""

    invocation: str


Event = DidNotFit | Failed | Served


@dataclass(frozen=True, slots=True)
class Relaunch:
    """Render with this flag at this value (True: given) and start again."""

    flag: Flag
    to: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Leave the unit down and say so."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Leave it to systemd's own Restart=, which starts the unit again unchanged, a bounded number of times."""


@dataclass(frozen=True, slots=True)
class Report:
    """Tell the operator; touch nothing."""


@dataclass(frozen=True, slots=True)
class Withhold:
    """Tell the operator what would be done if the service were not paused; touch nothing."""

    instead: Relaunch | GiveUp


Action = Relaunch | GiveUp | Wait | Report | Withhold


@dataclass(frozen=True, slots=True)
class Step:
    """One decision: the state after it, what to do (None: nothing), and why, in one sentence."""

    state: State
    action: Action | None
    why: str
