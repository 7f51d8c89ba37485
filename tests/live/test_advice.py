"""What `explain` advises is done to the letter, and helps."""

from __future__ import annotations

import re

import pytest

from tests.live.fleet import VLLM, Fleet
from tests.live.points import script
from tests.live.test_recovery import SINGLE, with_environment
from tests.sandbox import SUPERVISOR

NOTHING_FITS = with_environment(SINGLE, SIM_OUTSIDE_GIB=3.95)
ALL_FITS = with_environment(SINGLE, SIM_OUTSIDE_GIB=0.6)


@pytest.fixture
def fleet(box):
    box.run(["ln", "-s", SUPERVISOR, "/usr/local/bin/vllm-supervisor"], check=True)
    return Fleet(box)


def advice(fleet, beginning):
    """The line of advice that begins so."""
    return next(line for line in fleet.supervisor("explain", "a").splitlines() if line.startswith(beginning))


def follow(fleet, beginning):
    """Run every command of that line, one after the other."""
    commands = re.findall(r"`([^`]+)`", advice(fleet, beginning))
    assert commands
    for command in commands:
        fleet.box.run(["sh", "-c", command])


def rows(fleet, kind):
    return [row for row in fleet.history("a") if row["kind"] == kind]


STAYS_DOWN, UNDO, MENDED = "It stays down until", "To undo", "Once a cause outside"


@pytest.mark.parametrize(
    ("allowed", "beginning", "changed", "helped"),
    [
        pytest.param({"floor": 512}, STAYS_DOWN, ALL_FITS, "ready", id="settings"),
        pytest.param({"floor": 512}, STAYS_DOWN, {"remediation": {"floor": 256}}, (512, 256), id="floor"),
        pytest.param({"max_attempts": 1}, STAYS_DOWN, {"remediation": {"max_attempts": 2}}, (512, 256), id="attempts"),
        pytest.param({"floor": 512}, UNDO, {}, "forgot", id="forget"),
        pytest.param({"floor": 512}, "Where memory was freed", {}, "gave-up", id="start"),
    ],
)
def test_what_was_given_up(fleet, allowed, beginning, changed, helped):
    """Each way that is named brings a start, with what was changed in force."""
    service = {**NOTHING_FITS, "remediation": allowed}
    fleet.configure({"a": service})
    fleet.start_daemon()
    fleet.run("apply")
    fleet.wait_for("a", "given-up")
    assert fleet.steps("a") == [(1024, 512)]
    assert all(f"remediation.{bound}" in advice(fleet, STAYS_DOWN) for bound in allowed)

    fleet.configure({"a": service | changed})
    follow(fleet, beginning)

    match helped:
        case "ready":
            fleet.wait_for("a", "ready")
        case "gave-up":
            fleet.box.wait_until(lambda: len(rows(fleet, "gave-up")) == 2, "another start that did not fit")
        case "forgot":
            fleet.box.wait_until(lambda: fleet.steps("a") == [(1024, 512)] * 2, "the declared value was tried")
        case step:
            fleet.box.wait_until(lambda: step in fleet.steps("a"), "a step beyond the old bound")


@pytest.mark.parametrize(
    ("beginning", "mended"), [(STAYS_DOWN, False), (MENDED, True)], ids=["settings", "cause-outside"]
)
def test_what_failed(fleet, beginning, mended):
    """Its start limit ended it: changed settings start it when applied, and the commands do when the cause is gone."""
    cause = "/etc/vllm.fails"
    fleet.box.write(cause, "", mode=0o644)
    program = script(fleet, f'[ ! -e {cause} ] || export SIM_FAULT=free-memory; exec {VLLM} "$@"')
    fleet.box.write("/etc/systemd/system/vllm-a.service.d/test.conf", "[Service]\nRestartSec=0\n")
    fleet.configure({"a": {**ALL_FITS, "executable": program}})
    fleet.start_daemon()
    fleet.run("apply", "--no-wait")
    fleet.wait_for("a", "failed")

    if mended:
        fleet.box.run(["rm", cause], check=True)
    else:
        fleet.configure({"a": ALL_FITS})
    follow(fleet, beginning)

    fleet.wait_for("a", "ready")


def test_what_was_learned_of_another_flag(fleet):
    """It is shown with what was declared, and can be undone, also after an `apply` that changed the unit."""
    opened = {"remediation": {"enforce_eager": True}}
    service = with_environment(ALL_FITS, SIM_FAULT="graph-oom") | opened
    fleet.configure({"a": service})
    fleet.start_daemon()
    fleet.run("apply", "--no-wait")
    fleet.box.wait_until(lambda: rows(fleet, "changed"), "a remedy")
    fleet.configure({"a": service | {"port": 8002}})
    fleet.run("apply", "--no-wait")

    assert "8002" in fleet.unit("a")
    assert fleet.status()["a"]["learned"] == [{"flag": "enforce-eager", "declared": None, "effective": True}]
    shown = "enforce-eager: on (declared: vLLM's default)"
    assert shown in fleet.supervisor("status")
    assert shown in fleet.supervisor("explain", "a")
    assert "rule oom-graph-capture" in advice(fleet, "To settle it in the YAML")
    follow(fleet, UNDO)

    fleet.box.wait_until(lambda: len(rows(fleet, "changed")) == 2, "what was declared was tried again")


def test_advice_is_that_of_the_rule(fleet):
    """Too few Mamba blocks call for a higher share of the memory, where the sampler calls for a lower one."""
    fleet.configure({"a": with_environment(ALL_FITS, SIM_FAULT="mamba:969")})
    fleet.start_daemon()
    fleet.supervisor("apply")

    told = fleet.supervisor("explain", "a")

    assert "set max-num-seqs to at most 969, or raise gpu-memory-utilization (rule mamba-blocks)" in told
    assert "lower gpu-memory-utilization" not in told
