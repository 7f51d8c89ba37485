"""How a start fails: the exception with its frames, and the failures that `SIM_FAULT` selects.

| `SIM_FAULT` | phase | ends in |
| --- | --- | --- |
| `bad-path` | configuration | the model is no directory and no repository |
| `no-gpu` | device | no CUDA device |
| `free-memory` | device | someone else holds the card |
| `load-oom` | loading | the weights do not fit |
| `unknown-error` | loading | an error no one has seen before |
| `profile-oom` | profiling | the forward pass does not fit |
| `memory-profiling` | profiling | someone else gave memory back meanwhile |
| `kv-none` | KV cache | nothing is left for it |
| `context-too-long` | KV cache | one request of full length does not fit |
| `kv-oom` | KV cache | its allocation fails |
| `mamba:N` | KV cache | more than N sequences asked of N state blocks |
| `graph-oom` | graph capture | a graph does not fit |
| `ninja-missing` | warm-up | the sampler's kernel cannot be built; same frames as out of memory there |
| `illegal-access` | warm-up | the sampler's kernel crashes; same frames again |
| `engine-timeout` | ready | the engine never reports |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vllm_supervisor.simulator import memory
from vllm_supervisor.simulator.wording import Wording, chained

FAULTS = (
    "bad-path", "no-gpu", "free-memory", "load-oom", "unknown-error", "profile-oom", "memory-profiling", "kv-none",
    "context-too-long", "kv-oom", "mamba", "graph-oom", "ninja-missing", "illegal-access", "engine-timeout",
)  # fmt: skip

_CUDA_ADVICE = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nDevice-side assertion tracking was not enabled "
    "by user."
)


class Traceback(NamedTuple):
    """Sections of frames, outermost first, and the exception as Python prints it: `Class: text`."""

    frames: tuple[str, ...]
    error: str


class VllmError(Exception):
    """An exception of the imitated program."""

    def __init__(self, frames: Sequence[str], error: str, *, cause: Traceback | None = None) -> None:
        super().__init__(error)
        self.traceback = Traceback(tuple(frames), error)
        self.cause = cause

    @property
    def text(self) -> str:
        """The exception's own text, without its class."""
        return self.traceback.error.partition(": ")[2]

    def lines(self, wording: Wording, *outer: str) -> list[str]:
        """The traceback, with further sections of frames around it."""
        effect = wording.traceback((*outer, *self.traceback.frames), self.traceback.error)
        return chained(wording.traceback(*self.cause), effect) if self.cause else effect

    def within(self, *outer: str) -> VllmError:
        """The same failure as it looks from further out."""
        return VllmError((*outer, *self.traceback.frames), self.traceback.error, cause=self.cause)


def out_of_memory(frames: Sequence[str], layout: memory.Layout, asked: int, free: int, *, gpu: int) -> VllmError:
    """Torch's error for an allocation in a place where nothing turns it into a sentence of vLLM's."""
    text = memory.out_of_memory(layout, memory.Shortage(0, asked, free, 0), gpu=gpu)
    return VllmError(frames, f"torch.OutOfMemoryError: {text}")


def no_gpu() -> VllmError:
    """Torch finds no device."""
    return VllmError(("no-device",), "RuntimeError: No CUDA GPUs are available")


def free_memory(layout: memory.Layout, utilization: float, *, gpu: int, names_device: bool) -> VllmError:
    """Someone else holds 60 % of the card."""
    gib = memory.GIB
    device = f" cuda:{gpu}" if names_device else ""
    return VllmError(
        ("device",),
        f"ValueError: Free memory on device{device} ({0.4 * layout.card.capacity / gib:.2f}/"
        f"{layout.card.capacity / gib:.2f} GiB) on startup is less than desired GPU memory utilization ({utilization}, "
        f"{layout.budget / gib:.2f} GiB). Decrease GPU memory utilization or reduce GPU memory used by other "
        "processes.",
    )


def memory_profiling(layout: memory.Layout) -> VllmError:
    """Someone else gave 4 GiB back while the forward pass was measured."""
    free = layout.card.capacity / memory.GIB - 6
    return VllmError(
        ("memory-profiling",),
        f"AssertionError: Error in memory profiling. Initial free memory {free:.2f} GiB, current free memory "
        f"{free + 4:.2f} GiB. This happens when other processes sharing the same container release GPU memory while "
        "vLLM is profiling during initialization. To fix this, ensure consistent GPU memory allocation or isolate "
        "vLLM in its own container.",
    )


def no_kv_cache(*, newest: bool) -> VllmError:
    """Weights and activations take the whole budget; newer releases explain the flag."""
    aside = " (this flag also controls CPU memory reservation on the CPU backend, despite its name)" if newest else ""
    return VllmError(
        ("core-check",),
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        f"initializing the engine{aside}. See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more "
        "details.",
    )


def context_too_long(
    layout: memory.Layout, max_model_len: int, tokens: int, *, possessive: str, newest: bool
) -> VllmError:
    """The KV cache holds `tokens`, fewer than one request of full length needs.

    Older releases write "models's", newer ones explain the flag.
    """
    aside = " (which also controls CPU memory on the CPU backend)" if newest else ""
    per_token = layout.card.kv_per_token / memory.GIB
    return VllmError(
        ("core-check",),
        f"ValueError: To serve at least one request with the {possessive} max seq len ({max_model_len}), "
        f"({max_model_len * per_token:.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
        f"({tokens * per_token:.2f} GiB). Based on the available memory, the estimated maximum model length is "
        f"{tokens}. Try increasing `gpu_memory_utilization`{aside} or decreasing `max_model_len` when initializing the "
        "engine. See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details.",
    )


def mamba_blocks(max_num_seqs: int, blocks: int) -> VllmError:
    """More sequences than state blocks."""
    return VllmError(
        ("mamba",),
        f"ValueError: max_num_seqs ({max_num_seqs}) exceeds available Mamba cache blocks ({blocks}). Each decode "
        "sequence requires one Mamba cache block, so CUDA graph capture cannot proceed. Please lower max_num_seqs to "
        f"at most {blocks} or increase gpu_memory_utilization.",
    )


def ninja_missing(frames: Sequence[str]) -> VllmError:
    """A kernel that is built at first use, and no ninja on PATH: common under systemd."""
    return VllmError((*frames, "kernel-build"), "FileNotFoundError: [Errno 2] No such file or directory: 'ninja'")


def illegal_access(frames: Sequence[str]) -> VllmError:
    """A crash of a kernel."""
    return VllmError(
        frames, f"torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n{_CUDA_ADVICE}"
    )


def unknown_error(frames: Sequence[str]) -> VllmError:
    """An error that matches nothing known."""
    return VllmError(frames, "RuntimeError: the weights of layer 17 have drifted to the left")


def worker_failed(frames: Sequence[str], text: str) -> VllmError:
    """What the engine raises when a worker's call came back with an exception of that text."""
    return VllmError(
        frames,
        f"RuntimeError: Worker failed with error '{text}', please check the stack trace above for the root cause",
    )


def sampler_shortage(layout: memory.Layout, shortage: memory.Shortage, *, gpu: int, runner: str) -> VllmError:
    """Sampler warm-up out of memory: a sentence with the number of sequences, or (runner v2) torch's error alone."""
    error = f"torch.OutOfMemoryError: {memory.out_of_memory(layout, shortage, gpu=gpu)}"
    step = "sampler-cast" if shortage.buffer == 0 else "sampler-top-k-top-p"
    if runner == "v2":
        return VllmError((f"{step}-v2",), error)
    return VllmError(
        ("sampler",), _sentence("sampler", layout.sequences), cause=Traceback(("sampler-call", step), error)
    )


def pooler_shortage(
    layout: memory.Layout, shortage: memory.Shortage, *, gpu: int, task: str, names_task: bool
) -> VllmError:
    """Pooler warm-up out of memory."""
    error = f"torch.OutOfMemoryError: {memory.out_of_memory(layout, shortage, gpu=gpu)}"
    what = f"pooler (task='{task}')" if names_task else "pooler"
    return VllmError(("pooler",), _sentence(what, layout.sequences), cause=Traceback(("pooler-call",), error))


def _sentence(what: str, sequences: int) -> str:
    return (
        f"RuntimeError: CUDA out of memory occurred when warming up {what} with {sequences} dummy requests. Please try "
        "lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
    )
