"""How releases of vLLM differ in behaviour; how they differ in wording is in `generations/*.txt`."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from vllm_supervisor.simulator.flags import version


class Prefix(Enum):
    """Which lines carry `(NAME pid=N) ` in front, and in which colours."""

    WORKERS_COLOURED = "every line of worker processes only, in colour even when not on a terminal"
    LINES_COLOURED = "every line of every process, in colour unless NO_COLOR is set"
    LINES = "every line of every process, plain"
    LOGGED = "only lines that vLLM's logger writes, plain"


class Generation(NamedTuple):
    """One release whose behaviour is known; `vllm_version` in between two falls back on the older one."""

    release: str
    prefix: Prefix
    core: str  # the engine's name in the prefix, and of its process
    worker: str  # a worker's name in the prefix, with TP above 1
    runner: str  # the model runner used by default
    utilization: float  # default of --gpu-memory-utilization
    counts_graphs: bool  # CUDA graphs are taken out of the budget before the KV cache is sized
    spares_a100: bool  # cards named A100 get the small defaults in spite of their size
    dead_core_status: int  # of GET /health once the engine is dead
    sampler_bytes: tuple[float, ...]  # buffers of the sampler after the logits, per sequence and vocabulary entry
    names_every_process: bool  # main process and engine carry names in the prefix too
    names_failed_cores: bool  # "Failed core proc(s)" after the last sentence
    warms_up_first: bool  # runner v2 warms up before it captures graphs
    repeats_as_note: bool  # a worker's traceback is logged twice: once more as the exception's note


_SORT = (4, 4, 8, 12)  # fp32 copy, sorted values, int64 indices, scratch of the sort
_FUSED = (4, 4, 4)  # fp32 copy, masked probabilities, noise

_GENERATIONS = (
    Generation(
        "0.8.5", Prefix.WORKERS_COLOURED, "EngineCore", "VllmWorker rank={rank}", "v1", 0.9,
        counts_graphs=False, spares_a100=False, dead_core_status=500, sampler_bytes=_SORT,
        names_every_process=False, names_failed_cores=False, warms_up_first=False, repeats_as_note=False,
    ),
    Generation(
        "0.12.0", Prefix.LINES_COLOURED, "EngineCore_DP0", "Worker_TP{rank}", "v1", 0.9,
        counts_graphs=False, spares_a100=True, dead_core_status=503, sampler_bytes=_SORT,
        names_every_process=True, names_failed_cores=True, warms_up_first=False, repeats_as_note=True,
    ),
    Generation(
        "0.21.0", Prefix.LINES, "EngineCore", "Worker_TP{rank}", "v1", 0.92,
        counts_graphs=True, spares_a100=True, dead_core_status=503, sampler_bytes=_FUSED,
        names_every_process=True, names_failed_cores=True, warms_up_first=False, repeats_as_note=True,
    ),
    Generation(
        "0.32.0", Prefix.LOGGED, "EngineCore", "Worker_TP{rank}", "v2", 0.92,
        counts_graphs=True, spares_a100=True, dead_core_status=503, sampler_bytes=_FUSED,
        names_every_process=True, names_failed_cores=True, warms_up_first=True, repeats_as_note=True,
    ),
)  # fmt: skip


def generation(vllm_version: str) -> Generation:
    """The newest known release that is not newer than `vllm_version`, or the oldest known one."""
    wanted = version(vllm_version)
    return max(
        (known for known in _GENERATIONS if version(known.release) <= wanted),
        key=lambda known: version(known.release),
        default=_GENERATIONS[0],
    )
