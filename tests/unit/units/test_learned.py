"""What a unit shows that was learned is read back as it was rendered, and only from a unit as it was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_supervisor.config import Service
from vllm_supervisor.units import Cap, Host, fingerprint, learned, render

HOST = Host(252, ("/usr/bin/vllm-supervisor",))
REASON = "2026-11-29 03:12:45: 512 sequences did not fit; trying 256 (attempt 2 of 8), no, --x 3 instead of 4: x"


def unit(cap, **settings):
    service = Service.model_validate(
        {"name": "a", "model": "o/m", "executable": "/opt/vllm/bin/vllm", "source": Path("/etc/x.yaml"), **settings}
    )
    return render(service, cap, HOST, fingerprint=fingerprint(service, "0.32.0"), after=[]), fingerprint(
        service, "0.32.0"
    )


@pytest.mark.parametrize(
    "cap",
    [
        pytest.param(Cap({"max-num-seqs": 256}, REASON), id="max-num-seqs"),
        pytest.param(Cap({"max-num-seqs": 1, "gpu-memory-utilization": 0.93}, REASON), id="and-another"),
        pytest.param(
            Cap({"enforce-eager": True, "gpu-memory-utilization": 0.9, "max-model-len": 4096}, REASON),
            id="others",
        ),
    ],
)
@pytest.mark.parametrize("settings", [{}, {"max_num_seqs": 1024, "arguments": {"gpu-memory-utilization": 0.95}}])
def test_it_comes_back(cap, settings):
    text, print_ = unit(cap, **settings)

    assert learned(text) == (print_, cap)


def test_what_the_operator_declared_is_not_taken_for_learned():
    """Neither where nothing was learned, nor where the declared value is the lower one."""
    assert learned(unit(None, max_num_seqs=256)[0]) is None
    assert learned(unit(Cap({"max-num-seqs": 512}, REASON), max_num_seqs=256)[0]) is None


def test_a_unit_that_was_changed_by_hand_tells_nothing():
    text, _ = unit(Cap({"max-num-seqs": 256}, REASON))

    assert learned(text.replace("--max-num-seqs 256", "--max-num-seqs 16")) is None
