"""What the daemon decides for itself."""

from __future__ import annotations

import pytest

from tests.unit.states import unit_state
from vllm_supervisor.daemon import SETTLED_S, settled, small_default
from vllm_supervisor.host.systemd import UnitState

NOW_S = 10_000.0


def state(active: str, sub: str, restarts: int, age_s: float) -> UnitState:
    return unit_state(active, sub, main_pid=1, restarts=restarts, changed_s=NOW_S - age_s)


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        pytest.param(state("active", "running", 2, SETTLED_S + 1), True, id="serves-for-long"),
        pytest.param(state("active", "running", 2, SETTLED_S - 1), False, id="serves-for-a-while"),
        pytest.param(state("active", "running", 0, SETTLED_S + 1), False, id="never-restarted"),
        pytest.param(state("activating", "start-post", 2, SETTLED_S + 1), False, id="loads-for-long"),
        pytest.param(state("activating", "auto-restart", 2, SETTLED_S + 1), False, id="waits-to-be-restarted"),
    ],
)
def test_a_start_counter_is_cleared_only_after_serving_for_long(unit, expected):
    """A loop of failing starts must run into its limit; crashes hours apart must not."""
    assert settled(unit, NOW_S) is expected


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", True),
        ("NVIDIA A100 80GB PCIe", True),
        ("NVIDIA GB10", True),
        ("NVIDIA H100 80GB HBM3", False),
        ("NVIDIA B200", False),
    ],
)
def test_cards_for_which_capacity_does_not_tell_the_default(card, expected):
    """A guess of 1024 where 256 ran would raise the value."""
    assert small_default(card) is expected
