"""The logs of the corpus that no machine here could print: public reports, written out in their generation's shape.

`python -m tests.unit.diagnosis.built` writes them to `tests/corpus/RULE/built-NAME.log`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tests.unit.diagnosis.corpus import ROOT
from tests.unit.diagnosis.generations import (
    API,
    CORE,
    GENERATIONS,
    GENERIC,
    captured,
    failed_alone,
    failed_in_workers,
    front_end,
    healthy,
    key_values,
    loading,
    oom,
    opening,
    sampler_v1,
    sampler_v2,
    served,
    trace,
)

G08, G10, G11 = GENERATIONS["0.8"], GENERATIONS["0.10"], GENERATIONS["0.11"]
G12, G20, G26 = GENERATIONS["0.12-0.19"], GENERATIONS["0.20-0.25"], GENERATIONS["0.26-0.33"]
M1 = sampler_v1(1024)[-1]
_LEVELS = re.compile(r"(DEBUG|INFO|WARNING|ERROR) (\d\d-\d\d \d\d:\d\d:\d\d) (\[\w+\.py:\d+\])")
_PREFIX = re.compile(r"\((\w+) pid=(\d+)\) ")

Log = tuple[list[str], dict[str, Any]]


def _raised(g: Any, frames: list[str], last: str | list[str], before: list[str]) -> list[str]:
    """One GPU, after `before`, fails with this traceback."""
    return [*opening(g), *before, *failed_alone(g, trace(frames, last))]


def _front(g: Any, frames: list[str], last: str | list[str]) -> list[str]:
    """The API server fails before it starts an engine."""
    return [*opening(g), *g.printed(g.api, API, trace(frames, last))]


def _terminal(lines: list[str]) -> list[str]:
    """The same lines in a terminal's colours, with a CR at the end."""
    coloured = [_PREFIX.sub("\x1b[0;36m(\\1 pid=\\2)\x1b[0;0m ", line) for line in lines]
    return [_LEVELS.sub("\x1b[31m\\1\x1b[0m \x1b[90m\\2\x1b[0m \x1b[90m\\3\x1b[0m", line) + "\r" for line in coloured]


def _collected(lines: list[str]) -> list[str]:
    """The same lines as a cluster's collector shows them."""
    return [
        f"INFO 2025-11-19T20:16:36.0{n % 10}Z [resource.labels.containerName: vllm] {x}" for n, x in enumerate(lines)
    ]


def _ray(lines: list[str]) -> list[str]:
    """The same lines from an actor of Ray's."""
    return [
        _PREFIX.sub(lambda found: f"(RayWorkerWrapper pid={found[2]}, ip=10.0.0.7) ", line)
        + (" [repeated 30x across cluster]" if "WorkerProc" in line else "")
        for line in lines
    ]


def _unit(*lines: str) -> list[str]:
    return [f"vllm-a.service: {line}" for line in lines]


EXITED = _unit("Main process exited, code=exited, status=1/FAILURE", "Failed with result 'exit-code'.")
KV_FRAMES = ["v1/engine/core.py:_initialize_kv_caches", "v1/core/kv_cache_utils.py:_check_enough_kv_cache_memory"]
LOAD_FRAMES = ["v1/worker/gpu_worker.py:load_model", "model_executor/model_loader/base_loader.py:load_model"]
WARM_FRAMES = ["v1/worker/gpu_worker.py:compile_or_warm_up_model"]
PROFILE_FRAMES = ["v1/worker/gpu_worker.py:determine_available_memory", "v1/worker/gpu_model_runner.py:profile_run"]
PROMPT = (
    "prompt: '<|user|>\\nwhy? (EngineCore pid=1) ERROR 11-29 15:09:08 [core.py:1] {}\\n', params: SamplingParams(n=1)"
)


def _ready_to_sample(g: Any, ranks: int = 1, arguments: str = "'model': 'm'", tokens: int = 8192) -> list[str]:
    return [*opening(g, arguments, tokens), *loading(g, ranks), *key_values(g, ranks), *captured(g, ranks)]


def sampler() -> dict[str, Log]:
    """Where max-num-seqs must be lowered."""
    small = {"tried": "446.00 MiB", "free": "412.75 MiB", "total": "14.57 GiB"}
    v2 = [oom("298.00 MiB", "120.88 MiB", "79.11 GiB", rank) for rank in range(4)]
    eight = [sampler_v1(1024)] * 8
    two = [
        sampler_v1(1024, raw=oom("1.74 GiB", free, "23.57 GiB", n))
        for n, free in enumerate(("605.88 MiB", "594.00 MiB"))
    ]
    glm = [
        sampler_v1(256, raw=oom("304.00 MiB", free, "23.52 GiB", n))
        for n, free in enumerate(("212.00 MiB", "201.00 MiB"))
    ]
    return {
        "sampler-oom/two-ranks": (
            [*_ready_to_sample(G08, 2), *failed_in_workers(G08, two)],
            {"tried": 1024, "phase": "warm-up", "certain": True},
        ),
        "sampler-oom/eight-ranks": (
            [*_ready_to_sample(G08, 8), *failed_in_workers(G08, eight, "WorkerProc hit an exception: %s")],
            {"tried": 1024},
        ),
        "sampler-oom/tp2-glm": ([*_ready_to_sample(G12, 2), *failed_in_workers(G12, glm)], {"tried": 256}),
        "sampler-oom/collector": (
            _collected([*_ready_to_sample(G11), *failed_alone(G11, sampler_v1(256))]),
            {"tried": 256, "phase": "warm-up"},
        ),
        "sampler-oom/ray": (
            _ray([*_ready_to_sample(G12, 2), *failed_in_workers(G12, [sampler_v1(256, raw=oom(**small))] * 2)]),
            {"tried": 256},
        ),
        "sampler-oom/terminal-colours": (
            _terminal([*_ready_to_sample(G12), *failed_alone(G12, sampler_v1(1024))]),
            {"tried": 1024},
        ),
        "sampler-oom/while-profiling": (
            [
                *opening(G12),
                *loading(G12, 8),
                *failed_in_workers(G12, [sampler_v1(1024, "determine_available_memory")] * 8),
            ],
            {"tried": 1024, "phase": "profiling"},
        ),
        "sampler-oom/chain": (
            [
                *_ready_to_sample(G12),
                *failed_alone(G12, sampler_v1(1024)),
                *EXITED,
                *_unit("Scheduled restart job, restart counter is at 1."),
                *_raised(G12, KV_FRAMES, NO_CACHE, [*loading(G12), *key_values(G12, available="-3.32")[:1]]),
                *EXITED,
                *_unit("Scheduled restart job, restart counter is at 2."),
                *_raised(G12, KV_FRAMES, TOO_LONG, loading(G12)),
                *EXITED,
                *_unit("Scheduled restart job, restart counter is at 3."),
                *_ready_to_sample(G12, arguments="'max_num_seqs': 64"),
                *failed_alone(G12, sampler_v1(64)),
            ],
            {"tried": 64, "runs": ["sampler-oom", "no-kv-cache", "context-too-long", "sampler-oom"]},
        ),
        "sampler-oom-frames/tp4-v2": (
            [*_ready_to_sample(G26, 4), *failed_in_workers(G26, [sampler_v2(raw) for raw in v2]), *EXITED],
            {"tried": 1024, "phase": "warm-up", "certain": True},
        ),
        "sampler-oom-frames/small-card-v2": (
            [*_ready_to_sample(G26, tokens=2048), *failed_alone(G26, sampler_v2(oom(**small)))],
            {"tried": 256},
        ),
        "sampler-oom-frames/no-default-line": (
            [
                *[line for line in _ready_to_sample(G26) if "Chunked prefill" not in line],
                *failed_alone(G26, sampler_v2(oom(total="139.80 GiB"))),
            ],
            {"tried": 1024},
        ),
        "sampler-oom-frames/not-over-yet": (
            [*_ready_to_sample(G26), *G26.log(G26.core, CORE, "ERROR", "core.py", "\n".join(sampler_v2(oom())))],
            {"certain": False},
        ),
        "sampler-state-oom/penalties": (
            _raised(
                G26,
                ["v1/worker/gpu/model_runner.py:load_model", "v1/worker/gpu/sample/penalties.py:__init__"],
                oom(),
                loading(G26)[:2],
            ),
            {"tried": 1024, "phase": "loading"},
        ),
        "pooler-oom/embed": (
            [*_ready_to_sample(G11), *failed_alone(G11, sampler_v1(256, what="pooler (task='embed')"))],
            {"tried": 256},
        ),
        "pooler-oom/older": (
            [*_ready_to_sample(G08), *failed_alone(G08, sampler_v1(256, what="pooler"))],
            {"tried": 256},
        ),
        "pooler-oom-frames/raw": (
            _raised(
                G26, [*PROFILE_FRAMES, "v1/worker/gpu/pool/pooling_runner.py:dummy_pooler_run"], oom(), loading(G26)
            ),
            {"tried": 1024, "phase": "profiling"},
        ),
        "mamba-blocks/bound": (
            [*_ready_to_sample(G20)[:-2], *failed_alone(G20, trace(WARM_FRAMES, MAMBA))],
            {"tried": 1024, "bound": 969, "phase": "kv-cache", "certain": True},
        ),
        "mamba-blocks/workers": (
            [*_ready_to_sample(G26, 2)[:-2], *failed_in_workers(G26, [trace(WARM_FRAMES, MAMBA)] * 2)],
            {"tried": 1024, "bound": 969},
        ),
    }


NO_CACHE = (
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing"
)
TOO_LONG = (
    "ValueError: To serve at least one request with the models's max seq len (16384), (1.07 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (0.64 GiB). Based on the available memory, the estimated "
    "maximum model length is 9664. Try increasing `gpu_memory_utilization`"
    " or decreasing `max_model_len` when initializing."
)
MAMBA = (
    "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (969). Each decode sequence requires one "
    "Mamba cache block, so CUDA graph capture cannot proceed. Please lower max_num_seqs to at most 969 or increase "
    "gpu_memory_utilization."
)
BUSY = (
    "ValueError: Free memory on device cuda:0 (58.4/63.98 GiB) on startup is less than desired GPU memory utilization "
    "(0.92, 58.87 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
DISTURBED = (
    "AssertionError: Error in memory profiling. Initial free memory 82.94 GiB, current free memory 90.17 GiB. This "
    "happens when other processes sharing the same container release GPU memory while vLLM is profiling."
)


def memory() -> dict[str, Log]:
    """Memory failures that no lower max-num-seqs cures."""
    warm = "model_executor/warmup/kernel_warmup.py:kernel_warmup"
    at_one = "'max_num_seqs': 1, 'gpu_memory_utilization': 0.98"
    return {
        "gpu-busy/neighbour": (
            _raised(G20, ["v1/worker/gpu_worker.py:init_device", "v1/worker/utils.py:request_memory"], BUSY, []),
            {"fits_utilization": 0.91, "phase": "starting"},
        ),
        "profiling-disturbed/neighbour-ended": (_raised(G20, PROFILE_FRAMES, DISTURBED, loading(G20)), {}),
        "no-kv-cache/two-starts-at-once": (
            _raised(G20, KV_FRAMES, NO_CACHE, [*loading(G20), *key_values(G20, available="-3.21")[:1]]),
            {"kv_available_gib": -3.21},
        ),
        "context-too-long/estimate": (
            _raised(G12, KV_FRAMES, TOO_LONG, loading(G12)),
            {"estimated_tokens": 9664, "missing_gib": 1.07 - 0.64},
        ),
        "oom-kv-cache/small-card": (
            _raised(G12, ["v1/worker/gpu_model_runner.py:initialize_kv_cache"], oom(), loading(G12)),
            {"phase": "kv-cache", "tried": None},
        ),
        "oom-graph-capture/one-sequence": (
            [
                *opening(G26, at_one),
                *loading(G26),
                *key_values(G26, available="2.97"),
                *failed_alone(
                    G26,
                    trace(
                        [*WARM_FRAMES, "v1/worker/gpu_model_runner.py:capture_model"], oom("136.00 MiB", "120.88 MiB")
                    ),
                ),
            ],
            {"phase": "graph-capture", "tried": None},
        ),
        "oom-deep-gemm/expert-parallel": (
            [
                *_ready_to_sample(G12, 8)[:-2],
                *failed_in_workers(
                    G12,
                    [trace([*WARM_FRAMES, warm, "model_executor/warmup/deep_gemm_warmup.py:deep_gemm_warmup"], oom())]
                    * 8,
                ),
            ],
            {},
        ),
        "oom-autotune/fp8": (
            _raised(
                G20,
                [*WARM_FRAMES, warm, "model_executor/warmup/kernel_warmup.py:flashinfer_autotune"],
                oom(),
                loading(G20),
            ),
            {},
        ),
        "oom-compile/inductor": (
            _raised(G12, [*PROFILE_FRAMES, "torch/_inductor/compile_fx.py:compile_fx_inner"], oom(), loading(G12)),
            {},
        ),
        "oom-warm-up/forward": (
            _raised(
                G26,
                [*WARM_FRAMES, "v1/worker/gpu/warmup.py:_warmup_kernels", "gpu_worker.py:execute_model"],
                oom(),
                loading(G26),
            ),
            {"phase": "warm-up", "tried": None},
        ),
        "oom-profile/vision": (
            _raised(G12, [*PROFILE_FRAMES, "v1/worker/gpu_model_runner.py:_dummy_run"], oom("34.43 GiB"), loading(G12)),
            {"phase": "profiling", "tried_gib": 34.43, "tried": None},
        ),
        "oom-weights/v1": (
            [
                *opening(G20),
                *loading(G20)[:1],
                *G20.log(
                    G20.core,
                    CORE,
                    "ERROR",
                    "gpu_model_runner.py",
                    "Failed to load model - not enough GPU memory. Try lowering --gpu-memory-utilization to free "
                    "memory for weights, or using --quantization. (original error: CUDA out of memory.)",
                ),
                *failed_alone(G20, trace(LOAD_FRAMES, oom())),
            ],
            {"phase": "loading"},
        ),
        "oom-weights-frames/rocm": (
            _raised(G12, LOAD_FRAMES, oom(total="19.98 GiB").replace("CUDA", "HIP"), loading(G12)[:1]),
            {"total_gib": 19.98},
        ),
        "oom-weights-frames/xpu": (
            _raised(
                G12,
                LOAD_FRAMES,
                oom(total="15.90 GiB").replace("CUDA", "XPU").replace("GPU 0", "XPU 0"),
                loading(G12)[:1],
            ),
            {"total_gib": 15.9},
        ),
        "oom-unplaced/head-of-two-nodes": (
            [
                *opening(G26),
                *G26.log(
                    G26.core,
                    CORE,
                    "ERROR",
                    "core.py",
                    "EngineCore failed to start.\n"
                    + "\n".join(
                        trace(
                            KV_FRAMES[:1],
                            f"RuntimeError: Worker failed with error '{oom().partition(': ')[2]}', "
                            "please check the stack trace above for the root cause",
                        )
                    ),
                ),
                *front_end(G26),
            ],
            {"tried": None},
        ),
        "oom-unplaced/no-sizes": ([*opening(G12), "RuntimeError: CUDA error: out of memory", GENERIC], {}),
        "oom-serving/long-prompt": (
            [
                *healthy(G20),
                *G20.log(
                    G20.core,
                    CORE,
                    "ERROR",
                    "core.py",
                    "EngineCore encountered a fatal error.\n"
                    + "\n".join(trace(["v1/worker/gpu_worker.py:execute_model"], oom())),
                ),
                *G20.log(G20.api, API, "ERROR", "async_llm.py", "AsyncLLM output_handler failed."),
            ],
            {"ready_before": True, "tried": None},
        ),
        "host-memory/cpu-allocator": (
            _raised(
                G12,
                LOAD_FRAMES,
                "RuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you "
                "tried to allocate 1073741824 bytes. Error code 12 (Cannot allocate memory)",
                loading(G12)[:1],
            ),
            {"asked_bytes": 1073741824},
        ),
        "host-oom/worker-killed": (
            [
                *_ready_to_sample(G26, 2)[:7],
                "Feb 22 06:55:47 gpu01 kernel: Out of memory: Killed process 301 (VLLM::Worker_TP) total-vm:9kB",
                *G26.log(
                    G26.core,
                    CORE,
                    "ERROR",
                    "multiproc_executor.py",
                    "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.",
                ),
                *failed_alone(G26, trace(["core.py:__init__"], "RuntimeError: cancelled")),
                *_unit("A process of this unit has been killed by the OOM killer."),
                *EXITED,
            ],
            {},
        ),
        "worker-died/silently": (
            [
                *_ready_to_sample(G26, 2)[:7],
                *G26.log(
                    G26.core,
                    CORE,
                    "ERROR",
                    "multiproc_executor.py",
                    "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.",
                ),
                *failed_alone(G26, trace(["core.py:__init__"], "RuntimeError: cancelled")),
            ],
            {"exit_code": -9},
        ),
    }


def others() -> dict[str, Log]:
    """Arguments, models, the host."""
    config = ["engine/arg_utils.py:create_engine_config"]
    nccl = "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)"
    ninja = "FileNotFoundError: [Errno 2] No such file or directory: 'ninja'"
    sampling = [
        *WARM_FRAMES,
        "v1/worker/gpu_model_runner.py:_dummy_sampler_run",
        "flashinfer/sampling.py:top_k_top_p_sampling",
    ]
    late = "TimeoutError: Timed out waiting for engine core processes to start. This is often caused by slow weights "
    return {
        "usage/exit-status-only": (
            _unit("Main process exited, code=exited, status=2/INVALIDARGUMENT"),
            {"complete": False},
        ),
        "bad-flag/serve": (
            [
                "vllm serve: error: argument --max-num-seqs: invalid int value: 'many'",
                *_unit("Main process exited, code=exited, status=2/INVALIDARGUMENT"),
            ],
            {},
        ),
        "bad-value/header-only": (
            _front(G12, config, "pydantic_core._pydantic_core.ValidationError: 1 validation error for CacheConfig"),
            {},
        ),
        "too-few-gpus/world-size": (
            _front(
                G20,
                config,
                [
                    "pydantic_core._pydantic_core.ValidationError: 1 validation error for ParallelConfig",
                    "  Value error, World size (16) is larger than the number of available GPUs (8) in it. [type=v]",
                ],
            ),
            {"world_size": 16},
        ),
        "gpu-id/mig": (
            _front(G11, config, "ValueError: invalid literal for int() with base 10: 'MIG-41b36c12-0a4c-5e0b-9d0a'"),
            {},
        ),
        "model-gated/no-token": (
            _front(
                G11,
                config,
                [
                    "OSError: You are trying to access a gated repo.",
                    "Make sure to have access to it at https://huggingface.co/x/y.",
                    "401 Client Error. (Request ID: Root=1-68)",
                ],
            ),
            {},
        ),
        "hub-unreachable/no-network": (
            _front(
                G26,
                config,
                "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find",
            ),
            {},
        ),
        "before-start/probe": (
            _unit("Control process exited, code=exited, status=1/FAILURE", "Failed with result 'exit-code'."),
            {"exit_status": 1},
        ),
        "weights-corrupt/cut-short": (
            _raised(
                G26,
                LOAD_FRAMES,
                "safetensors._safetensors_rust.SafetensorError: Error while deserializing header: "
                "incomplete metadata, file not fully covered",
                loading(G26)[:1],
            ),
            {},
        ),
        "architecture/too-new": (
            _front(
                G11,
                config,
                [
                    "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
                    "  Value error, Model architectures ['NewForCausalLM'] are not supported for now. [type=v]",
                ],
            ),
            {},
        ),
        "trust-remote-code/own-code": (
            _front(
                G11,
                config,
                "ValueError: The repository x/y contains custom code which must be executed to correctly load "
                "the model. You can inspect the repository content at https://hf.co/x/y .\n"
                " You can inspect the repository content at https://hf.co/x/y.\n"
                "Please pass the argument `trust_remote_code=True` to allow custom code to be run.",
            ),
            {},
        ),
        "quantization/fp8-on-ampere": (
            _front(
                G11,
                config,
                "ValueError: The quantization method fp8 is not supported for the current GPU. Minimum "
                "capability: 89. Current capability: 80.",
            ),
            {"capability": 89},
        ),
        "port-in-use/after-startup-complete": (
            [
                *healthy(G11)[:-1],
                *G11.printed(
                    G11.api,
                    API,
                    [
                        "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 80): address",
                        "INFO:     Waiting for application shutdown.",
                        "INFO:     Application shutdown complete.",
                    ],
                ),
            ],
            {"ready": False, "ready_before": False},
        ),
        "port-refused/below-1024": (
            _front(G26, ["utils/network_utils.py:bind"], "PermissionError: [Errno 13] Permission denied"),
            {},
        ),
        "nccl/unhandled-cuda-error": (
            [
                *opening(G20),
                "gpu01:301:301 [0] NCCL WARN Cuda failure 2 'out of memory'",
                *failed_in_workers(
                    G20, [trace(["v1/worker/gpu_worker.py:init_device"], nccl)] * 2, "WorkerProc failed to start."
                ),
            ],
            {"tried": None},
        ),
        "engine-timeout/cold-caches": (
            [
                *opening(G20),
                *loading(G20),
                *G20.printed(
                    G20.api,
                    API,
                    trace(
                        ["v1/engine/core_client.py:__init__"],
                        late + "for large models. Waited 600s (configured by VLLM_ENGINE_READY_TIMEOUT_S).",
                    ),
                ),
            ],
            {"waited_s": 600},
        ),
        "no-gpu/before-the-driver": (
            _front(
                G11,
                ["config/device.py:__post_init__"],
                "RuntimeError: Failed to infer device type, "
                "please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG`",
            ),
            {},
        ),
        "driver/half-upgraded": (
            _front(
                G11,
                ["platforms/cuda.py:get_device_name"],
                "pynvml.NVMLError_LibRmVersionMismatch: Driver/library version mismatch",
            ),
            {},
        ),
        "kernel-fault/rocm-after-warm-up": (
            [
                *_ready_to_sample(G26),
                "Memory access fault by GPU node-1 (Agent handle: 0x5581) on address 0x7f12. Reason: Unknown.",
                *_unit("Main process exited, code=dumped, status=6/ABRT"),
            ],
            {"tried": None},
        ),
        "build-tools/ninja-in-sampler": (
            [*_ready_to_sample(G20), *failed_alone(G20, trace(sampling, ninja))],
            {"tried": None},
        ),
        "build-tools/nvcc-in-warm-up": (
            [
                *_ready_to_sample(G26),
                *failed_alone(
                    G26,
                    trace(
                        [
                            *WARM_FRAMES,
                            "v1/worker/gpu/warmup.py:warmup_kernels",
                            "v1/worker/gpu/model_runner.py:sample_tokens",
                        ],
                        "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist",
                    ),
                ),
            ],
            {"tried": None},
        ),
        "install/undefined-symbol": (
            [
                "Traceback (most recent call last):",
                '  File "/opt/vllm/bin/vllm", line 5, in <module>',
                "    from vllm.entrypoints.cli.main import main",
                "ImportError: /opt/vllm/lib/python3.12/site-packages/vllm/_C.abi3.so: undefined symbol: _ZN3c104cuda9",
            ],
            {},
        ),
        "disk-full/downloading": (
            _raised(G12, LOAD_FRAMES, "OSError: [Errno 28] No space left on device", loading(G12)[:1]),
            {},
        ),
        "no-permission/no-home": (_front(G11, config, "PermissionError: [Errno 13] Permission denied: '/.cache'"), {}),
        "cannot-execute/no-such-file": (
            _unit("Main process exited, code=exited, status=203/EXEC", "Failed with result 'exit-code'."),
            {"exit_status": 203},
        ),
        "start-timeout/long-load": (
            [
                *opening(G26),
                *loading(G26)[:3],
                *_unit("Main process exited, code=killed, status=9/KILL", "Failed with result 'timeout'."),
            ],
            {"phase": "loading"},
        ),
        "crashed/segfault": (
            [
                *opening(G26),
                *_unit("Main process exited, code=dumped, status=11/SEGV", "Failed with result 'core-dump'."),
            ],
            {},
        ),
        "killed/by-hand": (
            [
                *opening(G26),
                *loading(G26),
                *_unit("Main process exited, code=killed, status=9/KILL", "Failed with result 'signal'."),
            ],
            {},
        ),
        "unknown/new-words": (
            _raised(G26, LOAD_FRAMES, "ValueError: the flux capacitor is not charged", loading(G26)[:1]),
            {"phase": "loading"},
        ),
        "unknown/while-serving": (
            ["Starting vllm-a.service - vLLM a...", *healthy(G26), *_unit("Deactivated successfully.")],
            {"ready_before": True},
        ),
        "unknown/silent": (
            [*opening(G26), *loading(G26)[:3], *EXITED],
            {"phase": "loading", "complete": False},
        ),
        "stopped/while-loading": (
            [
                "Starting vllm-a.service - vLLM a...",
                *opening(G26),
                *loading(G26)[:2],
                "Stopping vllm-a.service - vLLM a...",
                *failed_alone(G26, sampler_v1(512)),
                *_unit("Main process exited, code=killed, status=9/KILL", "Failed with result 'timeout'."),
            ],
            {"tried": None},
        ),
        "engine-died/exit-status-0": (
            [
                "Starting vllm-a.service - vLLM a...",
                *healthy(G12),
                *G12.log(
                    G12.api,
                    API,
                    "ERROR",
                    "async_llm.py",
                    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an "
                    "issue. See stack trace (above) for the root cause.",
                ),
                *G12.printed(
                    G12.api,
                    API,
                    ["INFO:     Application shutdown complete.", "INFO:     Finished server process [101]"],
                ),
                *_unit("Deactivated successfully."),
            ],
            {"ready_before": True, "complete": True},
        ),
    }


def harmless() -> dict[str, Log]:
    """Logs with the trigger words and without a failure."""
    ask = "Received request chatcmpl-1: "
    return {
        **{f"none/healthy-{name}": (healthy(g), {"ready": True}) for name, g in GENERATIONS.items()},
        "none/prompt-quotes-the-sentence": (
            [*healthy(G11), *G11.log(G11.api, API, "INFO", "logger.py", ask + PROMPT.format(M1))],
            {"ready": True},
        ),
        "none/prompt-holds-a-traceback": (
            [
                *healthy(G26),
                *G26.log(G26.api, API, "INFO", "logger.py", ask + "prompt: 'look:"),
                *G26.log(G26.api, API, "INFO", "logger.py", "\n".join([*sampler_v1(512), *sampler_v2(oom()), GENERIC])),
            ],
            {"ready": True},
        ),
        "none/model-streams-a-traceback": (
            [*healthy(G26), *sampler_v1(512), *failed_alone(G26, sampler_v2(oom()))],
            {"ready": True},
        ),
        "none/trigger-words": (
            [
                *opening(G10),
                *loading(G10),
                *G10.log(
                    G10.core,
                    CORE,
                    "INFO",
                    "gpu_worker.py",
                    "Free memory on device (22.45/23.99 GiB) on startup. Desired GPU memory "
                    "utilization is (0.85, 20.39 GiB). Replace gpu_memory_utilization with `--kv-cache-memory=1`",
                ),
                *G10.log(
                    G10.core,
                    CORE,
                    "INFO",
                    "model_runner.py",
                    "Capturing cudagraphs for decoding. If out-of-memory error occurs "
                    "during cudagraph capture, consider decreasing `gpu_memory_utilization`. Or reduce `max_num_seqs`",
                ),
                *G10.log(
                    G10.core,
                    CORE,
                    "INFO",
                    "model_runner.py",
                    "CUDA graphs can take additional 1~3 GiB memory per GPU. If you are "
                    "running out of memory, consider decreasing `gpu_memory_utilization` or enforcing eager mode.",
                ),
                *G10.log(
                    G10.core,
                    CORE,
                    "WARNING",
                    "profiling.py",
                    "The sequence length used for profiling (max_num_batched_tokens / "
                    "max_num_seqs = 8192) is too short; reduce `max_num_seqs`, and/or reduce `mm_counts`.",
                ),
                *G10.log(
                    G10.core,
                    CORE,
                    "WARNING",
                    "sampler.py",
                    "FlashInfer top-p/top-k sampling unavailable: out of memory",
                ),
                "[Autotuner]: OOM detected, falling back to default tactic",
                *key_values(G10),
                *captured(G10),
                *served(G10),
            ],
            {"ready": True},
        ),
        "none/request-failed": (
            [
                *healthy(G20),
                *G20.log(
                    G20.api,
                    API,
                    "ERROR",
                    "serving_chat.py",
                    "\n".join(
                        [
                            "Error in preprocessing prompt inputs",
                            *trace(["entrypoints/openai/serving_chat.py:create"], "ValueError: too long"),
                        ]
                    ),
                ),
            ],
            {"ready": True},
        ),
        "none/lines-suppressed": (
            [*opening(G20), *loading(G20), "Suppressed 2481 messages from vllm-a.service", *served(G20)],
            {"ready": True, "complete": False},
        ),
        "none/signalled-while-serving": (
            [
                "Starting vllm-a.service - vLLM a...",
                *healthy(G26),
                *G26.log(G26.api, API, "INFO", "launcher.py", "[shutdown] API server: shutdown triggered"),
                *G26.log(G26.api, API, "ERROR", "async_llm.py", "AsyncLLM output_handler failed."),
                *_unit("Deactivated successfully."),
            ],
            {"ready": True},
        ),
        "none/still-loading": ([*opening(G20), *loading(G20)[:2]], {"ready": False}),
    }


def logs() -> dict[str, Log]:
    """All of them: `RULE/NAME`, the lines, and what is expected besides the rule."""
    return {**sampler(), **memory(), **others(), **harmless()}


def write() -> None:
    """Put them into the corpus."""
    for name, (lines, expected) in logs().items():
        rule, _, case = name.partition("/")
        path = ROOT / rule / f"built-{case}.log"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(line + "\n" for line in lines), newline="")
        if expected:
            path.with_name(path.stem + ".expect.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    write()
