"""What to do about a failed start: pure, total, and the only place that chooses a value.

One event about one service comes in, one `Step` goes out: the next state, at most one action, and the sentence that
says why. Nothing here reads a clock, a file or the journal, and nothing here raises.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

from vllm_supervisor.diagnosis.model import Act, Diagnosis


@dataclass(frozen=True, slots=True)
class State:
    """What is known of one service under one fingerprint.

    Attributes:
        floor: lowest value a remedy may set, in sequences.
        max_attempts: how many relaunches a fingerprint gets.
        declared: `max_num_seqs` as the operator wrote it; None when vLLM's own default applies.
        cap: learned upper bound in sequences; None while nothing was learned.
        attempts: how many it had.
        treated: invocation whose failure was last answered; its evidence counts no second time.
        enabled: False when the operator switched remedies off for the service.
        exhausted: True after giving up, until something fits or the operator forgets the cap.
    """

    floor: int
    max_attempts: int
    declared: int | None = None
    cap: int | None = None
    attempts: int = 0
    treated: str = ""
    enabled: bool = True
    exhausted: bool = False

    @property
    def effective(self) -> int | None:
        """The value the unit is rendered with: min(declared, cap), or None for vLLM's own default."""
        known = [value for value in (self.declared, self.cap) if value is not None]
        return min(known, default=None)


@dataclass(frozen=True, slots=True)
class DidNotFit:
    """An invocation ran out of GPU memory in a way that a lower `max_num_seqs` cures.

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
    """An invocation failed for a reason that no value of `max_num_seqs` cures.

    Attributes:
        invocation: systemd's invocation ID of the run.
        rule: the diagnosis.
        transient: True when starting again unchanged, later, is the answer.
    """

    invocation: str
    rule: str
    transient: bool = False


@dataclass(frozen=True, slots=True)
class Served:
    """An invocation became ready: `/health` answered, and so did one canary request."""

    invocation: str


Event = DidNotFit | Failed | Served


@dataclass(frozen=True, slots=True)
class Relaunch:
    """Render with this cap and start again."""

    max_num_seqs: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Leave the unit down and say so."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Leave it to systemd's own Restart=, which starts the unit again unchanged, a bounded number of times."""


@dataclass(frozen=True, slots=True)
class Report:
    """Tell the operator; touch nothing."""


Action = Relaunch | GiveUp | Wait | Report


@dataclass(frozen=True, slots=True)
class Step:
    """One decision: the state after it, what to do (None: nothing), and why, in one sentence."""

    state: State
    action: Action | None
    why: str


def event(diagnosis: Diagnosis, invocation: str) -> Event | None:
    """What a diagnosis of one invocation asks of `decide`; None when nothing failed."""
    match diagnosis.act:
        case Act.LOWER | Act.SET:
            return DidNotFit(invocation, diagnosis.tried, diagnosis.bound, diagnosis.ready_before)
        case Act.WAIT | Act.REPORT:
            return Failed(invocation, diagnosis.rule, transient=diagnosis.act is Act.WAIT)
        case Act.NONE:
            return None


def decide(state: State, event: Event) -> Step:
    """Answer one event. Total and pure: the same arguments give the same step, and nothing is raised."""
    match event:
        case Served():
            at = "vLLM's default" if state.effective is None else f"{state.effective} sequences"
            return Step(replace(state, exhausted=False), None, f"ready at {at}")
        case DidNotFit() if event.invocation == state.treated:
            return Step(state, None, "ignored: this invocation was answered before")
        case Failed(transient=True):
            return Step(state, Wait(), f"{event.rule}: systemd starts it again, unchanged")
        case Failed():
            return Step(state, Report(), f"{event.rule}: no lower max-num-seqs would cure it")
        case DidNotFit():
            return _did_not_fit(state, event)
        case _:
            assert_never(event)


def _did_not_fit(state: State, event: DidNotFit) -> Step:
    tried = event.tried if event.tried is not None else state.effective
    if event.ready_before:
        return Step(
            _answered(state, event), Report(), "it had been ready: memory ran out while serving, not while starting"
        )
    if not state.enabled:
        return Step(_answered(state, event), Report(), "remediation is switched off for this service")
    if tried is None:
        return Step(_answered(state, event), Report(), "neither the log nor the unit tells which value was tried")
    return _lower(state, event, tried)


def _lower(state: State, event: DidNotFit, tried: int) -> Step:
    target = event.bound if event.bound is not None and event.bound < tried else max(tried // 2, state.floor)
    if state.cap is not None:
        target = min(target, state.cap)  # what was learned before still holds
    if state.attempts >= state.max_attempts:
        return _give_up(state, event, f"{tried} sequences did not fit, and all {state.max_attempts} attempts are used")
    if tried <= state.floor:
        return _give_up(state, event, f"{tried} sequences did not fit, and the floor is {state.floor}")
    if target < state.floor:
        return _give_up(state, event, f"at most {target} sequences fit, and the floor is {state.floor}")
    lowered = replace(_answered(state, event), cap=target, attempts=state.attempts + 1, exhausted=False)
    why = f"{tried} sequences did not fit; trying {target} (attempt {lowered.attempts} of {state.max_attempts})"
    return Step(lowered, Relaunch(target), why)


def _give_up(state: State, event: DidNotFit, why: str) -> Step:
    return Step(replace(_answered(state, event), exhausted=True), GiveUp(), f"gave up: {why}")


def _answered(state: State, event: DidNotFit) -> State:
    return replace(state, treated=event.invocation)
