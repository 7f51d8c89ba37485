"""The decision, as tables and as sweeps over every start, floor, chain and interruption."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from vllm_supervisor.config import Remediation
from vllm_supervisor.learned import Flag
from vllm_supervisor.remedy import (
    CURES,
    DidNotFit,
    Failed,
    GiveUp,
    Relaunch,
    Report,
    Served,
    State,
    Wait,
    Withhold,
    decide,
)

BOUNDS = Remediation(floor=16, max_attempts=4)
CLOSED = Remediation(floor=16, max_attempts=4, enabled=False)
OPEN = Remediation.model_validate(
    {
        "floor": 16,
        "max_attempts": 64,
        "gpu_memory_utilization": {"step": 0.02, "floor": 0.8},
        "max_model_len": {"floor": 4096},
        "enforce_eager": True,
    }
)
START = State(BOUNDS, {Flag.GPU_MEMORY_UTILIZATION: 0.9})


def seqs(to):
    return Relaunch(Flag.MAX_NUM_SEQS, to)


def known(declared=None, cap=None, **more):
    both = [{Flag.MAX_NUM_SEQS: value} if value else {} for value in (declared, cap)]
    return replace(START, declared={**START.declared, **both[0]}, learned=both[1], **more)


@pytest.mark.parametrize(
    ("state", "event", "action"),
    [
        pytest.param(known(), {"tried": 1024}, seqs(512), id="flag-never-set-halves-what-was-tried"),
        pytest.param(known(256), {"tried": 256}, seqs(128), id="halves"),
        pytest.param(known(1024), {"tried": 512}, seqs(256), id="halves-what-was-tried-not-what-was-asked"),
        pytest.param(known(100), {"tried": 25}, seqs(16), id="clamps-to-the-floor"),
        pytest.param(known(16), {"tried": 16}, GiveUp(), id="at-the-floor"),
        pytest.param(known(9), {"tried": 9}, GiveUp(), id="below-the-floor"),
        pytest.param(known(attempts=4), {"tried": 1024}, GiveUp(), id="out-of-attempts"),
        pytest.param(known(cap=512), {"tried": 1024}, seqs(512), id="what-was-learned-still-holds"),
        pytest.param(known(cap=512), {"tried": None}, seqs(256), id="value-known-from-the-unit-only"),
        pytest.param(known(), {"tried": None}, Report(), id="value-unknown"),
        pytest.param(known(), {"tried": 1024, "bound": 969}, seqs(969), id="exact-number"),
        pytest.param(known(), {"tried": 256, "bound": 300}, seqs(128), id="a-bound-above-what-was-tried-is-none"),
        pytest.param(known(), {"tried": 256, "bound": 12}, GiveUp(), id="exact-number-below-the-floor"),
        pytest.param(known(bounds=CLOSED), {"tried": 1024}, Report(), id="switched-off"),
        pytest.param(known(), {"tried": 1024, "ready_before": True}, Report(), id="was-ready"),
        pytest.param(known(treated="run1"), {"tried": 1024}, None, id="second-rank-same-invocation"),
    ],
)
def test_a_start_that_did_not_fit(state, event, action):
    """It is lowered on evidence only, once per invocation, above the floor, with attempts left."""
    assert decide(state, DidNotFit("run1", **event)).action == action


@pytest.mark.parametrize(
    ("event", "action"),
    [
        pytest.param(Failed("run1", "unknown"), Report(), id="not-ours"),
        pytest.param(Failed("run1", "gpu-busy", transient=True), Wait(), id="transient"),
        pytest.param(Served("run1"), None, id="served"),
        *(pytest.param(Failed("run1", rule, estimate=5000), Report(), id=f"{rule}-closed") for rule in CURES),
    ],
)
def test_other_events_change_no_value(event, action):
    """Unless the operator opened another flag, only a start that did not fit moves anything."""
    state = known(cap=256, attempts=2)

    step = decide(state, event)

    assert (step.action, step.state.learned, step.state.attempts) == (action, state.learned, 2)


UTILIZATION, EAGER = Flag.GPU_MEMORY_UTILIZATION, Flag.ENFORCE_EAGER


@pytest.mark.parametrize(
    ("learned", "event", "action"),
    [
        pytest.param({}, {"rule": "oom-graph-capture"}, Relaunch(UTILIZATION, 0.88), id="a-step-down"),
        pytest.param({UTILIZATION: 0.82}, {"rule": "oom-warm-up"}, Relaunch(UTILIZATION, 0.8), id="to-the-floor"),
        pytest.param({UTILIZATION: 0.8}, {"rule": "oom-warm-up"}, Report(), id="not-below-the-floor"),
        pytest.param({UTILIZATION: 0.8}, {"rule": "oom-graph-capture"}, Relaunch(EAGER, 1), id="then-eager"),
        pytest.param(
            {UTILIZATION: 0.8, EAGER: True},
            {"rule": "oom-graph-capture"},
            Report(),
            id="nothing-left",
        ),
        pytest.param(
            {},
            {"rule": "context-too-long", "estimate": 9664},
            Relaunch(Flag.MAX_MODEL_LEN, 9664),
            id="the-engines-own-estimate",
        ),
        pytest.param({}, {"rule": "context-too-long", "estimate": 256}, Report(), id="an-estimate-below-the-floor"),
        pytest.param({}, {"rule": "context-too-long"}, Report(), id="no-estimate"),
        pytest.param(
            {Flag.MAX_MODEL_LEN: 9664}, {"rule": "context-too-long", "estimate": 9664}, Report(), id="tried-already"
        ),
        pytest.param({}, {"rule": "no-kv-cache"}, Report(), id="would-want-a-higher-share"),
        pytest.param({}, {"rule": "oom-graph-capture", "ready_before": True}, Report(), id="was-ready"),
    ],
)
def test_flags_that_were_opened(learned, event, action):
    """Each in one direction, within its bound, the gentler one first."""
    state = replace(START, bounds=OPEN, learned=learned)

    assert decide(state, Failed("run1", **event)).action == action


@pytest.mark.parametrize(
    ("state", "event", "withheld"),
    [
        pytest.param(known(), DidNotFit("run1", 1024), True, id="lower"),
        pytest.param(known(16), DidNotFit("run1", 16), True, id="give-up"),
        pytest.param(replace(START, bounds=OPEN), Failed("run1", "oom-graph-capture"), True, id="an-opened-flag"),
        pytest.param(known(bounds=CLOSED), DidNotFit("run1", 1024), False, id="switched-off"),
        pytest.param(known(), Failed("run1", "no-kv-cache"), False, id="not-ours"),
        pytest.param(known(), Failed("run1", "gpu-busy", transient=True), False, id="systemd-starts-it-again"),
        pytest.param(known(treated="run1"), DidNotFit("run1", 1024), False, id="answered-before-the-pause"),
        pytest.param(known(exhausted=True), Served("run1"), False, id="ready"),
    ],
)
def test_a_pause_withholds_what_would_be_done_and_nothing_else(state, event, withheld):
    """It is told and nothing is learned of it; after the pause the same event is answered as if there had been none."""
    unpaused, step = decide(state, event), decide(replace(state, paused=True), event)

    if withheld:
        assert step.action == Withhold(unpaused.action)
        assert unpaused.why in step.why
        assert decide(replace(step.state, paused=False), event) == unpaused
    else:
        assert replace(step, state=replace(step.state, paused=False)) == unpaused


def test_serving_ends_exhaustion():
    """Once something fits, the service is no longer given up."""
    assert not decide(replace(START, exhausted=True), Served("run1")).state.exhausted


@pytest.mark.parametrize("printings", [1, 3], ids=["one-rank", "eight-ranks-or-a-replayed-journal"])
def test_every_path_ends_and_never_rises(printings):
    """From every start and floor, failure after failure falls each time, stays at the floor or above, and ends."""
    for tried, floor in product(range(1, 1100, 13), range(1, 70, 3)):
        state, values = State(Remediation(floor=floor, max_attempts=64)), [tried]
        while not state.exhausted:
            event = DidNotFit(f"run{len(values)}", values[-1])
            steps = [decide(state, event)]
            steps += [decide(steps[-1].state, event) for _ in range(printings - 1)]
            assert [s.action for s in steps[1:]] == [None] * (printings - 1)
            state = steps[-1].state
            if isinstance(steps[0].action, Relaunch):
                values.append(int(steps[0].action.to))
        assert values == sorted(set(values), reverse=True)
        assert all(value >= floor for value in values[1:])
        assert len(values) <= 1 + max(tried // floor, 1).bit_length()


def test_chains_of_different_failures_never_oscillate():
    """Whatever follows whatever, each flag moves one way only, and the chain ends."""
    rules = [None, "oom-graph-capture", "oom-warm-up", "context-too-long", "no-kv-cache"]
    for chain in product(rules, repeat=4):
        state, tried, length, seen = replace(START, bounds=OPEN), 1024, 100_000, []
        for run, rule in enumerate(chain * 20):
            length = length * 3 // 4
            event = DidNotFit(f"run{run}", tried) if rule is None else Failed(f"run{run}", rule, estimate=length)
            step = decide(state, event)
            state = step.state
            if isinstance(step.action, Relaunch):
                seen.append(step.action)
                tried = int(step.action.to) if step.action.flag is Flag.MAX_NUM_SEQS else tried
        for flag in Flag:
            values = [action.to for action in seen if action.flag is flag]
            assert values == sorted(set(values), reverse=True), (chain, flag)
        assert isinstance(step.action, GiveUp | Report | None), chain


def test_attempts_bound_relaunches_that_do_not_lower():
    """A unit that is somehow run above its cap again and again still ends."""
    state, relaunches = known(cap=128, bounds=Remediation(floor=16, max_attempts=3)), 0
    for run in range(10):
        step = decide(state, DidNotFit(f"run{run}", 1024))
        state, relaunches = step.state, relaunches + isinstance(step.action, Relaunch)

    assert (relaunches, state.exhausted, state.learned) == (3, True, {Flag.MAX_NUM_SEQS: 128})


@pytest.mark.parametrize(
    ("declared", "cap", "effective"),
    [(None, None, None), (256, None, 256), (None, 512, 512), (256, 512, 256), (1024, 512, 512)],
)
def test_effective_is_the_lower_of_declared_and_cap(declared, cap, effective):
    """A cap bounds what the operator declared and never raises it."""
    assert known(declared, cap).effective == effective


def test_every_cure_is_for_a_rule_that_is_only_reported():
    """A rule that lowers max-num-seqs, or waits, has its answer already."""
    from vllm_supervisor.diagnosis import CATALOGUE, Act

    acts = {rule.id: rule.act for rule in CATALOGUE}

    assert {acts[rule] for rule in CURES} == {Act.REPORT}
