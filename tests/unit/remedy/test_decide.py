"""The decision, as a table and as sweeps over every start, floor and interruption."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from vllm_supervisor.remedy import DidNotFit, Failed, GiveUp, Relaunch, Report, Served, State, Wait, decide

START = State(floor=16, max_attempts=4)


@pytest.mark.parametrize(
    ("state", "event", "action"),
    [
        pytest.param({}, {"tried": 1024}, Relaunch(512), id="flag-never-set-halves-what-was-tried"),
        pytest.param({"declared": 256}, {"tried": 256}, Relaunch(128), id="halves"),
        pytest.param({"declared": 1024}, {"tried": 512}, Relaunch(256), id="halves-what-was-tried-not-what-was-asked"),
        pytest.param({"declared": 100}, {"tried": 25}, Relaunch(16), id="clamps-to-the-floor"),
        pytest.param({"declared": 16}, {"tried": 16}, GiveUp(), id="at-the-floor"),
        pytest.param({"declared": 9}, {"tried": 9}, GiveUp(), id="below-the-floor"),
        pytest.param({"attempts": 4}, {"tried": 1024}, GiveUp(), id="out-of-attempts"),
        pytest.param({"cap": 512}, {"tried": 1024}, Relaunch(512), id="what-was-learned-still-holds"),
        pytest.param({"cap": 512}, {"tried": None}, Relaunch(256), id="value-known-from-the-unit-only"),
        pytest.param({}, {"tried": None}, Report(), id="value-unknown"),
        pytest.param({}, {"tried": 1024, "bound": 969}, Relaunch(969), id="exact-number"),
        pytest.param({}, {"tried": 256, "bound": 300}, Relaunch(128), id="a-bound-above-what-was-tried-is-none"),
        pytest.param({}, {"tried": 256, "bound": 12}, GiveUp(), id="exact-number-below-the-floor"),
        pytest.param({"enabled": False}, {"tried": 1024}, Report(), id="switched-off"),
        pytest.param({}, {"tried": 1024, "ready_before": True}, Report(), id="was-ready"),
        pytest.param({"treated": "run1"}, {"tried": 1024}, None, id="second-rank-same-invocation"),
    ],
)
def test_a_start_that_did_not_fit(state, event, action):
    """It is lowered on evidence only, once per invocation, above the floor, with attempts left."""
    assert decide(replace(START, **state), DidNotFit("run1", **event)).action == action


@pytest.mark.parametrize(
    ("event", "action"),
    [
        pytest.param(Failed("run1", "unknown"), Report(), id="not-ours"),
        pytest.param(Failed("run1", "insufficient-free-memory", transient=True), Wait(), id="transient"),
        pytest.param(Served("run1"), None, id="served"),
    ],
)
def test_other_events_change_no_value(event, action):
    """Only a start that did not fit may move the cap."""
    state = replace(START, cap=256, attempts=2)

    step = decide(state, event)

    assert (step.action, step.state.cap, step.state.attempts) == (action, 256, 2)


def test_serving_ends_exhaustion():
    """Once something fits, the service is no longer given up."""
    assert not decide(replace(START, exhausted=True), Served("run1")).state.exhausted


@pytest.mark.parametrize("printings", [1, 3], ids=["one-rank", "eight-ranks-or-a-replayed-journal"])
def test_every_path_ends_and_never_rises(printings):
    """From every start and floor, failure after failure falls each time, stays at the floor or above, and ends."""
    for tried, floor in product(range(1, 1100, 13), range(1, 70, 3)):
        state, values = State(floor=floor, max_attempts=99), [tried]
        while not state.exhausted:
            event = DidNotFit(f"run{len(values)}", values[-1])
            steps = [decide(state, event)]
            steps += [decide(steps[-1].state, event) for _ in range(printings - 1)]
            assert [s.action for s in steps[1:]] == [None] * (printings - 1)
            state = steps[-1].state
            if isinstance(steps[0].action, Relaunch):
                values.append(steps[0].action.max_num_seqs)
        assert values == sorted(set(values), reverse=True)
        assert all(value >= floor for value in values[1:])
        assert len(values) <= 1 + max(tried // floor, 1).bit_length()


def test_attempts_bound_relaunches_that_do_not_lower():
    """A unit that is somehow run above its cap again and again still ends."""
    state, relaunches = replace(START, cap=128, max_attempts=3), 0
    for run in range(10):
        step = decide(state, DidNotFit(f"run{run}", 1024))
        state, relaunches = step.state, relaunches + isinstance(step.action, Relaunch)

    assert (relaunches, state.exhausted, state.cap) == (3, True, 128)


@pytest.mark.parametrize(
    ("declared", "cap", "effective"),
    [(None, None, None), (256, None, 256), (None, 512, 512), (256, 512, 256), (1024, 512, 512)],
)
def test_effective_is_the_lower_of_declared_and_cap(declared, cap, effective):
    """A cap bounds what the operator declared and never raises it."""
    assert replace(START, declared=declared, cap=cap).effective == effective
