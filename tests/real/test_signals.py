"""How it stops and dies, on which our units and remedies rely: the real one and the simulator pass the same tests."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.live.fleet import Fleet
from tests.real.machine import arguments, environment
from tests.real.server import READY, REAL, SIMULATED, Server, told

BOTH = pytest.mark.parametrize("program", [pytest.param(REAL, id="real"), pytest.param(SIMULATED, id="simulator")])
HANGS_S = 10.0  # a main process that stays that long after its engine has gone does not end by itself


def serve(fleet: Fleet, program: tuple[str, ...], log: Path, fault: str = "", **simulated: Any) -> Server:
    """Start one that has nothing to complain about, but for `fault`."""
    variables = environment(fault) if program == REAL else {"SIM_START_S": 3, "SIM_RUNNER": "v1", **simulated}
    return Server(fleet.box, program, "/opt/models/tiny", arguments(max_num_seqs=16), variables, log)


@BOTH
def test_sigterm_to_the_main_process(fleet: Fleet, program: tuple[str, ...], tmp_path: Path, record: Any) -> None:
    """One that comes while it loads is swallowed, and the start goes on; one that comes later ends it with status 0."""
    with serve(fleet, program, tmp_path / "log") as server:
        server.wait_for("Starting to load model")
        server.process.send_signal(signal.SIGTERM)

        server.wait_for(READY)
        assert server.ask() == 200

        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
        fleet.box.wait_until(lambda: not server.processes(), "none of its processes left")
    if program == REAL:
        record("term-loading-then-idle", "none", server.log)
    assert told(server.log).diagnosis is None


@BOTH
def test_sigterm_to_all_while_it_loads(fleet: Fleet, program: tuple[str, ...], tmp_path: Path, record: Any) -> None:
    """As `systemctl stop` sends it: the engine ends, the main process stays until a second one ends it by SIGINT."""
    with serve(fleet, program, tmp_path / "log") as server:
        server.wait_for("Starting to load model")
        server.signal_all("TERM")

        fleet.box.wait_until(lambda: "VLLM::EngineCore" not in server.processes().values(), "no engine", timeout=60)
        time.sleep(HANGS_S)
        assert server.process.poll() is None

        server.process.send_signal(signal.SIGTERM)
        assert server.end() == -signal.SIGINT
    if program == REAL:
        record("term-loading-all", "stopped", server.log)
    diagnosis = told(server.log).diagnosis
    assert diagnosis is not None
    assert diagnosis.rule == "stopped"


@BOTH
def test_out_of_memory_in_a_request(fleet: Fleet, program: tuple[str, ...], tmp_path: Path, record: Any) -> None:
    """The engine dies, and the server ends with status 0, so `Restart=on-failure` would leave it down."""
    with serve(fleet, program, tmp_path / "log", "serve:0.01", SIM_DIE_AFTER_S=1) as server:
        server.wait_for(READY)
        if program == REAL:
            assert server.ask() == 500

        assert server.end() == 0
        fleet.box.wait_until(lambda: not server.processes(), "none of its processes left")
    if program == REAL:
        record("oom-serve", "oom-serving", server.log)
    diagnosis = told(server.log).diagnosis
    assert diagnosis is not None
    assert (diagnosis.rule, diagnosis.ready_before) == ("oom-serving", True)
