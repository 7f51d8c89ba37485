"""Ranks behind one interface: in the engine's own process, or in processes of their own."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from vllm_supervisor.simulator import failures, processes
from vllm_supervisor.simulator.failures import VllmError
from vllm_supervisor.simulator.log import Log
from vllm_supervisor.simulator.rank import Rank
from vllm_supervisor.simulator.start import Start

_GRACE_S = 0.3  # what a worker gets to end by itself before it is killed

# Calls made while a worker is built, before it answers remote calls; and the worker's frames above them.
_BEFORE_RPC = {"init_device": "worker-device", "load_model": "worker-load"}


class Executor(Protocol):
    """The calls the engine makes on all ranks at once."""

    workers: tuple[int, ...]

    def call(self, name: str, *outer: str) -> None:
        """Run a method of every rank; a `VllmError` carries `outer`, the engine's frames above the call."""

    def dead_workers(self, wait_s: float | None) -> list[int]:
        """Ranks whose process has ended, looked for during `wait_s` seconds (None: until there is one)."""

    def close(self, log: Log) -> None:
        """End the workers."""


class InProcess:
    """The one rank of a service without tensor parallelism, inside the engine."""

    workers: tuple[int, ...] = ()

    def __init__(self, start: Start, log: Log) -> None:
        self._rank = Rank(start, 0, log)

    def call(self, name: str, *outer: str) -> None:
        """Run a method of the rank."""
        try:
            getattr(self._rank, name)()
        except VllmError as failure:
            raise failure.within(*outer, *(() if name in _BEFORE_RPC else ("rpc-uni",))) from None

    def dead_workers(self, wait_s: float | None) -> list[int]:
        """There are none; sleep."""
        time.sleep(wait_s) if wait_s is not None else signal.pause()
        return []

    def close(self, log: Log) -> None:
        """Nothing to end."""


class _Worker(NamedTuple):
    pid: int
    commands: int  # descriptor to write to
    replies: int  # descriptor to read from


class Workers:
    """Ranks as processes of their own, each with a pipe for commands and one for replies."""

    def __init__(self, start: Start, log: Log) -> None:
        self._workers = [_spawn(start, rank) for rank in range(start.service.tensor_parallel_size)]
        self.workers = tuple(worker.pid for worker in self._workers)
        self._start = start
        self._log = log

    def call(self, name: str, *outer: str) -> None:
        """Run a method of every rank and wait for all of them; the first failure is the one the engine raises."""
        for worker in self._workers:
            with suppress(BrokenPipeError):
                os.write(worker.commands, f"{name}\n".encode())
        answers = [_receive(worker.replies) for worker in self._workers]
        failed = [answer for answer in answers if answer != "ok"]
        if not failed:
            return
        if name in _BEFORE_RPC:
            raise initialization_failed()
        texts = [answer for answer in failed if answer is not None]
        if not texts:
            raise VllmError((*outer, "rpc-cancelled"), "RuntimeError: cancelled")
        raise failures.worker_failed((*outer, "rpc-failed"), texts[0])

    def dead_workers(self, wait_s: float | None) -> list[int]:
        """Ranks whose end of the pipe is closed."""
        ready, _, _ = select.select([worker.replies for worker in self._workers], [], [], wait_s)
        return [rank for rank, worker in enumerate(self._workers) if worker.replies in ready]

    def close(self, log: Log) -> None:
        """Close the workers' pipes, and kill those that do not end of that."""
        log.write("stop-executor", tensor_parallel_size=len(self._workers))
        for worker in self._workers:
            os.close(worker.commands)
        deadline = time.monotonic() + _GRACE_S
        for worker in self._workers:
            while os.waitpid(worker.pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > deadline:
                    os.kill(worker.pid, signal.SIGKILL)
                time.sleep(0.005)


def initialization_failed() -> VllmError:
    """What the engine raises when a worker ended before it could be called."""
    return VllmError(
        ("core-workers",),
        "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for "
        "root cause.",
    )


def _spawn(start: Start, rank: int) -> _Worker:
    command_end, commands = os.pipe()
    replies, reply_end = os.pipe()
    several = start.service.tensor_parallel_size > 1
    pid = processes.fork(
        lambda: _run_worker(start, rank, command_end, reply_end),
        title=f"VLLM::Worker_TP{rank}" if several else "VLLM::Worker",
        keep=(command_end, reply_end),
        ignore_term=start.settings.ignore_term,
    )
    os.close(command_end)
    os.close(reply_end)
    return _Worker(pid, commands, replies)


def _run_worker(start: Start, number: int, commands: int, replies: int) -> int:
    several = start.service.tensor_parallel_size > 1
    log = start.log(start.generation.worker.format(rank=number) if several else "Worker")
    rank = Rank(start, number, log)
    try:
        while command := _receive_line(commands):
            answer = _answer(start, log, command, getattr(rank, command))
            with suppress(BrokenPipeError):
                os.write(replies, f"{json.dumps(answer)}\n".encode())
            if answer != "ok" and command in _BEFORE_RPC:
                return 1
    except processes.Terminated:
        log.write("worker-terminated")
        return 1
    log.write("parent-exited")
    return 0


def _answer(start: Start, log: Log, command: str, method: Callable[[], Any]) -> str:
    """Run one command and report what went wrong, in the log as well."""
    try:
        method()
    except VllmError as failure:
        if command in _BEFORE_RPC:
            log.write("worker-not-started", failure.lines(start.wording, _BEFORE_RPC[command]))
        else:
            lines = failure.lines(start.wording, "worker-rpc")
            again = [*lines, ""] if start.generation.repeats_as_note else []
            log.write("worker-failed", [*lines, *again])
        return failure.text
    return "ok"


def _receive(descriptor: int) -> str | None:
    """One answer, or None when the worker has ended."""
    line = _receive_line(descriptor)
    return json.loads(line) if line else None


def _receive_line(descriptor: int) -> str:
    """One line without its newline; empty at the end of the pipe."""
    data = b""
    while not data.endswith(b"\n"):
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            return ""
        data += piece
    return data.decode().rstrip("\n")
