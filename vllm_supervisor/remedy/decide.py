"""The decision itself; see the package's docstring."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from vllm_supervisor.diagnosis.model import Act, Diagnosis
from vllm_supervisor.learned import Flag
from vllm_supervisor.remedy.model import (
    DidNotFit,
    Event,
    Failed,
    GiveUp,
    Relaunch,
    Report,
    Served,
    State,
    Step,
    Wait,
    Withhold,
)

# What cures which failure, the gentlest first. Graphs, kernels and their tuning take memory outside of the share that
# vLLM budgets, so a lower share leaves them more; without graphs, one of them takes none.
CURES: dict[str, tuple[Flag, ...]] = {
    "oom-graph-capture": (Flag.GPU_MEMORY_UTILIZATION, Flag.ENFORCE_EAGER),
    "oom-warm-up": (Flag.GPU_MEMORY_UTILIZATION,),
    "oom-autotune": (Flag.GPU_MEMORY_UTILIZATION,),
    "oom-deep-gemm": (Flag.GPU_MEMORY_UTILIZATION,),
    "context-too-long": (Flag.MAX_MODEL_LEN,),
}


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
    """Answer one event. Total and pure: the same arguments give the same step, and nothing is raised.

    While the service is paused the state stays as it is: once it is not, the same event gets the answer withheld now.
    """
    step = _decided(state, event)
    if state.paused and isinstance(step.action, Relaunch | GiveUp):
        return Step(state, Withhold(step.action), f"not done, since it is paused: {step.why}")
    return step


def _decided(state: State, event: Event) -> Step:
    match event:
        case Served():
            at = "vLLM's default" if state.effective is None else f"{state.effective} sequences"
            others = [_words(Flag(flag), to) for flag, to in state.learned.items() if flag != Flag.MAX_NUM_SEQS]
            return Step(replace(state, exhausted=False), None, ", ".join([f"ready at {at}", *others]))
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
        return Step(state, Wait(), f"{event.rule}: systemd starts it again, unchanged, up to its start limit")
    if state.bounds.enabled and not event.ready_before:
        for flag in CURES.get(event.rule, ()):
            to = _next(state, flag, event)
            if to is not None:
                return _relaunch(state, event, flag, to, f"{event.rule}: trying {_words(flag, to)}")
    return Step(state, Report(), f"{event.rule}: nothing is changed for this")


def _next(state: State, flag: Flag, event: Failed) -> float | None:
    """The next value of a flag that the operator opened; None when it is closed or at its bound."""
    bounds, now = state.bounds, state.learned.get(flag) or state.declared.get(flag)
    match flag:
        case Flag.GPU_MEMORY_UTILIZATION if now and (share := bounds.gpu_memory_utilization):
            to = round(now - share.step, 4)
            return to if share.floor <= to < now else None
        case Flag.MAX_MODEL_LEN if event.estimate and (length := bounds.max_model_len):
            lower = now is None or event.estimate < now
            return event.estimate if lower and event.estimate >= length.floor else None
        case Flag.ENFORCE_EAGER if bounds.enforce_eager and not now:
            return True
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
    if state.effective is not None:
        target = min(target, state.effective)  # what was declared, and what was learned before, still holds
    if tried <= floor:
        return _give_up(state, event, f"{tried} sequences did not fit, and the floor is {floor}")
    if target < floor:
        return _give_up(state, event, f"at most {target} sequences fit, and the floor is {floor}")
    return _relaunch(state, event, Flag.MAX_NUM_SEQS, target, f"{tried} sequences did not fit; trying {target}")


def _relaunch(state: State, event: DidNotFit | Failed, flag: Flag, to: float, why: str) -> Step:
    most = state.bounds.max_attempts
    if state.attempts >= most:
        return _give_up(state, event, f"{why.partition(';')[0]}, and all {most} attempts are used")
    learned = {**state.learned, flag: to}
    after = replace(_answered(state, event), learned=learned, attempts=state.attempts + 1, exhausted=False)
    return Step(after, Relaunch(flag, to), f"{why} (attempt {after.attempts} of {most})")


def _give_up(state: State, event: DidNotFit | Failed, why: str) -> Step:
    return Step(replace(_answered(state, event), exhausted=True), GiveUp(), f"gave up: {why}")


def _answered(state: State, event: DidNotFit | Failed) -> State:
    return replace(state, treated=event.invocation)


def _words(flag: Flag, to: float) -> str:
    return f"--{flag}" if flag is Flag.ENFORCE_EAGER else f"--{flag} {to:g}"
