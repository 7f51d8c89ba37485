"""A sandbox with a real vLLM in /opt/vllm, its models in /opt/models, and what is done to it in /opt/faults.

The paths are the same wherever the cache and the clone are, so that logs from here can be kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.real.install import RealVllm
from tests.sandbox import Sandbox

VLLM = "/opt/vllm/bin/vllm"
HERE = Path(__file__).parent


def stage(box: Sandbox, vllm: RealVllm) -> None:
    """Put an installed vLLM in its place; nothing that is written there reaches the cache."""
    ours = {f"/opt/{name}": HERE / name for name in ("faults", "interpreter")}
    for place, source in {"/opt/vllm": vllm.home, "/opt/models": vllm.models, **ours}.items():
        box.run(["mkdir", "-p", place], check=True)
        box.run(["mount", "--bind", str(source), place], check=True)
    program = box.read(VLLM).splitlines(keepends=True)
    box.write(VLLM, "".join(["#!/opt/vllm/bin/python\n", *program[1:]]), mode=0o755)


def environment(fault: str = "", *, runner: str = "v1") -> dict[str, Any]:
    """What a vLLM for CPUs needs to start like one on a GPU, and a fault for `memory_faults`."""
    # The newer runner's kernels are all Triton's. The older one does without on a CPU, and must not find a Triton.
    new = {"PYTHONPATH": "/opt/faults:/opt/interpreter", "TRITON_INTERPRET": 1, "VLLM_USE_V2_MODEL_RUNNER": 1}
    return {
        "HF_HUB_OFFLINE": 1,
        "OMP_NUM_THREADS": 2,
        "PYTHONPATH": "/opt/faults",
        "VLLM_CPU_KVCACHE_SPACE": 1,
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": 0,  # lets it keep the executor `uni`, which is what one GPU has
        "VLLM_NO_USAGE_STATS": 1,
        "VLLM_USE_V2_MODEL_RUNNER": 0,
        **(new if runner == "v2" else {}),
        **({"FAULT": fault} if fault else {}),
    }


def arguments(*, runner: str = "v1", **more: Any) -> dict[str, Any]:
    """Flags for a quick start; `max_model_len=64` is `max-model-len: 64`."""
    # The warm-up of the newer runner is left out where everything is eager.
    quick = {"enforce-eager": True} if runner == "v1" else {"compilation-config": {"mode": 0, "cudagraph_mode": "NONE"}}
    return {
        "served-model-name": "tiny",
        "max-model-len": 512,
        "max-num-batched-tokens": 2048,
        "distributed-executor-backend": "uni",
        **quick,
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
