"""SIGKILL, and a power cut, at every step: whatever stops us, it ends as if nothing had."""

from __future__ import annotations

import json

import pytest

from tests.faults import fault
from tests.live.crash import Rig, losses, moments, not_intact, outcome, unsynced
from tests.live.fleet import DAEMON, Fleet
from tests.live.test_recovery import SINGLE, with_environment
from tests.sandbox import SUPERVISOR

FAILING = with_environment(SINGLE, SIM_OUTSIDE_GIB=2.4, SIM_START_S=0.05)  # 1024 do not fit, 512 do
ROOMY = with_environment(SINGLE, SIM_OUTSIDE_GIB=0.6, SIM_START_S=0.05)
OTHER = {**ROOMY, "gpus": [1], "port": 8001}

STEPS = ("commit", "write(", "daemon-reload", "systemctl kill", "start --no-block")

# A test takes every n-th moment, so that several workers share them.
PARTS = 4


def recovering(box, **options):
    """A rig whose daemon is about to see `a` fail at 1024."""
    fleet = Fleet(box)
    fleet.configure({"a": FAILING})
    fleet.supervisor("apply", "--no-wait")
    box.run(["systemctl", "kill", "--signal=KILL", "vllm-a"])
    box.run(["systemctl", "stop", "vllm-a"])
    box.run(["systemctl", "enable", "--quiet", DAEMON])
    rig = Rig(fleet, **options)
    rig.keep(daemon=True)
    return rig


def begin_recovery(rig, *plan):
    rig.restore("vllm-a.service")
    rig.start_daemon(*plan)
    rig.box.run(["systemctl", "start", "--no-block", "vllm-a"], check=True)


def recovery(rig, *plan):
    """How everything is after a recovery whose daemons die at these moments."""
    begin_recovery(rig, *plan)
    return rig.settle(starts=sum(moment is not None for moment in plan))


def uninterrupted(rig, *, starts=2):
    """The outcome of a recovery, which is as it should be, and its moments."""
    seen = recovery(rig, None)
    expected = outcome(seen)
    rows = [json.loads(row[3]) for row in expected["history"] if row[1] == "lowered"]
    assert not seen["timed_out"], rig.fleet.log()
    assert [(row["tried"], row["to"], row["attempt"]) for row in rows] == [(1024, 512, 1)]
    assert [(json.loads(cap["learned"]), cap["attempts"]) for cap in expected["caps"]] == [({"max-num-seqs": 512}, "1")]
    assert expected["starts"] == starts * ["vllm-a.service"]
    assert expected["states"]["vllm-a.service"] == ["active", "running", "enabled", "no", ""]
    assert (expected["tasks"], expected["changed or half-written units"]) == ([], [])
    return expected, moments(seen["traces"]["trace.0"])


def moment_of(found, text):
    """The first moment whose text holds this; before "commit" it is the last write of the one that decides."""
    if text == "commit":
        return found[found.index(moment_of(found, "did not fit")) - 1]
    return next(moment for moment in found if text in moment.text)


@pytest.mark.parametrize("part", range(PARTS))
@fault(
    "the daemon is killed in the middle of a recovery",
    made="SIGKILL just before each effect that a recording of it shows, one run for each",
    promised="it ends as it does uninterrupted",
)
def test_killed_at_each_effect_of_a_recovery(box, part, seen):
    """Each commit, write, rename, reload, kill, start and message is once what the daemon does not get to any more."""
    rig = recovering(box)
    expected, found = uninterrupted(rig)
    died = 0

    for moment in found[part::PARTS]:
        after = recovery(rig, moment)
        assert losses(expected, outcome(after)) == [], f"{moment}\n{rig.fleet.log()}"
        died += after["died"]

    for step in (*STEPS, "rename", "reset-failed", "READY=1"):
        assert moment_of(found, step), "a recovery does that too"
    assert died > len(found) // PARTS // 2, "hardly any moment was reached"
    seen("ready at 512 after one step and one attempt; unit, store and files the same; no row twice; the step was said")


@pytest.mark.parametrize("step", STEPS)
@fault(
    "two crashes in one recovery",
    made="SIGKILL at the commit, write, reload, kill or restart; then to the next daemon, at effects of its own",
    promised="it ends as it does uninterrupted",
)
def test_two_crashes_in_one_recovery(box, step, seen):
    """The second daemon is killed over what the first one left: at a few moments of it, spread out."""
    rig = recovering(box)
    expected, found = uninterrupted(rig)
    first = moment_of(found, step)
    after = recovery(rig, first, None)
    again = moments(after["traces"]["trace.1"])
    assert losses(expected, outcome(after)) == [], first

    for second in again[STEPS.index(step) :: len(again) // 2]:
        after = recovery(rig, first, second)
        assert losses(expected, outcome(after)) == [], f"{first}\n{second}\n{rig.fleet.log()}"

    seen("ready at 512 after one step and one attempt; unit, store and files the same; no row twice; the step was said")


@fault(
    "the power fails in the middle of a recovery",
    made="every process is killed at the commit, the write, the rename, the reload or the restart; then the host boots",
    promised="nothing that was learned is lost, and no value is tried twice",
)
def test_power_cut_in_the_middle_of_a_recovery(box, seen):
    rig = recovering(box, restart="1h")
    expected, found = uninterrupted(rig)
    assert unsynced(rig.look()["traces"]["trace.0"]) == []

    for moment in (moment_of(found, step) for step in (*STEPS, "rename")):
        begin_recovery(rig, moment)
        box.wait_until(lambda: rig.look()["daemon"] == "0", "the daemon has died")
        box.reboot(power_cut=True)
        after = rig.settle()
        assert losses(over_a_boot(expected), outcome(after)) == [], f"{moment}\n{rig.fleet.log()}"
        assert rig.fleet.steps("a") == [(1024, 512)]

    seen(
        "ready at 512 after one step and one attempt; unit, store and files the same; what is renamed was synced first"
    )


def over_a_boot(expected):
    """A boot is one start more, which fails as the one before did."""
    return {key: value for key, value in expected.items() if key not in ("history", "starts")}


def first_apply(box):
    fleet = Fleet(box)
    fleet.configure({"a": ROOMY})
    rig = Rig(fleet)
    rig.keep()
    return rig, lambda: rig.restore("vllm-a.service")


def apply_that_changes(box, **options):
    fleet = Fleet(box)
    fleet.configure({"a": ROOMY, "b": OTHER})
    fleet.supervisor("apply")
    rig = Rig(fleet, **options)
    rig.keep()
    fleet.configure({"a": with_environment(ROOMY, SIM_OUTSIDE_GIB=0.5), "b": OTHER})
    return rig, lambda: (rig.restore("vllm-a.service"), box.run(["systemctl", "start", "vllm-a"], check=True))


def apply_that_removes(box):
    rig, begin = apply_that_changes(box)
    rig.fleet.configure({"b": OTHER})
    return rig, begin


APPLIES = {
    "`apply` of a new service": first_apply,
    "`apply` that changes a service that runs": apply_that_changes,
    "`apply` that removes a service": apply_that_removes,
}


def applied(rig, begin, moment):
    """How everything is after `apply`, killed at a moment, and another one; and right after the first."""
    begin()
    trace = rig.run("apply", "--no-wait", moment=moment)
    between = rig.look()
    if moment:
        rig.fleet.supervisor("apply", "--no-wait")
    return rig.settle(), between, trace


@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("what", APPLIES)
@fault(
    "{what} is killed",
    made="SIGKILL just before each effect that a recording of it shows, one run for each; then it is run again",
    promised="no unit is ever half-written, and the second run ends as an uninterrupted one does",
)
def test_apply_killed_at_each_effect(box, what, part, seen):
    rig, begin = APPLIES[what](box)
    after, _, trace = applied(rig, begin, None)
    expected, found = outcome(after), moments(trace)
    assert unsynced(trace) == []
    assert not after["timed_out"], rig.fleet.log()
    other = rig.fleet.show("b", "InvocationID")

    for moment in found[part::2]:
        after, between, _ = applied(rig, begin, moment)
        assert not_intact(between) == [], moment
        assert losses(expected, {**outcome(after), "starts": expected["starts"]}) == [], f"{moment}\n{rig.fleet.log()}"

    assert rig.fleet.run("plan").returncode == 0
    assert rig.fleet.show("b", "InvocationID") == other
    seen("every unit intact; what should run runs from its current text; the same store and files; nothing left to do")


@fault(
    "power fails while the unit is about to be killed",
    made="`systemctl` is replaced by a program that looks into the store first",
    promised="cap, attempt and history are committed before the unit is touched",
)
def test_a_remedy_is_committed_before_the_unit_is_touched(box, seen):
    """When the daemon asks for the kill, the store holds the cap, the attempt and the row of history already."""
    fleet = Fleet(box)
    looked = "/run/vllm-supervisor/at-the-kill"
    look = f'case "$1" in kill) [ -e {looked} ] || /usr/bin/env {SUPERVISOR} status --json >{looked};; esac'
    box.write("/usr/local/sbin/systemctl", f'#!/bin/sh\n{look}\nexec /usr/bin/systemctl "$@"\n', mode=0o755)
    fleet.configure({"a": with_environment(SINGLE, SIM_OUTSIDE_GIB=2.4)})
    fleet.supervisor("apply", "--no-wait")
    fleet.start_daemon()

    fleet.wait_for("a", "ready")

    told = json.loads(box.read(looked))["services"][0]
    assert (told["effective"], told["attempts"], told["last"]["kind"]) == (512, 1, "lowered")
    seen(f"at the kill the store holds {told['effective']}, attempt {told['attempts']}, and the row in the history")
