"""Serving: the loop of the main process from ready to its end.

SIGTERM or SIGINT stops the engine and ends the server with exit code 0. So does an engine that dies, a moment later,
unless `VLLM_KEEP_ALIVE_ON_ENGINE_DEATH` is set: then the server stays and answers with errors.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from contextlib import suppress

from vllm_supervisor.simulator.api import Api
from vllm_supervisor.simulator.log import Log
from vllm_supervisor.simulator.processes import Signals
from vllm_supervisor.simulator.web import Connection

_ENGINE_GRACE_S = 1.0  # what the engine gets to stop by itself
_NOTICE_S = 0.5  # between the death of the engine and the end of the server
_SIGNALS_LAND_S = 0.05  # a stop of the whole group reaches this process within this
_ENGINE_DEAD = (
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root "
    "cause."
)


class Server:
    """The serving main process.

    Args:
        api: what is answered.
        log: where the process writes.
        engine: process ID of the engine.
        events: a selector that already watches the signals and the engine's reports.
    """

    def __init__(self, api: Api, log: Log, engine: int, *, events: selectors.BaseSelector) -> None:
        self._api = api
        self._log = log
        self._engine = engine
        self._events = events
        self._end: float | None = None  # when a server without engine ends; monotonic clock

    def run(self, listener: socket.socket, signals: Signals, report: int) -> int:
        """Serve until stopped, or until the engine is dead; the exit code."""
        self._events.register(listener, selectors.EVENT_READ)
        while self._end is None or time.monotonic() < self._end:
            wait_s = None if self._end is None else max(self._end - time.monotonic(), 0)
            for key, _ in self._events.select(wait_s):
                if key.fd == signals.descriptor:
                    signals.take()
                    self._stop()
                    return 0
                if key.fd == report:
                    time.sleep(_SIGNALS_LAND_S)
                    if signals.take():
                        self._stop()
                        return 0
                    self._hear(report)
                elif key.fileobj is listener:
                    self._accept(listener)
                elif not key.data.receive():
                    self._events.unregister(key.fileobj)
                    key.data.socket.close()
        self._say_goodbye(f"Finished server process [{os.getpid()}]")
        return 0

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            client, address = listener.accept()
            connection = Connection(client, f"{address[0]}:{address[1]}", self._api.answer, self._log.access)
            self._events.register(client, selectors.EVENT_READ, connection)

    def _hear(self, report: int) -> None:
        """The engine says that it died of a request, or its end of the pipe closed."""
        message = os.read(report, 1 << 16)
        if not message:
            self._events.unregister(report)
        if self._api.dead:
            return
        self._api.dead = True
        if not message:
            self._log.write("core-dead", core=self._engine)
        self._log.write("output-handler", self._log.wording.traceback(("output-handler",), _ENGINE_DEAD))
        if os.environ.get("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "0") == "0":
            self._end = time.monotonic() + _NOTICE_S

    def _stop(self) -> None:
        self._log.write("stop-begin")
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._engine, signal.SIGTERM)
            deadline = time.monotonic() + _ENGINE_GRACE_S
            while os.waitpid(self._engine, os.WNOHANG) == (0, 0):
                if time.monotonic() > deadline:
                    os.kill(self._engine, signal.SIGKILL)
                time.sleep(0.005)
        self._log.write("stop-end")
        self._say_goodbye()

    def _say_goodbye(self, *more: str) -> None:
        lines = ("Shutting down", "Waiting for application shutdown.", "Application shutdown complete.", *more)
        self._log.error(f"INFO:     {line}" for line in lines)
