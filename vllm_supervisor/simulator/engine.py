"""The engine: brings the ranks up, reports, and stays until it is stopped or dies."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Any

from vllm_supervisor.simulator import failures, memory
from vllm_supervisor.simulator.executor import Executor, InProcess, Workers, initialization_failed
from vllm_supervisor.simulator.failures import VllmError
from vllm_supervisor.simulator.flags import version
from vllm_supervisor.simulator.processes import Terminated
from vllm_supervisor.simulator.start import Start

_SIGNALS_LAND_S = 0.05  # a stop of the whole group reaches workers and engine within this


class Engine:
    """The engine's process.

    Args:
        start: what to start.
        report: descriptor to tell the main process on: `workers PID...`, then `ready`, and `dead` when a request
            kills it.
    """

    def __init__(self, start: Start, report: int) -> None:
        self._start = start
        self._report = report
        self._log = start.log(start.generation.core if start.generation.names_every_process else "")
        self._ranks: Executor | None = None
        self._doing: tuple[str, ...] = ()

    def run(self) -> int:
        """Live the whole life of the engine; the exit code."""
        try:
            ranks = self._bring_up()
        except VllmError as failure:
            return self._give_up(failure)
        except Terminated:
            return self._give_up(self._interrupted())
        try:
            if self._start.settings.fault != "engine-timeout":
                self._tell("ready")
            return self._serve(ranks)
        except Terminated:
            self._log.write("stop-core")
            ranks.close(self._log)
            return 0

    def _bring_up(self) -> Executor:
        began = time.monotonic()
        start = self._start
        self._log.write("core-start", **_facts(start))
        if start.service.workers:
            self._log.write("dp-leader", **_facts(start))
        ranks = self._ranks = (Workers if start.service.workers else InProcess)(start, self._log)
        self._tell(f"workers {' '.join(map(str, ranks.workers))}")
        self._call(ranks, "init_device", "core-device-uni")
        self._call(ranks, "load_model", "core-load-uni")
        self._call(ranks, "determine_available_memory", "core-profile")
        self._size_kv_cache()
        self._call(ranks, "initialize_from_config", "core-allocate")
        self._call(ranks, "prepare_warm_up", "core-warm-up")
        self._call(ranks, "compile_or_warm_up_model", "core-warm-up")
        self._log.write("init-done", seconds=time.monotonic() - began)
        return ranks

    def _call(self, ranks: Executor, name: str, *outer: str) -> None:
        self._doing = outer
        ranks.call(name, *outer)

    def _size_kv_cache(self) -> None:
        service, layout = self._start.service, self._start.layout
        fault, tokens = self._start.settings.fault, layout.kv_tokens
        release = version(self._start.settings.vllm_version)
        newest = release >= (0, 32)  # seen in 0.32.0 and not in 0.21.0; the releases between were not looked at
        if layout.kv_cache <= 0 or fault == "kv-none":
            raise failures.no_kv_cache(newest=newest)
        if tokens < service.max_model_len or fault == "context-too-long":
            fits = min(tokens, service.max_model_len // 2)
            owner = "model's" if release >= (0, 22, 1) else "models's"
            raise failures.context_too_long(layout, service.max_model_len, fits, possessive=owner, newest=newest)
        self._log.write(
            "kv-cache",
            kv_cache_tokens=tokens,
            max_model_len=service.max_model_len,
            concurrency=tokens / service.max_model_len,
        )

    def _interrupted(self) -> VllmError:
        if self._doing in ((), ("core-device-uni",), ("core-load-uni",)):
            return initialization_failed()
        return VllmError((*self._doing, "rpc-cancelled"), "RuntimeError: cancelled")

    def _give_up(self, failure: VllmError) -> int:
        """Report a failed start as the engine does, twice, and end."""
        wording = self._start.wording
        self._log.write("core-failed", failure.lines(wording))
        if self._ranks is not None:
            self._ranks.close(self._log)
        again = failure.within("process").lines(wording)
        self._log.error([f"Process {self._start.generation.core}:", *again])
        return 1

    def _serve(self, ranks: Executor) -> int:
        """Stay until a worker dies or the time to die has come; the exit code."""
        dead = ranks.dead_workers(self._start.settings.die_after_s)
        if dead:
            time.sleep(_SIGNALS_LAND_S)
            self._log.write("worker-died", rank=dead[0], exit_code=-9)
        elif self._start.settings.die_how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            self._log.write("core-fatal", self._request_failure().lines(self._start.wording))
            self._tell("dead")
        ranks.close(self._log)
        return 1

    def _request_failure(self) -> VllmError:
        inner = ("execute-model",)
        layout = self._start.layout
        failure = failures.out_of_memory(inner, layout, 1536 * memory.MIB, 412 * memory.MIB, gpu=0)
        if self._start.service.workers:
            return failures.worker_failed(("core-serve", "rpc-failed"), failure.text)
        return failure.within("core-serve", "rpc-uni")

    def _tell(self, message: str) -> None:
        with suppress(BrokenPipeError):  # the main process may be gone; the engine stays, as the real one does
            os.write(self._report, f"{message}\n".encode())


def _facts(start: Start) -> dict[str, Any]:
    service = start.service
    return {
        "version": start.settings.vllm_version,
        "model": service.model,
        "max_model_len": service.max_model_len,
        "tensor_parallel_size": service.tensor_parallel_size,
        "enforce_eager": service.enforce_eager,
        "served_model_name": service.served_names[0],
    }
