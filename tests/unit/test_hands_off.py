"""When a remedy keeps its hands off a unit, and what a drop-in takes out of its hands."""

from __future__ import annotations

import pytest

from tests.unit.states import unit_state as state
from vllm_supervisor.host.journal import End
from vllm_supervisor.recovery import hands_off
from vllm_supervisor.store import Task, TaskKind
from vllm_supervisor.unit_files import replaces_command

TASK = Task("a", TaskKind.RELAUNCH, "run1", 1)


@pytest.mark.parametrize(
    ("unit", "job", "up_to_date", "end", "expected"),
    [
        pytest.param(state("activating", "start-post"), "", False, End.RESTARTED, "", id="still-dying"),
        pytest.param(state("activating", "auto-restart"), "", False, End.RESTARTED, "", id="waits-to-be-restarted"),
        pytest.param(state("failed", "failed"), "", False, End.FAILED, "", id="at-its-start-limit"),
        pytest.param(state("failed", "failed"), "", False, End.STOPPED, "stopped", id="stopped-while-starting"),
        pytest.param(
            state("activating", "start"), "", False, End.STOPPED, "", id="stopped-and-started-at-the-old-value"
        ),
        pytest.param(state("inactive", "dead"), "", False, End.RESTARTED, "stopped", id="stopped-while-waiting"),
        pytest.param(state("inactive", "dead"), "", False, End.STOPPED, "stopped", id="stopped-and-said"),
        pytest.param(state("inactive", "dead"), "", False, End.FAILED, "", id="its-failure-was-reset"),
        pytest.param(
            state("inactive", "dead", result="exit-code"), "", False, End.FAILED, "stopped", id="stopped-not-said-yet"
        ),
        pytest.param(
            state("inactive", "dead", invocation="run2"), "", False, End.FAILED, "stopped", id="a-later-run-was-stopped"
        ),
        pytest.param(state("inactive", "dead"), "start", False, End.RESTARTED, "queued", id="started-by-hand"),
        pytest.param(
            state("deactivating", "stop-sigterm"), "stop", False, End.RESTARTED, "stopping", id="being-stopped"
        ),
        pytest.param(state("active", "running", invocation="run2"), "", True, End.RESTARTED, "serving", id="serves"),
        pytest.param(
            state("activating", "start", invocation="run2"), "", True, End.RESTARTED, "again", id="already-new"
        ),
        pytest.param(
            state("activating", "start", invocation="run2"), "", False, End.RESTARTED, "", id="again-at-the-old-value"
        ),
        pytest.param(
            state("failed", "failed", file_state="disabled"), "", False, End.RESTARTED, "disabled", id="disabled"
        ),
    ],
)
def test_hands_off(unit, job, up_to_date, end, expected):
    """What somebody did by hand stands, and what systemd has done already is not done again."""
    why = hands_off(unit, job, TASK, up_to_date=up_to_date, end=end)

    assert expected in why
    assert bool(why) is bool(expected)


@pytest.mark.parametrize(
    ("drop_in", "expected"),
    [
        pytest.param("[Service]\nExecStart=\nExecStart=/bin/true\n", True, id="replaced"),
        pytest.param("[Service]\n  ExecStart = /bin/true\n", True, id="with-spaces-as-systemd-allows"),
        pytest.param("[Service]\nExecStartPre=/bin/true\n", False, id="another-key"),
        pytest.param("[Service]\n#ExecStart=/bin/true\n", False, id="comment"),
        pytest.param("[Service]\nExecStart\n", False, id="no-setting"),
    ],
)
def test_a_drop_in_that_replaces_the_command(drop_in, expected):
    """The unit's own --max-num-seqs has no effect then, and no remedy may claim that it has."""
    assert replaces_command(drop_in) is expected
