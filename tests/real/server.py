"""One `vllm serve` in a sandbox, the real one or the simulator, and what we make of its log."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.real.machine import VLLM
from tests.sandbox import SERVICE_USER, Sandbox
from vllm_supervisor.diagnosis import Diagnosis, Phase, Trackers, read

PORT = 8000
READY = "Application startup complete."
REAL = (VLLM,)
SIMULATED = (sys.executable, "-m", "vllm_supervisor.simulator")
# A start takes 30 s on two idle cores, and the machine may be busy with more than this.
START_S = 400.0
_AMOUNT = re.compile(r"\d[\d.,]*(?: (?:bytes|[KMG]iB))?")


def flags(arguments: Mapping[str, Any]) -> list[str]:
    """A mapping as words of a command line, as our unit has them."""
    words: list[str] = []
    for name, value in arguments.items():
        words.append(f"--{name}")
        if value is not True:
            words.append(json.dumps(value) if isinstance(value, dict) else str(value))
    return words


class Server:
    """A server while the `with` block lasts; its output goes to a file, as bytes."""

    def __init__(
        self,
        box: Sandbox,
        program: tuple[str, ...],
        model: str,
        arguments: Mapping[str, Any],
        environment: Mapping[str, Any],
        log: Path,
    ) -> None:
        self._box, self._log = box, log
        words = [*program, "serve", model, "--host", "127.0.0.1", "--port", str(PORT), *flags(arguments)]
        variables = {"HOME": f"/var/lib/{SERVICE_USER}", **{name: str(value) for name, value in environment.items()}}
        with log.open("wb") as file:
            self.process = box.popen(
                words, user=SERVICE_USER, env=variables, stdout=file.fileno(), stderr=subprocess.STDOUT
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.signal_all("KILL")
        self.process.wait(30)

    @property
    def log(self) -> bytes:
        """What it has printed."""
        return self._log.read_bytes()

    def wait_for(self, text: str, *, timeout: float = START_S) -> None:
        """Wait until it has printed that.

        Raises:
            AssertionError: it ended, or took longer than `timeout` seconds; shows the end of the log.
        """
        deadline = time.monotonic() + timeout
        while text.encode() not in self.log:
            if self.process.poll() is not None or time.monotonic() > deadline:
                end = self.log[-3000:].decode(errors="replace")
                raise AssertionError(f"it does not say {text!r}; ended: {self.process.poll()}\n{end}")
            time.sleep(0.05)

    def end(self) -> int:
        """Wait for its end, which is due; the exit code, negative for a signal."""
        return self.process.wait(60)

    def fail(self) -> int:
        """Wait for the end of a start that fails; the exit code.

        Raises:
            AssertionError: it serves, or is still there after `START_S` seconds.
        """
        deadline = time.monotonic() + START_S
        while (code := self.process.poll()) is None:
            assert READY.encode() not in self.log, "it serves"
            assert time.monotonic() < deadline, "it neither fails nor serves"
            time.sleep(0.1)
        return code

    def processes(self) -> dict[int, str]:
        """Every process of the service user, by number, and what it calls itself."""
        listed = self._box.run(["ps", "-u", SERVICE_USER, "-o", "pid=,args="]).stdout.splitlines()
        return {int(pid): name for pid, _, name in (line.strip().partition(" ") for line in listed)}

    def signal_all(self, name: str) -> None:
        """Send a signal to all of them, as systemd does with `KillMode=control-group`."""
        if running := [str(pid) for pid in self.processes()]:
            self._box.run(["kill", f"-{name}", *running])

    def ask(self) -> int:
        """Ask for a completion; the HTTP status, 0 when there is no answer."""
        body = json.dumps({"model": "tiny", "prompt": "hello", "max_tokens": 4, "ignore_eos": True})
        url = f"http://127.0.0.1:{PORT}/v1/completions"
        code = ["-o", "/dev/null", "-w", "%{http_code}"]
        done = self._box.run(
            ["curl", "-s", *code, url, "-H", "Content-Type: application/json", "-d", body], timeout=120
        )
        return int(done.stdout)


@dataclass(frozen=True, slots=True)
class Told:
    """What a log tells.

    Attributes:
        phases: those it went through, in order.
        diagnosis: why it failed; None when it did not.
        sentence: the line that tells, without its amounts and without the account of memory that torch appends.
        copies: how many lines hold it.
        last: the last line, without amounts and without what stands in braces.
    """

    phases: tuple[Phase, ...]
    diagnosis: Diagnosis | None
    sentence: str
    copies: int
    last: str


def told(log: bytes) -> Told:
    """Read a log as our daemon reads the journal."""
    trackers = Trackers()
    phases: list[Phase] = []
    for entry in read(log.splitlines(keepends=True)):
        tracker, _ = trackers.feed(entry)
        if tracker.phase not in phases[-1:]:
            phases.append(tracker.phase)
    tracker.end()
    diagnosis = tracker.diagnosis()
    sentence = _masked(diagnosis.finding.quote) if diagnosis else ""
    lines = [_masked(line) for line in log.decode(errors="replace").splitlines() if line.strip()]
    copies = sum(sentence in line for line in lines)
    last = next(line for line in reversed(lines) if "resource_tracker" not in line and "warnings.warn" not in line)
    return Told(tuple(phases), diagnosis, sentence, copies, re.sub(r"{.*}", "{}", last))


def _masked(text: str) -> str:
    return _AMOUNT.sub("#", text.partition("Tried to allocate")[0])
