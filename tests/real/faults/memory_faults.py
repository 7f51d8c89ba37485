"""A vLLM plugin: a start on a CPU takes a GPU's steps, and runs out of memory where it is told to.

FAULT=PHASE:MIB makes the first tensor of PHASE that is larger than MIB fail, as if no free block of the card were
larger, with the error that torch's allocator for CUDA raises. All that follows is vLLM's own: what it catches, prints,
and how it ends.

load      loading the weights
profile   the forward pass that measures memory
measure   the sampler, at the end of that pass
kv        making the KV cache
graph     capturing CUDA graphs; there are none on a CPU, so it fails at once
sampler   the sampler, warmed up once the KV cache is there
serve     a forward pass once the service is ready

vLLM finds it by the entry point beside it on PYTHONPATH, and calls `register` in each of its processes.
"""

from __future__ import annotations

import functools
import importlib
import os
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MIB = 1 << 20
CARD_GIB = 79.25  # an H100's, as torch prints it
FAULT, _, _free = os.environ.get("FAULT", "").partition(":")
FREE = int(float(_free or 0) * MIB)


class Moment:
    """Where the start of this process is: the outermost of vLLM's steps that this module knows."""

    now = "load"


class Card(TorchDispatchMode):
    """Refuses a tensor larger than `FREE` bytes, at the operation that makes it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {tensor.untyped_storage()._cdata for tensor in _tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage._cdata not in known and storage.nbytes() > FREE:
                refuse(storage.nbytes())
        return result


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


def refuse(size: int) -> None:
    """Fail as c10/cuda/CUDACachingAllocator.cpp does, on a card that is full but for `FREE` bytes."""
    used = CARD_GIB - FREE / (1 << 30)
    raise torch.OutOfMemoryError(
        f"CUDA out of memory. Tried to allocate {size / MIB:.2f} MiB. GPU 0 has a total capacity of {CARD_GIB} GiB of "
        f"which {FREE / MIB:.2f} MiB is free. Including non-PyTorch memory, this process has {used:.2f} GiB memory in "
        f"use. Of the allocated memory {used - 1:.2f} GiB is allocated by PyTorch, and 412.08 MiB is reserved by "
        "PyTorch but unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory "
        "Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html"
        "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )


def _card(phase: str | None) -> Any:
    return Card() if phase == FAULT else nullcontext()


def wrap(cls: type, name: str, **phases: str) -> None:
    """Have `cls.name` run on the card when its phase is at fault: the one that `phases` names for the moment."""
    original = getattr(cls, name)

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _card(phases.get(Moment.now)):
            return original(self, *args, **kwargs)

    setattr(cls, name, call)


def during(cls: type, name: str, moment: str, after: str) -> None:
    """Have `Moment.now` tell when `cls.name` runs, and when it has run."""
    original = getattr(cls, name)

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        Moment.now = moment
        result = original(self, *args, **kwargs)
        Moment.now = after
        return result

    setattr(cls, name, call)


def capture_model(*_: Any, **__: Any) -> None:
    """Stand in for capturing CUDA graphs."""
    refuse(20 * MIB)


def take_the_steps_of_a_gpu(worker: type) -> None:
    """Profile always, and warm up after the KV cache is there: a worker for CPUs leaves out both."""
    gpu = importlib.import_module("vllm.v1.worker.gpu_worker")
    gpu.kernel_warmup = lambda *_: None  # tunes kernels that only GPUs have
    worker.compile_or_warm_up_model = gpu.Worker.compile_or_warm_up_model
    measure = worker.determine_available_memory

    def determine_available_memory(self: Any) -> int:
        self.model_runner.profile_run()
        return measure(self)

    worker._should_warm_up_model = lambda _: False
    worker.determine_available_memory = determine_available_memory


def follow(worker: type) -> None:
    """Know the moment from the worker's own methods."""
    during(worker, "determine_available_memory", "profile", "kv")
    during(worker, "compile_or_warm_up_model", "sampler", "serve")


def skip_while_measuring(runner: type) -> None:
    """Leave the sampler out of the pass that measures memory: it prints nothing, and takes a CPU half a minute."""
    original = runner._dummy_sampler_run

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return None if Moment.now == "profile" else original(self, *args, **kwargs)

    runner._dummy_sampler_run = call


def prepare(runner: type) -> None:
    """Put the steps of one of the model runners on the card."""
    if FAULT != "measure":
        skip_while_measuring(runner)
    wrap(runner, "load_model", load="load")
    wrap(runner, "_dummy_run", profile="profile")
    wrap(runner, "initialize_kv_cache", kv="kv")
    wrap(runner, "execute_model", serve="serve")
    if FAULT == "graph":
        runner.capture_model = capture_model


def avoid_what_cannot_be_interpreted() -> None:
    """Sort instead of running Triton's top-k kernel, and leave out the grammar's mask, which allows all in warm-up."""
    sampling = importlib.import_module("vllm.v1.sample.ops.topk_topp_sampler")
    sampling.HAS_TRITON = False
    grammar = importlib.import_module("vllm.v1.worker.gpu.structured_outputs")
    grammar.StructuredOutputsWorker.apply_grammar_bitmask = lambda *_: None


def prepare_all() -> None:
    """Change vLLM in a process that has a worker."""
    worker = importlib.import_module("vllm.v1.worker.cpu_worker").CPUWorker
    take_the_steps_of_a_gpu(worker)
    follow(worker)
    if os.environ["VLLM_USE_V2_MODEL_RUNNER"] == "1":
        avoid_what_cannot_be_interpreted()
        prepare(importlib.import_module("vllm.v1.worker.cpu.model_runner").CPUModelRunner)
        sampler, method = importlib.import_module("vllm.v1.worker.gpu.sample.sampler").Sampler, "__call__"
    else:
        runners = importlib.import_module("vllm.v1.worker.cpu_model_runner")
        runners.CPUModelRunner.load_model = runners.GPUModelRunner.load_model  # says more, also of weights too large
        prepare(runners.CPUModelRunner)
        sampler, method = importlib.import_module("vllm.v1.sample.sampler").Sampler, "forward"
    wrap(sampler, method, profile="measure", sampler="sampler")


def register() -> None:
    """Wait until a worker is there, just made: its modules want to be imported in their own order."""
    base = importlib.import_module("vllm.v1.worker.worker_base").WorkerWrapperBase
    original = base.init_device

    @functools.wraps(original)
    def init_device(self: Any, *args: Any, **kwargs: Any) -> Any:
        prepare_all()
        return original(self, *args, **kwargs)

    base.init_device = init_device
