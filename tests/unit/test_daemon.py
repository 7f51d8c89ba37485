"""What the daemon decides for itself."""

from __future__ import annotations

import pytest

from tests.unit.states import unit_state
from vllm_supervisor.config import Service
from vllm_supervisor.daemon import SETTLED_S, settled, small_default
from vllm_supervisor.host.gpu import Gpu
from vllm_supervisor.host.systemd import UnitState
from vllm_supervisor.inforce import InForce
from vllm_supervisor.store import AppliedService

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


def small_units(cards, **services):
    """The answer of `small_default` for services with these settings, on a host with these cards."""
    items = []
    for name, settings in services.items():
        service = Service.model_validate(
            {"name": name, "model": "o/m", "executable": "/opt/vllm/bin/vllm", "source": "/etc/x.yaml", **settings}
        )
        items.append(InForce(AppliedService(name, name, "{}", "f1", 7), service))
    return small_default(items, {n: Gpu(n, card, 81_920, 0) for n, card in enumerate(cards)})


A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("card", "expected"),
    [(A100, True), ("NVIDIA A100 80GB PCIe", True), ("NVIDIA GB10", True), (H100, False), ("NVIDIA B200", False)],
)
def test_cards_for_which_capacity_does_not_tell_the_default(card, expected):
    """A guess of 1024 where 256 ran would raise the value."""
    assert bool(small_units([card], a={})) is expected


def test_each_service_is_told_by_its_own_cards():
    """The first one it sees, as vLLM does; one that is not there, or not listed, tells nothing."""
    cards = [H100, A100]
    services = {
        "first": {},
        "large": {"gpus": [0]},
        "small": {"gpus": [1]},
        "turned": {"gpus": [1, 0], "arguments": {"tensor-parallel-size": 2}},
        "mixed": {"gpus": [0, 1], "arguments": {"tensor-parallel-size": 2}},
        "gone": {"gpus": [2]},
    }

    assert small_units(cards, **services) == {"small", "turned"}
    assert small_units([], **services) == set()
