"""What one tensor-parallel rank does while the service starts."""

from __future__ import annotations

import time
from typing import Any

from vllm_supervisor.simulator import failures, memory
from vllm_supervisor.simulator.failures import VllmError
from vllm_supervisor.simulator.flags import version
from vllm_supervisor.simulator.log import Log
from vllm_supervisor.simulator.start import Start

_GRAPHS = 67  # captured of each kind up to 512 sequences


class Rank:
    """One rank's share of the work, in the calls vLLM's executor makes; each may raise `VllmError`.

    Args:
        start: what is being started.
        number: the rank, which is also its card.
        log: where its process writes.
    """

    def __init__(self, start: Start, number: int, log: Log) -> None:
        self._start = start
        self._number = number
        self._log = log
        self._fault, _, self._argument = start.settings.fault.partition(":")
        self._facts = _facts(start)

    def init_device(self) -> None:
        """Join the other ranks and look at the card."""
        self._write("world")
        if self._fault == "no-gpu":
            raise failures.no_gpu()
        if self._fault == "free-memory":
            named = version(self._start.settings.vllm_version) >= (0, 14, 1)
            raise failures.free_memory(
                self._start.layout, self._start.service.utilization, gpu=self._number, names_device=named
            )
        self._start.pause("device")
        self._write("rank")
        self._write_first("runner-v2" if self._is_v2 else "")

    def load_model(self) -> None:
        """Read the shards; the first rank shows how far it is."""
        began = time.monotonic()
        self._write_first(self._versioned("load-start"))
        self._write_first("attention")
        if self._fault == "unknown-error":
            raise failures.unknown_error((self._versioned("load"),))
        if self._fault == "load-oom":
            raise self._load_failure()
        shards = self._start.settings.shards
        for shard in range(shards + 1):
            if self._number == 0:
                self._log.error([_shard_bar(shard, shards, time.monotonic() - began)])
            if shard < shards:
                time.sleep(self._start.seconds("load") / shards)
        if self._number == 0:
            self._log.error([""])
        self._write("weights", seconds=time.monotonic() - began)
        self._write_first(self._versioned("loaded"), seconds=time.monotonic() - began)

    def determine_available_memory(self) -> None:
        """Run the forward pass once and measure."""
        began = time.monotonic()
        if self._fault == "profile-oom":
            raise self._out_of_memory(self._versioned("profile"))
        if self._fault == "memory-profiling":
            raise failures.memory_profiling(self._start.layout)
        self._start.pause("profile")
        self._write_first("compile", seconds=time.monotonic() - began)
        if not self._start.service.enforce_eager:
            self._write_first("graph-estimate")
        self._write_first("available")

    def initialize_from_config(self) -> None:
        """Allocate the KV cache."""
        if self._fault == "kv-oom":
            raise self._out_of_memory("allocate")
        if self._fault == "mamba" and self._start.service.max_num_seqs > int(self._argument):
            raise failures.mamba_blocks(self._start.service.max_num_seqs, int(self._argument))
        self._start.pause("allocate")

    def prepare_warm_up(self) -> None:
        """The first part of vLLM's `compile_or_warm_up_model`, up to the sampler's first allocation.

        A call of its own, since the ranks arrive there together: on real cards collectives keep them in step.
        """
        if not self._start.service.enforce_eager:  # which turns it off
            self._write_first("jit-warmup", seconds=self._start.seconds("warm-up"))
        if not self._warms_up_first:
            self._capture()
            self._write_first("free-memory")
        self._start.pause("warm-up")
        if self._number == 0 and self._warm_up_failure() is not None:
            self._log.flood(self._start.settings.flood)

    def compile_or_warm_up_model(self) -> None:
        """The rest of it: allocate the sampler's buffers, and capture graphs where that comes last."""
        failure = self._warm_up_failure()
        if failure is not None:
            raise failure
        if self._warms_up_first:
            self._capture()

    @property
    def _warms_up_first(self) -> bool:
        return self._is_v2 and self._start.generation.warms_up_first

    @property
    def _is_v2(self) -> bool:
        return self._start.runner == "v2"

    def _versioned(self, key: str) -> str:
        return f"{key}-v2" if self._is_v2 else key

    def _capture(self) -> None:
        if self._start.service.enforce_eager:
            return
        if self._fault == "graph-oom":
            raise self._out_of_memory(self._versioned("graph"))
        began, kinds = time.monotonic(), ("(mixed prefill-decode, PIECEWISE)", "(decode, FULL)")
        for kind in kinds:
            for done in (0, _GRAPHS // 2, _GRAPHS):
                if self._number == 0:
                    self._log.bar(_graph_bar(kind, done, _GRAPHS))
                time.sleep(self._start.seconds("capture") / len(kinds) / 3)
            if self._number == 0:
                self._log.bar("\n")
        self._write_first("capture", seconds=time.monotonic() - began)

    def _warm_up_failure(self) -> VllmError | None:
        """What goes wrong, if anything; with eager execution runner v2 skips it and pays at the first request."""
        start, layout = self._start, self._start.layout
        if self._is_v2 and start.service.enforce_eager:
            return None
        place = "sampler-top-k-top-p-v2" if self._is_v2 else "sampler-other"
        if self._fault == "ninja-missing":
            return failures.ninja_missing((place,))
        if self._fault == "illegal-access":
            return failures.illegal_access((place,))
        shortage = memory.first_shortage(layout)
        if shortage is None:
            return None
        if start.service.pooling:
            named = version(start.settings.vllm_version) >= (0, 10)
            return failures.pooler_shortage(layout, shortage, gpu=self._number, task="embed", names_task=named)
        return failures.sampler_shortage(layout, shortage, gpu=self._number, runner=start.runner)

    def _load_failure(self) -> VllmError:
        failure = self._out_of_memory(self._versioned("load"))
        if not self._is_v2:
            self._write("load-oom", error=failure.text)
        return failure

    def _out_of_memory(self, section: str) -> VllmError:
        """Torch's error where 2 GiB are asked of a card with 213 MiB left."""
        return failures.out_of_memory(
            (section,), self._start.layout, 2 * memory.GIB, 213 * memory.MIB, gpu=self._number
        )

    def _write(self, key: str, **values: Any) -> None:
        self._log.write(key, **self._facts, **values, rank=self._number)

    def _write_first(self, key: str, **values: Any) -> None:
        """Write what vLLM writes once per node."""
        if self._number == 0:
            self._write(key, **values)


def _facts(start: Start) -> dict[str, Any]:
    """The values that log lines of ranks quote."""
    layout, gib = start.layout, memory.GIB
    return {
        "model": start.service.model,
        "tensor_parallel_size": start.service.tensor_parallel_size,
        "utilization": start.service.utilization,
        "total_gib": layout.card.capacity / gib,
        "startup_free_gib": layout.card.capacity / gib - 0.52,  # a context of 0.52 GiB is there before vLLM looks
        "requested_gib": layout.budget / gib,
        "weights_gib": layout.card.weights / gib,
        "peak_gib": layout.peak / gib,
        "graph_gib": layout.graphs / gib,
        "kv_cache_gib": layout.kv_cache / gib,
        "kv_cache_bytes": layout.kv_cache,
        "graphs": _GRAPHS,
        "largest_graph": min(2 * start.service.max_num_seqs, 512),
    }


def _shard_bar(done: int, total: int, elapsed_s: float) -> str:
    """One step of tqdm's bar; its format ends in a newline and begins with a carriage return."""
    rate = done / elapsed_s if elapsed_s > 0 else 0.0
    if not done:
        left, pace = "?", "?it/s"
    else:
        left = _clock((total - done) / rate)
        pace = f"{rate:5.2f}it/s" if rate >= 1 else f"{1 / rate:5.2f}s/it"
    percent = 100 * done // total
    steps = f"{percent:3d}% Completed | {done}/{total} [{_clock(elapsed_s)}<{left}, {pace}]"
    return f"\rLoading safetensors checkpoint shards: {steps}"


def _graph_bar(kind: str, done: int, total: int) -> str:
    """One step of an ordinary tqdm bar, redrawn in place."""
    return f"\rCapturing CUDA graphs {kind}: {100 * done // total:3d}%|{'█' * (10 * done // total):10}| {done}/{total}"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"
