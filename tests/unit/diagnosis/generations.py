"""Builds logs as each generation of vLLM writes them: prefixes, colours, banner, markers, a failure's chain.

The shapes follow vLLM's sources of the releases named, and public reports; where a real log of a release is in the
corpus, the shape was compared with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

GENERIC = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
TORCH_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried}. GPU {gpu} has a total capacity of {total} "
    "of which {free} is free. Including non-PyTorch memory, this process has 78.84 GiB memory in use. Of the allocated "
    "memory 77.76 GiB is allocated by PyTorch, and 185.98 MiB is reserved by PyTorch but unallocated."
)


@dataclass(frozen=True)
class Generation:
    """One way of writing.

    Attributes:
        version: the release that writes so.
        core: the engine's name in the prefix, "" when it has none.
        api: the front end's name, "" when it has none.
        worker: the name of rank N.
        colour: True when the prefix is coloured even in a pipe.
        bare: True when lines past the logger have no prefix.
        header: how file and line are written.
    """

    version: str
    core: str = "EngineCore"
    api: str = "APIServer"
    worker: str = "Worker_TP{rank}"
    colour: bool = False
    bare: bool = False
    header: str = "[{file}:{number}]"

    def prefix(self, name: str, pid: int) -> str:
        """What stands before a line of this process."""
        if not name:
            return ""
        shown = f"({name} pid={pid})"
        return f"\x1b[0;36m{shown}\x1b[0;0m " if self.colour else f"{shown} "

    def log(self, name: str, pid: int, level: str, file: str, text: str) -> list[str]:
        """A record: each of its lines with prefix and header, as the logger writes it."""
        at = self.header.format(file=file, number=len(file) * 7)
        return [f"{self.prefix(name, pid)}{level} 11-29 15:09:08 {at} {line}" for line in text.split("\n")]

    def printed(self, name: str, pid: int, lines: Iterable[str]) -> list[str]:
        """Lines past the logger."""
        before = "" if self.bare else self.prefix(name, pid)
        return [before + line for line in lines]


GENERATIONS = {
    "0.6": Generation("0.6.4.post1", core="", api="", worker="", header="{file}:{number}]"),
    "0.8": Generation("0.8.5", core="", api="", worker="VllmWorker rank={rank}", colour=True),
    "0.9": Generation("0.9.2", core="", api="", worker="VllmWorker rank={rank}", colour=True),
    "0.10": Generation("0.10.2", core="EngineCore_0", colour=True),
    "0.11": Generation("0.11.0", core="EngineCore_DP0", colour=True),
    "0.12-0.19": Generation("0.17.1", core="EngineCore_DP0"),
    "0.20-0.25": Generation("0.21.0"),
    "0.26-0.33": Generation("0.33.0", bare=True),
}

API, CORE, FIRST_WORKER = 101, 202, 300


def opening(generation: Generation, arguments: str = "'model': '/opt/models/m'", tokens: int = 8192) -> list[str]:
    """Banner to configuration."""
    g = generation
    banner = f"vLLM API server version {g.version}"
    if g.version >= "0.15" and not g.version.startswith(("0.6", "0.8", "0.9")):
        banner = f" ▄▄ ▄█ █     █     █ ▀▄▀ █  version {g.version}"
    return [
        *g.log(g.api, API, "INFO", "api_server.py", banner),
        *g.log(g.api, API, "INFO", "api_utils.py", "non-default args: {" + arguments + "}"),
        *g.log(g.api, API, "INFO", "model.py", "Using max model len 131072"),
        *g.log(g.api, API, "INFO", "scheduler.py", f"Chunked prefill is enabled with max_num_batched_tokens={tokens}."),
        *g.log(g.core, CORE, "INFO", "core.py", f"Initializing a V1 LLM engine (v{g.version}) with config: model='m'"),
    ]


def loading(generation: Generation, ranks: int = 1) -> list[str]:
    """The weights."""
    g = generation
    lines = []
    for rank in range(ranks):
        name, pid = _worker(g, rank, ranks)
        lines += g.log(name, pid, "INFO", "gpu_model_runner.py", "Starting to load model m...")
    name, pid = _worker(g, 0, ranks)
    lines += g.printed(
        name,
        pid,
        [
            f"\rLoading safetensors checkpoint shards: {n:3}% Completed | {n}/100 [00:0{n // 50}<00:01, 9.5it/s]"
            for n in (0, 50, 100)
        ],
    )
    return lines + g.log(name, pid, "INFO", "gpu_model_runner.py", "Model loading took 72.0200 GiB and 41.2 seconds")


def key_values(generation: Generation, ranks: int = 1, available: str = "5.35") -> list[str]:
    """Profile and KV cache."""
    g = generation
    name, pid = _worker(g, 0, ranks)
    return [
        *g.log(name, pid, "INFO", "gpu_worker.py", f"Available KV cache memory: {available} GiB"),
        *g.log(g.core, CORE, "INFO", "kv_cache_utils.py", "GPU KV cache size: 643,232 tokens"),
    ]


def captured(generation: Generation, ranks: int = 1) -> list[str]:
    """CUDA graphs."""
    g = generation
    name, pid = _worker(g, 0, ranks)
    bars = "\r".join(
        f"Capturing CUDA graphs (decode, FULL): {n:3}%|██| {n}/67 [00:0{n // 30}<00:01]" for n in (0, 30, 67)
    )
    return [
        *g.printed(name, pid, ["\r" + bars]),
        *g.log(name, pid, "INFO", "gpu_model_runner.py", "Graph capturing finished in 23 secs, took 2.37 GiB"),
    ]


def served(generation: Generation) -> list[str]:
    """Up to a served request."""
    g = generation
    return [
        *g.log(g.core, CORE, "INFO", "core.py", "init engine (profile, create kv cache, warmup model) took 60.2 s"),
        *g.log(g.api, API, "INFO", "entry.py", "Starting vLLM server on http://0.0.0.0:8000"),
        *g.printed(
            g.api,
            API,
            [
                "INFO:     Started server process [101]",
                "INFO:     Waiting for application startup.",
                "INFO:     Application startup complete.",
                'INFO:     127.0.0.1:59376 - "GET /health HTTP/1.1" 200 OK',
            ],
        ),
    ]


def healthy(generation: Generation, ranks: int = 1) -> list[str]:
    """A whole good start."""
    g = generation
    return [*opening(g), *loading(g, ranks), *key_values(g, ranks), *captured(g, ranks), *served(g)]


def trace(frames: Sequence[str], last: str | Sequence[str]) -> list[str]:
    """A traceback of `file.py:function` frames, with the source lines Python prints under them."""
    lines = ["Traceback (most recent call last):"]
    for frame in frames:
        file, _, function = frame.partition(":")
        lines += [
            f'  File "/opt/vllm/lib/python3.12/site-packages/vllm/{file}", line 41, in {function}',
            "    return f(x)",
        ]
    return [*lines, *([last] if isinstance(last, str) else last)]


def failed_alone(generation: Generation, cause: list[str]) -> list[str]:
    """One GPU: everything happens in the engine's process; `cause` is its traceback."""
    g = generation
    return [
        *g.log(g.core, CORE, "ERROR", "core.py", "EngineCore failed to start.\n" + "\n".join(cause)),
        *g.printed(g.core, CORE, ["Process EngineCore:", *cause]),
        *front_end(g),
    ]


def failed_in_workers(
    generation: Generation, causes: Sequence[list[str]], says: str = "WorkerProc hit an exception."
) -> list[str]:
    """Several GPUs: each rank prints its traceback, the engine repeats what they raised; ranks interleave."""
    g = generation
    blocks = []
    for rank, cause in enumerate(causes):
        name, pid = _worker(g, rank, len(causes))
        blocks.append(g.log(name, pid, "ERROR", "multiproc_executor.py", says + "\n" + "\n".join(cause)))
    message = causes[0][-1].partition(": ")[2]
    relayed = (
        f"RuntimeError: Worker failed with error '{message}', please check the stack trace above for the root cause"
    )
    engine = trace(["core.py:_initialize_kv_caches", "abstract.py:determine_available_memory"], relayed)
    return [
        *_interleave(blocks),
        *g.log(g.core, CORE, "ERROR", "core.py", "EngineCore failed to start.\n" + "\n".join(engine)),
        *g.printed(g.core, CORE, ["Process EngineCore:", *engine]),
        *front_end(g),
    ]


def front_end(generation: Generation) -> list[str]:
    """What the API server says of any failed start, and Python on its way out."""
    g = generation
    return [
        *g.printed(g.api, API, trace(["cli/main.py:main", "engine/utils.py:wait_for_engine_startup"], GENERIC)),
        "/usr/lib/python3.12/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to",
        "  warnings.warn('resource_tracker: There appear to be %d '",
    ]


def oom(tried: str = "781.50 MiB", free: str = "418.50 MiB", total: str = "79.25 GiB", gpu: int = 0) -> str:
    """What torch says."""
    return TORCH_OOM.format(tried=tried, free=free, total=total, gpu=gpu)


def sampler_v1(seqs: int, where: str = "compile_or_warm_up_model", raw: str = "", what: str = "sampler") -> list[str]:
    """Model runner V1's two tracebacks."""
    sentence = (
        f"RuntimeError: CUDA out of memory occurred when warming up {what} with {seqs} dummy requests. Please try "
        "lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
    )
    function = "_dummy_sampler_run" if what == "sampler" else "_dummy_pooler_run_task"
    return [
        *trace([f"v1/worker/gpu_model_runner.py:{function}", "v1/sample/sampler.py:forward"], raw or oom()),
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        *trace([f"v1/worker/gpu_worker.py:{where}", f"v1/worker/gpu_model_runner.py:{function}"], sentence),
    ]


def sampler_v2(raw: str) -> list[str]:
    """Model runner V2's only one."""
    return trace(
        [
            "v1/executor/multiproc_executor.py:worker_busy_loop",
            "v1/worker/gpu_worker.py:compile_or_warm_up_model",
            "v1/worker/gpu_worker.py:_compile_or_warm_up_model",
            "v1/worker/gpu/warmup.py:warmup_kernels",
            "v1/worker/gpu/warmup.py:_warmup_kernels",
            "v1/worker/gpu_worker.py:sample_tokens",
            "v1/worker/gpu/model_runner.py:sample_tokens",
            "v1/worker/gpu/model_runner.py:sample",
            "v1/worker/gpu/sample/sampler.py:__call__",
            "v1/sample/ops/topk_topp_sampler.py:flashinfer_sample",
        ],
        raw,
    )


def _worker(g: Generation, rank: int, ranks: int) -> tuple[str, int]:
    """Name and pid of a rank; with one GPU the engine does the work."""
    return (g.core, CORE) if ranks == 1 else (g.worker.format(rank=rank), FIRST_WORKER + rank)


def _interleave(blocks: list[list[str]]) -> list[str]:
    """Lines of several processes as they reach one pipe: in runs of three, turn about."""
    lines, position = [], 0
    while any(position < len(block) for block in blocks):
        for block in blocks:
            lines += block[position : position + 3]
        position += 3
    return lines
