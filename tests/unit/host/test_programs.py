"""Programs of the host, real ones: each ends in its time, and who waits for it is known to be alive."""

from __future__ import annotations

import resource
import time

import pytest

from vllm_supervisor import programs
from vllm_supervisor.errors import HostError, TimedOutError


@pytest.fixture
def signs():
    """The signs of life that are given while a program runs."""
    given = []
    programs.while_waiting(lambda: given.append(time.monotonic()))
    yield given
    programs.while_waiting(lambda: None)


def test_a_program_that_does_not_end(signs):
    """It is killed when its time is over, and whoever waits says so all along."""
    began_s = time.monotonic()

    with pytest.raises(TimedOutError, match=r"cannot finish `sleep 60`: no answer within 1\.2 s"):
        programs.run(["sleep", "60"], timeout_s=1.2)

    assert time.monotonic() - began_s < 30
    assert len(signs) >= 2


def test_what_outlives_a_killed_program_is_not_waited_for(signs):
    """A child that holds the output open, as a process that hangs in a driver would."""
    began_s = time.monotonic()

    with pytest.raises(TimedOutError):
        programs.run(["sh", "-c", "sleep 20; :"], timeout_s=0.2)

    assert time.monotonic() - began_s < 10


def test_a_program_that_is_quick(signs):
    """What it prints comes back, whole."""
    assert programs.run(["seq", "20000"]).splitlines()[-1] == "20000"
    assert signs == []


def test_no_descriptor_is_left():
    """It is an error of ours, which names the command, and not a traceback."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        with pytest.raises(HostError, match="cannot run `true`: Too many open files"):
            programs.run(["true"])
        with pytest.raises(HostError, match="Too many open files"):
            programs.run_bounded(["true"], timeout_s=1, limit_bytes=1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
