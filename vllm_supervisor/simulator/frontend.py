"""The main process: takes the port, starts the engine, waits for it, serves, and handles signals as vLLM does.

Signals, as measured on real servers:

- before the engine is started: a traceback, and death by SIGINT;
- while it starts: the first is swallowed and the start goes on; if the engine dies of it, or of anything else, the main
  process does not notice and waits for `SIM_READY_TIMEOUT_S`; a second one ends it, by SIGINT;
- once ready: see `server.py`.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from contextlib import suppress
from typing import NoReturn

from vllm_supervisor.simulator import processes
from vllm_supervisor.simulator.api import Api
from vllm_supervisor.simulator.engine import Engine
from vllm_supervisor.simulator.flags import CommandLine
from vllm_supervisor.simulator.generations import Generation
from vllm_supervisor.simulator.log import Log
from vllm_supervisor.simulator.server import Server
from vllm_supervisor.simulator.service import ValidationError, resolve, validate
from vllm_supervisor.simulator.settings import Settings
from vllm_supervisor.simulator.start import Start, plan
from vllm_supervisor.simulator.wording import Wording

_BACKLOG = 2048  # uvicorn's
_LEAKED = (
    "/usr/lib/python3.12/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 2 "
    "leaked shared_memory objects to clean up at shutdown\n"
    "  warnings.warn('resource_tracker: There appear to be %d '"
)


class Frontend:
    """One `vllm serve`, from its command line to its exit code."""

    def __init__(self, line: CommandLine, settings: Settings, generation: Generation, wording: Wording) -> None:
        self._settings = settings
        self._generation = generation
        self._service = resolve(line, settings, generation)
        name = "APIServer" if generation.names_every_process else ""
        self._log = Log(wording, generation.prefix, name, debug=settings.log_requests)
        self._wording = wording
        self._events = selectors.DefaultSelector()
        self._signals = processes.Signals(ignore_term=settings.ignore_term)
        self._engine = 0  # its process ID
        self._workers: list[int] = []

    def run(self) -> int:
        """Start, serve, stop; the exit code."""
        self._introduce()
        listener = self._bind()
        if listener is None or not self._configure():
            return 1
        if self._signals.take():
            self._die_interrupted()
        start = plan(self._settings, self._generation, self._wording, self._service)
        report = self._fork_engine(start)
        if not self._wait_until_ready(report):
            return 1
        return self._serve(start, listener, report)

    def _introduce(self) -> None:
        service = self._service
        self._log.write("banner", version=self._settings.vllm_version, model=service.model)
        self._log.write("arguments", model=service.model, arguments=service.arguments)

    def _bind(self) -> socket.socket | None:
        """Take the port without listening yet, so that a clash shows before the model is loaded."""
        listener = socket.socket(socket.AF_INET6 if ":" in self._service.host else socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self._service.host, self._service.port))
        except OSError as error:
            self._fail("bind", f"OSError: {error}")
            return None
        return listener

    def _configure(self) -> bool:
        service = self._service
        if self._settings.fault == "bad-path":
            self._fail(
                "model-path",
                "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or "
                f"'namespace/repo_name': '{service.model}'. Use `repo_type` argument if needed.",
            )
            return False
        self._log.write("architecture", architecture="LlamaForCausalLM")
        self._log.write("max-model-len", max_model_len=service.max_model_len)
        self._log.write("chunked-prefill", max_num_batched_tokens=service.max_num_batched_tokens)
        try:
            validate(service)
        except ValidationError as error:
            self._fail("config", f"pydantic_core._pydantic_core.ValidationError: {error}")
            return False
        return True

    def _fork_engine(self, start: Start) -> int:
        """Start the engine; the descriptor on which it reports."""
        report, tell = os.pipe()
        self._engine = processes.fork(
            lambda: Engine(start, tell).run(),
            title=f"VLLM::{self._generation.core}",
            keep=(tell,),
            ignore_term=self._settings.ignore_term,
        )
        os.close(tell)
        return report

    def _wait_until_ready(self, report: int) -> bool:
        """Watch the engine start. False when it failed; a stop request may make this end the process."""
        swallowed = 0  # the first stop request only ends the engine
        deadline = time.monotonic() + self._settings.ready_timeout_s
        self._events.register(report, selectors.EVENT_READ)
        self._events.register(self._signals.descriptor, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            for key, _ in self._events.select(deadline - time.monotonic()):
                # The signal that ended the engine may be here already, and be an event only in the next look.
                swallowed += self._signals.take()
                if swallowed > 1:
                    self._die_interrupted()
                if key.fd == self._signals.descriptor:
                    continue
                messages = os.read(report, 1 << 16).decode()
                if "workers" in messages:
                    self._workers = [int(pid) for pid in messages.split() if pid.isdecimal()]
                if "ready" in messages:
                    return True
                if not messages:
                    self._events.unregister(report)
                    if not swallowed:
                        self._report_failed_start()
                        return False
        self._kill_engine()
        self._fail("ready-timeout", _ready_timeout(self._settings.ready_timeout_s))
        return False

    def _report_failed_start(self) -> None:
        _, status = os.waitpid(self._engine, 0)
        code = os.waitstatus_to_exitcode(status)
        cores = f" Failed core proc(s): {{'{self._generation.core}': {code}}}"
        named = cores if self._generation.names_failed_cores else ""
        self._fail("start-failed", f"RuntimeError: Engine core initialization failed. See root cause above.{named}")
        if self._service.workers:
            Log(self._wording, self._generation.prefix, "").error(_LEAKED.split("\n"))

    def _fail(self, section: str, error: str) -> None:
        self._log.error(self._wording.traceback((section,), error))

    def _die_interrupted(self) -> NoReturn:
        """End as Python does after KeyboardInterrupt: with a traceback, by SIGINT."""
        self._kill_engine()
        self._fail("interrupted", "KeyboardInterrupt: terminated")
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        raise SystemExit(130)

    def _kill_engine(self) -> None:
        """Leave nothing behind, as far as the engine has told what there is."""
        with suppress(ProcessLookupError, ChildProcessError):
            for pid in (*self._workers, self._engine):
                if pid:
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(self._engine, 0)

    def _serve(self, start: Start, listener: socket.socket, report: int) -> int:
        api = Api(start, self._log)
        self._announce(api)
        try:
            listener.listen(_BACKLOG)
        except OSError as error:
            self._kill_engine()
            self._fail("listen", f"OSError: {error}")
            return 1
        return Server(api, self._log, self._engine, events=self._events).run(listener, self._signals, report)

    def _announce(self, api: Api) -> None:
        self._log.write("tasks", task="embed" if self._service.pooling else "generate")
        self._log.write("listening", host=self._service.host, port=self._service.port)
        self._log.write("routes")
        for path, (method, _) in api.routes.items():
            self._log.write("route", path=path, methods=method)
        lines = (f"Started server process [{os.getpid()}]", "Waiting for application startup.")
        self._log.error(f"INFO:     {line}" for line in (*lines, "Application startup complete."))


def _ready_timeout(waited_s: float) -> str:
    return (
        "TimeoutError: Timed out waiting for engine core processes to start. This is often caused by slow weight "
        f"loading for large models. Waited {waited_s:.0f}s (configured by VLLM_ENGINE_READY_TIMEOUT_S). To increase "
        "the timeout, set the environment variable: VLLM_ENGINE_READY_TIMEOUT_S=<seconds>"
    )
