"""What to do about a failed start: pure, total, and the only place that chooses a value.

One event about one service comes in, one `Step` goes out: the next state, at most one action, and the sentence that
says why. Nothing here reads a clock, a file or the journal, and nothing here raises.

`max-num-seqs` is what the program is for. The other flags are touched only where the operator opened them, each within
a bound, and each in one direction only: so no remedy undoes another's, and every chain of failures ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import assert_never

from vllm_supervisor.diagnosis.model import Act, Diagnosis


class Flag(StrEnum):
    """A flag of `vllm serve` that a remedy may set, as vLLM spells it."""

    MAX_NUM_SEQS = "max-num-seqs"
    GPU_MEMORY_UTILIZATION = "gpu-memory-utilization"
    MAX_MODEL_LEN = "max-model-len"
    ENFORCE_EAGER = "enforce-eager"


# What cures which failure, the gentlest first. Graphs, kernels and their tuning take memory outside of the share that
# vLLM budgets, so a lower share leaves them more; without graphs, one of them takes none.
CURES: dict[str, tuple[Flag, ...]] = {
    "oom-graph-capture": (Flag.GPU_MEMORY_UTILIZATION, Flag.ENFORCE_EAGER),
    "oom-warm-up": (Flag.GPU_MEMORY_UTILIZATION,),
    "oom-autotune": (Flag.GPU_MEMORY_UTILIZATION,),
    "oom-deep-gemm": (Flag.GPU_MEMORY_UTILIZATION,),
    "context-too-long": (Flag.MAX_MODEL_LEN,),
}


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the operator allows.

    Attributes:
        floor: lowest `max-num-seqs`, in sequences.
        max_attempts: how many relaunches a fingerprint gets, whatever they change.
        enabled: False when remedies are switched off for the service.
        utilization_step: by how much `gpu-memory-utilization` may be lowered at a time; None: not at all.
        utilization_floor: lowest `gpu-memory-utilization`.
        model_len_floor: shortest `max-model-len`, in tokens; None: it may not be set.
        eager: whether `--enforce-eager` may be added.
    """

    floor: int
    max_attempts: int
    enabled: bool = True
    utilization_step: float | None = None
    utilization_floor: float = 0.0
    model_len_floor: int | None = None
    eager: bool = False


@dataclass(frozen=True, slots=True)
class Values:
    """Flags as somebody set them; None where nobody did.

    Attributes:
        max_num_seqs: in sequences.
        gpu_memory_utilization: a share of each GPU's memory, 0 to 1.
        max_model_len: in tokens.
        enforce_eager: whether the flag is given.
    """

    max_num_seqs: int | None = None
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    enforce_eager: bool = False


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
    """

    bounds: Bounds
    declared: Values = field(default_factory=Values)
    learned: Values = field(default_factory=Values)
    attempts: int = 0
    treated: str = ""
    exhausted: bool = False

    @property
    def effective(self) -> int | None:
        """`max-num-seqs` as the unit is rendered: the lower of declared and learned, None for vLLM's own default."""
        known = [value for value in (self.declared.max_num_seqs, self.learned.max_num_seqs) if value is not None]
        return min(known, default=None)


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


Action = Relaunch | GiveUp | Wait | Report


@dataclass(frozen=True, slots=True)
class Step:
    """One decision: the state after it, what to do (None: nothing), and why, in one sentence."""

    state: State
    action: Action | None
    why: str


def event(diagnosis: Diagnosis, invocation: str) -> Event | None:
    """What a diagnosis of one invocation asks of `decide`; None when nothing failed."""
    ready_before = diagnosis.ready_before
    match diagnosis.act:
        case Act.LOWER | Act.SET:
            return DidNotFit(invocation, diagnosis.tried, diagnosis.bound, ready_before)
        case Act.WAIT | Act.REPORT:
            estimate = diagnosis.finding.numbers.get("estimated_tokens")
            transient = diagnosis.act is Act.WAIT
            return Failed(invocation, diagnosis.rule, transient, int(estimate) if estimate else None, ready_before)
        case Act.NONE:
            return None


def decide(state: State, event: Event) -> Step:
    """Answer one event. Total and pure: the same arguments give the same step, and nothing is raised."""
    match event:
        case Served():
            at = "vLLM's default" if state.effective is None else f"{state.effective} sequences"
            return Step(replace(state, exhausted=False), None, f"ready at {at}")
        case DidNotFit() | Failed() if event.invocation == state.treated:
            return Step(state, None, "ignored: this invocation was answered before")
        case Failed():
            return _failed(state, event)
        case DidNotFit():
            return _did_not_fit(state, event)
        case _:
            assert_never(event)


def _failed(state: State, event: Failed) -> Step:
    if event.transient:
        return Step(state, Wait(), f"{event.rule}: systemd starts it again, unchanged")
    if state.bounds.enabled and not event.ready_before:
        for flag in CURES.get(event.rule, ()):
            to = _next(state, flag, event)
            if to is not None:
                return _relaunch(state, event, flag, to, f"{event.rule}: trying {_words(flag, to)}")
    return Step(state, Report(), f"{event.rule}: not a failure that may be answered by changing the unit")


def _next(state: State, flag: Flag, event: Failed) -> float | None:
    """The next value of a flag that the operator opened; None when it is closed or at its bound."""
    bounds, learned, declared = state.bounds, state.learned, state.declared
    match flag:
        case Flag.GPU_MEMORY_UTILIZATION if bounds.utilization_step:
            now = learned.gpu_memory_utilization or declared.gpu_memory_utilization
            to = round(now - bounds.utilization_step, 4) if now else None
            return to if to is not None and to >= bounds.utilization_floor else None
        case Flag.MAX_MODEL_LEN if bounds.model_len_floor and event.estimate:
            now_len = learned.max_model_len or declared.max_model_len
            lower = now_len is None or event.estimate < now_len
            return event.estimate if lower and event.estimate >= bounds.model_len_floor else None
        case Flag.ENFORCE_EAGER if bounds.eager:
            return None if learned.enforce_eager or declared.enforce_eager else True
        case _:
            return None


def _did_not_fit(state: State, event: DidNotFit) -> Step:
    tried = event.tried if event.tried is not None else state.effective
    why = ""
    if event.ready_before:
        why = "it had been ready: memory ran out while serving, not while starting"
    elif not state.bounds.enabled:
        why = "remediation is switched off for this service"
    elif tried is None:
        why = "neither the log nor the unit tells which value was tried"
    if tried is None or why:
        return Step(_answered(state, event), Report(), why)
    return _lower(state, event, tried)


def _lower(state: State, event: DidNotFit, tried: int) -> Step:
    floor = state.bounds.floor
    target = event.bound if event.bound is not None and event.bound < tried else max(tried // 2, floor)
    if state.learned.max_num_seqs is not None:
        target = min(target, state.learned.max_num_seqs)  # what was learned before still holds
    if tried <= floor:
        return _give_up(state, event, f"{tried} sequences did not fit, and the floor is {floor}")
    if target < floor:
        return _give_up(state, event, f"at most {target} sequences fit, and the floor is {floor}")
    return _relaunch(state, event, Flag.MAX_NUM_SEQS, target, f"{tried} sequences did not fit; trying {target}")


def _relaunch(state: State, event: DidNotFit | Failed, flag: Flag, to: float, why: str) -> Step:
    most = state.bounds.max_attempts
    if state.attempts >= most:
        return _give_up(state, event, f"{why.partition(';')[0]}, and all {most} attempts are used")
    learned = _with(state.learned, flag, to)
    after = replace(_answered(state, event), learned=learned, attempts=state.attempts + 1, exhausted=False)
    return Step(after, Relaunch(flag, to), f"{why} (attempt {after.attempts} of {most})")


def _with(learned: Values, flag: Flag, to: float) -> Values:
    match flag:
        case Flag.MAX_NUM_SEQS:
            return replace(learned, max_num_seqs=int(to))
        case Flag.GPU_MEMORY_UTILIZATION:
            return replace(learned, gpu_memory_utilization=to)
        case Flag.MAX_MODEL_LEN:
            return replace(learned, max_model_len=int(to))
        case Flag.ENFORCE_EAGER:
            return replace(learned, enforce_eager=True)


def _give_up(state: State, event: DidNotFit | Failed, why: str) -> Step:
    return Step(replace(_answered(state, event), exhausted=True), GiveUp(), f"gave up: {why}")


def _answered(state: State, event: DidNotFit | Failed) -> State:
    return replace(state, treated=event.invocation)


def _words(flag: Flag, to: float) -> str:
    return f"--{flag}" if flag is Flag.ENFORCE_EAGER else f"--{flag} {to:g}"
