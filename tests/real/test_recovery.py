"""The main job with the real vLLM: it runs out of memory in sampler warm-up, and comes up at a lower value."""

from __future__ import annotations

import json

import pytest

from tests.live.fleet import Fleet
from tests.real.machine import arguments, environment

# The largest tensor of the sampler has 8 bytes for each sequence and token: 782 MiB and 4 MiB at 512 sequences.
ROOM = {"v1": ("tiny", "sampler:500"), "v2": ("tiny-context", "sampler:3")}


@pytest.mark.parametrize("runner", ROOM)
def test_1024_512_256_ready(fleet: Fleet, runner: str) -> None:
    """On either model runner: two failed starts, a third that serves, and a completion from it."""
    model, fault = ROOM[runner]
    service = {
        "model": f"/opt/models/{model}",
        "host": "127.0.0.1",
        "max_num_seqs": 1024,
        "environment": environment(fault, runner=runner),
        "arguments": arguments(runner=runner),
    }
    fleet.configure({"tiny": service})
    fleet.start_daemon()

    print(fleet.supervisor("apply", timeout=900))

    assert fleet.steps("tiny") == [(1024, 512), (512, 256)]
    assert "--max-num-seqs 256" in fleet.unit("tiny")
    assert fleet.status()["tiny"]["condition"] == "ready"
    body = json.dumps({"model": "tiny", "prompt": "hello", "max_tokens": 4, "ignore_eos": True})
    url = "http://127.0.0.1:8000/v1/completions"
    answer = fleet.box.run(
        ["curl", "-sf", url, "-H", "Content-Type: application/json", "-d", body], check=True, timeout=120
    )
    assert json.loads(answer.stdout)["usage"]["completion_tokens"] == 4
    print(fleet.supervisor("history", "tiny"))
