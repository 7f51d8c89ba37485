"""What `explain` and `status` tell: over every condition, and everything that can have been learned."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import product

import pytest
from rich.console import Console

from vllm_supervisor.cli.status import _table, others, values
from vllm_supervisor.explain import advice
from vllm_supervisor.learned import Flag
from vllm_supervisor.observe import Condition, ServiceStatus, Setting
from vllm_supervisor.store import Happening, Kind, Pause

PLAIN = ServiceStatus(
    name="a",
    unit="vllm-a.service",
    condition=Condition.READY,
    phase="",
    declared=1024,
    effective=1024,
    learned=(),
    floor=8,
    attempts=0,
    max_attempts=8,
    enabled=True,
    paused=None,
    restarts=0,
    invocation="run1",
    since_us=0,
    last=None,
)
LEARNED = {
    Flag.MAX_NUM_SEQS: Setting("max-num-seqs", 1024, 969),
    Flag.GPU_MEMORY_UTILIZATION: Setting("gpu-memory-utilization", "0.95", 0.93),
    Flag.MAX_MODEL_LEN: Setting("max-model-len", None, 9664),
    Flag.ENFORCE_EAGER: Setting("enforce-eager", None, True),
}
LOWERED = Happening(
    1,
    "a",
    Kind.LOWERED,
    "run1",
    flag="max-num-seqs",
    to=969,
    rule="mamba-blocks",
    advice="raise gpu-memory-utilization",
)
UNDO = "`vllm-supervisor forget a`, then `vllm-supervisor apply`"
START = "`systemctl reset-failed vllm-a.service && systemctl start vllm-a.service`"


def told(status, *rows):
    return "\n".join(advice(status, rows))


@pytest.mark.parametrize(("condition", "flag"), list(product(Condition, [None, *Flag])))
def test_every_condition_and_everything_learned(condition, flag):
    """What was learned can be undone whatever the state; what is down has a way up, and what is up has none."""
    status = replace(PLAIN, condition=condition, learned=(LEARNED[flag],) if flag else ())

    text = told(status)

    assert (f"To undo: {UNDO}" in text) is (bool(flag) or condition is Condition.GIVEN_UP)
    assert (START in text) is (condition is Condition.FAILED)
    assert ("lower remediation.floor, and run `vllm-supervisor apply`" in text) is (condition is Condition.GIVEN_UP)
    assert bool(text) is (bool(flag) or condition in (Condition.FAILED, Condition.GIVEN_UP))


@pytest.mark.parametrize("flag", Flag)
def test_every_learned_value_is_shown(flag):
    """In the table of `status`, each with what was declared."""
    setting = LEARNED[flag]
    status = replace(PLAIN, learned=(setting,), effective=969 if flag is Flag.MAX_NUM_SEQS else PLAIN.effective)
    out = io.StringIO()
    Console(file=out, width=200).print(_table([status]))

    expected = {
        Flag.MAX_NUM_SEQS: "969 (declared: 1024)",
        Flag.GPU_MEMORY_UTILIZATION: "gpu-memory-utilization: 0.93 (declared: 0.95)",
        Flag.MAX_MODEL_LEN: "max-model-len: 9664 (declared: vLLM's default)",
        Flag.ENFORCE_EAGER: "enforce-eager: on (declared: vLLM's default)",
    }
    assert expected[flag] in out.getvalue()
    assert expected[flag] in [*others(status), values(status.declared, status.effective)]


def test_the_advice_is_that_of_the_rule_that_lowered():
    """Found by the value that is in effect, also from before the latest apply; for another value there is none."""
    status = replace(PLAIN, learned=(LEARNED[Flag.MAX_NUM_SEQS],), effective=969)
    applied = Happening(2, "a", Kind.APPLIED)

    assert "raise gpu-memory-utilization (rule mamba-blocks)" in told(status, LOWERED, applied)
    assert "mamba-blocks" not in told(status, replace(LOWERED, to=512), applied)
    assert "mamba-blocks" not in told(PLAIN, LOWERED, applied)


@pytest.mark.parametrize(
    ("attempts", "effective", "expected"),
    [
        (3, 8, "or lower remediation.floor, and"),
        (3, None, "or lower remediation.floor, and"),
        (8, 64, "or raise remediation.max_attempts, and"),
        (8, 8, "or raise remediation.max_attempts and lower remediation.floor, and"),
    ],
)
def test_the_bound_to_move_is_the_one_that_was_reached(attempts, effective, expected):
    """Lowering the floor of a service that has no attempt left changes nothing."""
    status = replace(PLAIN, condition=Condition.GIVEN_UP, attempts=attempts, effective=effective)

    assert expected in told(status)


def test_what_holds_remedies_up():
    """A pause, and a switch in the YAML."""
    assert "until `vllm-supervisor resume --all`" in told(replace(PLAIN, paused=Pause("", 7, "alice")))
    assert "enabled: false" in told(replace(PLAIN, enabled=False))
