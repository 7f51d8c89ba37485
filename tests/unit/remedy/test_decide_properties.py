"""The decision under any order of events: a state machine that keeps its own, plain record of what was done."""

from __future__ import annotations

from dataclasses import replace
from math import log2

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.properties import searching
from vllm_supervisor.config import Remediation
from vllm_supervisor.config.model import ModelLen, Utilization
from vllm_supervisor.learned import Flag, Values
from vllm_supervisor.remedy import (
    CURES,
    DidNotFit,
    Event,
    Failed,
    GiveUp,
    Relaunch,
    Served,
    State,
    Step,
    Withhold,
    decide,
)

BOUNDS = st.builds(
    Remediation,
    floor=st.integers(1, 64),
    max_attempts=st.integers(1, 12),
    enabled=st.sampled_from([True, True, True, False]),
    gpu_memory_utilization=st.none()
    | st.builds(Utilization, step=st.floats(0.001, 0.2), floor=st.floats(0.05, 1, exclude_max=True)),
    max_model_len=st.none() | st.builds(ModelLen, floor=st.integers(1, 70_000)),
    enforce_eager=st.booleans(),
)
DECLARED = st.fixed_dictionaries(
    {},
    optional={
        Flag.MAX_NUM_SEQS: st.integers(1, 2048),
        Flag.GPU_MEMORY_UTILIZATION: st.floats(0.05, 1),
        Flag.MAX_MODEL_LEN: st.integers(1, 200_000),
        Flag.ENFORCE_EAGER: st.just(value=True),
    },
)
RULES = st.sampled_from([*CURES, "no-kv-cache", "unknown", "gpu-busy"])


def height(values: Values, flag: Flag) -> float:
    """A flag as a number that remedies may only bring down."""
    value = values.get(flag)
    if flag is Flag.ENFORCE_EAGER:
        return 0 if value else 1
    return float("inf") if value is None else value


class Deciding(RuleBasedStateMachine):
    """One service under one fingerprint; its runs are numbered."""

    @initialize(bounds=BOUNDS, declared=DECLARED)
    def begin(self, bounds: Remediation, declared: Values) -> None:
        self.state = State(self.reachable(bounds, declared), declared)
        self.runs = 1
        self.clear()

    def reachable(self, bounds: Remediation, declared: Values) -> Remediation:
        """The configuration refuses a floor above what is declared."""
        return bounds.model_copy(update={"floor": min(bounds.floor, declared.get(Flag.MAX_NUM_SEQS, bounds.floor))})

    def clear(self) -> None:
        self.relaunches = 0
        self.last: Event | None = None
        self.given_up_for: DidNotFit | Failed | None = None

    # What happens

    @rule(data=st.data(), bound=st.none() | st.integers(0, 2048), ready=st.booleans())
    def did_not_fit(self, data: st.DataObject, bound: int | None, ready: bool) -> None:
        """In any run there was: mostly the present one, at what it runs with."""
        tried = data.draw(st.sampled_from([self.state.effective, None]) | st.integers(1, 4096))
        self.take(DidNotFit(self.some_run(data), tried, bound, ready))

    @rule(data=st.data(), why=RULES, transient=st.booleans(), estimate=st.none() | st.integers(1, 200_000))
    def failed(self, data: st.DataObject, why: str, transient: bool, estimate: int | None) -> None:
        self.take(Failed(self.some_run(data), why, transient, estimate, data.draw(st.booleans())))

    @rule(data=st.data())
    def served(self, data: st.DataObject) -> None:
        self.take(Served(self.some_run(data)))

    @precondition(lambda self: self.last)
    @rule()
    def read_again(self) -> None:
        """By another rank, or by a daemon that was started again: nothing happens."""
        assert self.last is not None
        step = decide(self.state, self.last)
        if self.last.invocation == self.state.treated and not isinstance(self.last, Served):
            assert (step.state, step.action) == (self.state, None)
        self.take(self.last)

    @rule()
    def next_run(self) -> None:
        self.runs += 1

    @precondition(lambda self: self.given_up_for)
    @rule()
    def started_by_hand_and_the_same_again(self) -> None:
        """What was given up is given up again."""
        assert self.given_up_for is not None
        self.runs += 1
        event = replace(self.given_up_for, invocation=f"run{self.runs}")
        assert decide(replace(self.state, paused=False), event).action == GiveUp()
        self.take(event)

    @rule(bounds=BOUNDS)
    def the_operator_changes_what_is_allowed(self, bounds: Remediation) -> None:
        """What was learned stays."""
        self.state = replace(self.state, bounds=self.reachable(bounds, self.state.declared))
        self.given_up_for = None

    @rule()
    def pause_or_resume(self) -> None:
        self.state = replace(self.state, paused=not self.state.paused)

    @rule()
    def forget(self) -> None:
        self.state = State(self.state.bounds, self.state.declared, paused=self.state.paused)
        self.clear()

    # What must hold of every answer

    def some_run(self, data: st.DataObject) -> str:
        return f"run{data.draw(st.sampled_from([self.runs, self.runs, self.runs, *range(1, self.runs + 1)]))}"

    def take(self, event: Event) -> None:
        before, step = self.state, decide(self.state, event)
        assert step == decide(before, event)  # whatever it is asked meanwhile
        assert step.why
        assert (step.state.bounds, step.state.declared) == (before.bounds, before.declared)
        if before.paused:
            self.check_paused(before, event, step)
        if isinstance(step.action, Relaunch):
            self.check_relaunch(before, event, step, step.action)
        else:
            assert (step.state.learned, step.state.attempts) == (before.learned, before.attempts)
            assert step.state.exhausted is (
                isinstance(step.action, GiveUp) or (before.exhausted and not isinstance(event, Served))
            )
        if isinstance(step.action, Relaunch | GiveUp):
            assert isinstance(event, DidNotFit | Failed)
            assert event.invocation != before.treated
            assert step.state.treated == event.invocation
            assert before.bounds.enabled
            assert not event.ready_before
            self.given_up_for = event if isinstance(step.action, GiveUp) else None
        self.state, self.last = step.state, event

    def check_paused(self, before: State, event: Event, step: Step) -> None:
        """What would be done is said, nothing is done, and the event can still be answered when it is resumed."""
        later = decide(replace(before, paused=False), event)
        if isinstance(later.action, Relaunch | GiveUp):
            assert (step.state, step.action) == (before, Withhold(later.action))
        else:
            assert step == replace(later, state=replace(later.state, paused=True))

    def check_relaunch(self, before: State, event: Event, step: Step, action: Relaunch) -> None:
        learned = step.state.learned
        if action.flag is Flag.MAX_NUM_SEQS:
            assert isinstance(event, DidNotFit)
            assert action.to == step.state.effective, "the unit runs with what was said"
            tried = before.effective if event.tried is None else event.tried
            assert before.bounds.floor <= action.to < (tried or 0)
            assert learned[Flag.MAX_NUM_SEQS] == action.to <= height(before.learned, action.flag)
        else:
            assert isinstance(event, Failed)
            assert action.flag in CURES[event.rule]
            assert height(learned, action.flag) < min(
                height(values, action.flag) for values in (before.learned, before.declared)
            )
            assert self.is_open(before.bounds, action)
        for flag in set(Flag) - {action.flag}:
            assert height(learned, flag) == height(before.learned, flag), "no remedy undoes another"
        assert step.state.attempts == before.attempts + 1 <= before.bounds.max_attempts
        assert not step.state.exhausted
        self.relaunches += 1

    def is_open(self, bounds: Remediation, action: Relaunch) -> bool:
        match action.flag:
            case Flag.GPU_MEMORY_UTILIZATION:
                share = bounds.gpu_memory_utilization
                return share is not None and action.to >= share.floor
            case Flag.MAX_MODEL_LEN:
                length = bounds.max_model_len
                return length is not None and action.to >= length.floor
            case _:
                return bounds.enforce_eager

    @invariant()
    def every_relaunch_is_counted(self) -> None:
        assert self.state.attempts == self.relaunches

    @invariant()
    def every_chain_ends_soon(self) -> None:
        """From wherever this is: run after run that does not fit at what it runs with ends after log2(start/floor)."""
        state, start, launches = replace(self.state, paused=False), self.state.effective or 1024, 0
        while True:
            step = decide(state, DidNotFit(f"on{launches}", state.effective or start))
            if not isinstance(step.action, Relaunch):
                break
            state, launches = step.state, launches + 1
        assert isinstance(step.action, GiveUp) or not state.bounds.enabled
        assert launches <= log2(max(start / state.bounds.floor, 1)) + 1


TestDeciding = Deciding.TestCase
TestDeciding.settings = searching(100, steps=30)
