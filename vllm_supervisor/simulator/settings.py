"""What the environment asks the simulator to pretend.

Every variable begins with `SIM_`; all of them are optional, and without any the start succeeds.

| variable | default | meaning |
| --- | --- | --- |
| `SIM_VLLM_VERSION` | 0.32.0 | release to imitate: wording, prefixes, defaults; the nearest older known one is used |
| `SIM_RUNNER` | by release | `v1` or `v2`: the model runner; v2 has no sentence of its own for sampler warm-up |
| `SIM_GPU_NAME` | NVIDIA H100 80GB HBM3 | name of each card; one with "A100" in it gets the small defaults |
| `SIM_GPU_GIB` | 79.25 | capacity of each card as torch prints it; 70 and more get the large defaults |
| `SIM_WEIGHTS_GIB` | 16 | weights of all tensor-parallel ranks together |
| `SIM_ACTIVATION_GIB` | 2 | peak of the profiled forward pass, on each rank |
| `SIM_GRAPH_GIB` | 0.4 | CUDA graphs captured up to 512 sequences, on each rank |
| `SIM_OUTSIDE_GIB` | 0.6 | in use on each card but not in vLLM's budget: context, NCCL, fragments, neighbours |
| `SIM_KV_BYTES` | 65536 | bytes of KV cache per token, on each rank |
| `SIM_VOCABULARY` | 151936 | vocabulary entries |
| `SIM_SAMPLER_BYTES` | by release | each buffer of the sampler: bytes per sequence and vocabulary entry, e.g. `4,4,4` |
| `SIM_MODEL_LEN` | 131072 | the model's own context, used when `--max-model-len` is not given |
| `SIM_SHARDS` | 8 | checkpoint shards |
| `SIM_START_S` | 3 | seconds a whole start takes, two thirds of it in the shards |
| `SIM_FAULT` | none | a failure other than the sampler's, see `failures.py` |
| `SIM_FLOOD` | 0 | lines rank 0 prints just before the warm-up's error |
| `SIM_READY_TIMEOUT_S` | 600 | how long the main process waits for a dead engine after a stop it swallowed |
| `SIM_IGNORE_TERM` | 0 | 1: no process reacts to SIGTERM |
| `SIM_DIE_AFTER_S` | never | seconds between ready and the death of the engine |
| `SIM_DIE_HOW` | oom | `oom`: out of memory in a request; `kill`: SIGKILL to the engine |
| `SIM_LOG_REQUESTS` | 0 | 1: prompts are logged, as `--enable-log-requests` does at vLLM's debug level |

Scenarios, each a name, its variables, and the arguments after the model; they hold for every release and both runners:

    seed         SIM_VOCABULARY=200064 SIM_WEIGHTS_GIB=214 SIM_KV_BYTES=63488 SIM_GRAPH_GIB=0.2 SIM_OUTSIDE_GIB=3.1
                 SIM_SAMPLER_BYTES=4,4,4 --tensor-parallel-size 4 --max-model-len 131072 --gpu-memory-utilization 0.95
    single-card  SIM_GPU_GIB=23.57 SIM_WEIGHTS_GIB=14.2 SIM_ACTIVATION_GIB=1.4 SIM_KV_BYTES=57344 SIM_OUTSIDE_GIB=1
                 SIM_SAMPLER_BYTES=4,4,4 --max-model-len 8192 --gpu-memory-utilization 0.9
    exhausted    SIM_GPU_GIB=23.57 SIM_WEIGHTS_GIB=14.2 SIM_ACTIVATION_GIB=1.4 SIM_KV_BYTES=57344 SIM_OUTSIDE_GIB=2.353
                 SIM_SAMPLER_BYTES=4,4,4 --max-model-len 8192 --gpu-memory-utilization 0.9

`seed` fails at the default and at 512, and serves at 256. `single-card` fails at 1024 and serves at 512; with
`--runner pooling` it is the pooler that fails. `exhausted` fails at 8 and above.

Of vLLM's own variables it honours `NO_COLOR` (where the release does) and `VLLM_KEEP_ALIVE_ON_ENGINE_DEATH`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from vllm_supervisor.simulator.failures import FAULTS


class SettingsError(ValueError):
    """A `SIM_` variable the simulator cannot use."""


class Settings(NamedTuple):
    """The pretended hardware and behaviour; amounts in GiB, bytes and seconds as the names say.

    A named tuple and not a dataclass: sixty-four of these programs may start at once on two cores, and importing
    `dataclasses` costs more than all the rest of the start.
    """

    vllm_version: str = "0.32.0"
    runner: str = ""
    gpu_name: str = "NVIDIA H100 80GB HBM3"
    gpu_gib: float = 79.25
    weights_gib: float = 16.0
    activation_gib: float = 2.0
    graph_gib: float = 0.4
    outside_gib: float = 0.6
    kv_bytes: int = 65536
    vocabulary: int = 151936
    sampler_bytes: tuple[float, ...] = ()
    model_len: int = 131072
    shards: int = 8
    start_s: float = 3.0
    fault: str = ""
    flood: int = 0
    ready_timeout_s: float = 600.0
    ignore_term: bool = False
    die_after_s: float | None = None
    die_how: str = "oom"
    log_requests: bool = False


def from_environment(environ: Mapping[str, str]) -> Settings:
    """Read the `SIM_` variables.

    Raises:
        SettingsError: one of them is unknown, or its value has the wrong form.
    """
    values: dict[str, Any] = {}
    for name, text in environ.items():
        if not name.startswith("SIM_"):
            continue
        field = name.removeprefix("SIM_").lower()
        if field not in Settings._fields:
            raise SettingsError(f"cannot use {name}: there is no such setting")
        try:
            values[field] = _READERS.get(field, str)(text)
        except (ValueError, OSError) as error:
            raise SettingsError(f"cannot use {name}={text}: {error}") from error
    return Settings(**values)


def _one_of(*allowed: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"it is none of {', '.join(allowed)}")
        return text

    return read


def _amounts(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _switch(text: str) -> bool:
    return _one_of("0", "1")(text) == "1"


def _fault(fault: str) -> str:
    name, colon, count = fault.partition(":")
    if (name and name not in FAULTS) or bool(colon) != (name == "mamba") or not (count.isdecimal() or not colon):
        raise ValueError(f"{fault} is no failure it knows")
    return fault


_READERS: dict[str, Callable[[str], Any]] = {
    "runner": _one_of("v1", "v2"),
    "gpu_gib": float,
    "weights_gib": float,
    "activation_gib": float,
    "graph_gib": float,
    "outside_gib": float,
    "kv_bytes": int,
    "vocabulary": int,
    "sampler_bytes": _amounts,
    "model_len": int,
    "shards": int,
    "start_s": float,
    "fault": _fault,
    "flood": int,
    "ready_timeout_s": float,
    "ignore_term": _switch,
    "die_after_s": float,
    "die_how": _one_of("oom", "kill"),
    "log_requests": _switch,
}
