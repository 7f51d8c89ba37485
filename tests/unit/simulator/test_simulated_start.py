"""The program itself, run with a tiny time scale."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from vllm_supervisor.simulator.failures import FAULTS

FAILS_AT_1024 = {"SIM_OUTSIDE_GIB": "5", "SIM_RUNNER": "v1", "SIM_SAMPLER_BYTES": "4,4,4"}
M1 = "occurred when warming up sampler with 1024 dummy requests"
LIMIT_S = 60  # for anything a test waits for


class Run:
    """One run of the simulator in a session of its own, stdout and stderr together."""

    def __init__(self, environment: dict[str, str], *arguments: str, port: int) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("SIM_", "VLLM_"))}
        self.port = port
        self._lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vllm_supervisor.simulator", "serve", "m", "--port", str(port), *arguments],
            env={**clean, "SIM_START_S": "0.1", "SIM_SHARDS": "4", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

        self._limit = threading.Timer(LIMIT_S, self.kill)
        self._limit.start()

    @property
    def seen(self) -> str:
        """What was read so far."""
        return "".join(self._lines)

    def wait_for(self, text: str) -> None:
        """Read until a line holds the text."""
        while text not in (line := self._read_line()):
            assert line, f"{text} was not printed:\n{self.seen}"

    def wait_until_it_serves(self) -> None:
        """Until it says so, and listens: uvicorn says it a moment early."""
        self.wait_for("Application startup complete.")
        while True:
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.01)

    def wait_until_no_signal_pends(self) -> None:
        """Until the main process was told of all signals: the kernel takes two of a kind that pend for one."""
        status = Path(f"/proc/{self.process.pid}/status")
        while re.search(r"^ShdPnd:\t0*[1-9a-f]", status.read_text(), re.MULTILINE):
            time.sleep(0.01)

    def end(self) -> tuple[int, str]:
        """Wait for the end of every process that writes; the exit code of the main one, and all output."""
        while self._read_line():
            pass
        return self.process.wait(), self.seen

    def kill(self) -> None:
        """Leave nothing behind."""
        self._limit.cancel()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def _read_line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        self._lines.append(line)
        return line

    def get(self, path: str, body: object = None, **headers: str) -> tuple[int, str]:
        """One HTTP request; status and body."""
        with_body = json.dumps(body) if body is not None else None
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)) as connection:
            connection.request("POST" if with_body else "GET", path, with_body, headers)
            response = connection.getresponse()
            return response.status, response.read().decode()


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def run(port: int) -> Iterator[type[Run]]:
    """`Run` with a free port; whatever is left of a run is killed."""
    runs: list[Run] = []

    class Fresh(Run):
        def __init__(self, environment: dict[str, str] | None = None, *arguments: str) -> None:
            super().__init__(environment or {}, *arguments, port=port)
            runs.append(self)

    yield Fresh
    for one in runs:
        one.kill()
        with one.process:
            one.end()


def test_phases_come_in_order(run) -> None:
    """From the banner to ready, with one shard line a step."""
    server = run({}, "--tensor-parallel-size", "2")
    server.wait_for("Application startup complete.")
    markers = """
        version 0.32.0
        non-default args: {'model_tag': 'm'
        Chunked prefill is enabled with max_num_batched_tokens=8192.
        Initializing a V1 LLM engine (v0.32.0)
        world_size=2
        Using V2 Model Runner
        Loading model from scratch...
        shards:   0% Completed | 0/4
        shards:  50% Completed | 2/4
        shards: 100% Completed | 4/4
        Model loading took 8.00 GiB
        Available KV cache memory
        GPU KV cache size
        Graph capturing finished
        init engine (profile
        Starting vLLM server on
        Route: /health, Methods: GET
        Started server process
    """
    expected = [re.escape(marker.strip()) for marker in markers.strip().splitlines()]

    assert re.search(".*?".join(expected), server.seen, re.DOTALL)


@pytest.mark.parametrize(
    ("release", "ranks", "sentences"),
    [("0.32.0", 1, 2), ("0.32.0", 2, 6), ("0.21.0", 2, 6), ("0.12.0", 2, 6), ("0.8.5", 2, 4)],
)
def test_how_often_the_sentence_is_printed(run, release: str, ranks: int, sentences: int) -> None:
    """Twice by the engine and twice by each rank, once where exceptions have no notes yet; without ranks twice."""
    failed = run(FAILS_AT_1024 | {"SIM_VLLM_VERSION": release}, "-tp", str(ranks), "--gpu-memory-utilization=0.92")

    code, text = failed.end()

    assert code == 1
    assert text.count(M1) == sentences
    assert text.index("Graph capturing finished") < text.index(M1)
    assert re.search(r"(WorkerProc hit an exception|EngineCore failed to start)\.\r\n", text)
    assert "RuntimeError: Engine core initialization failed. See root cause above." in text
    for rank in range(ranks if ranks > 1 else 0):
        name = rf"VllmWorker rank={rank}" if release == "0.8.5" else f"Worker_TP{rank}"
        own = re.findall(rf"\({name} pid=\d+\).*{M1}", text)
        assert len(own) == (1 if release == "0.8.5" else 2)


def test_runner_v2_has_no_sentence(run) -> None:
    """Each rank prints torch's error below the frames of the warm-up, and the engine repeats its text."""
    code, text = run(FAILS_AT_1024 | {"SIM_RUNNER": "v2"}, "-tp", "2").end()

    assert code == 1
    assert "dummy requests" not in text
    assert "Graph capturing finished" not in text, "since 0.30 it warms up first"
    assert len(re.findall(r"^\(Worker_TP1 pid=\d+\) ERROR .* in _warmup_kernels\r?$", text, re.MULTILINE)) == 2
    assert text.count("RuntimeError: Worker failed with error 'CUDA out of memory. Tried to allocate") == 2


def test_the_pooler_twin(run) -> None:
    """Pooling models warm up a pooler, and have no route for completions."""
    code, text = run(FAILS_AT_1024, "--runner", "pooling").end()

    assert code == 1
    assert text.count("warming up pooler (task='embed') with 1024 dummy requests") == 2


@pytest.mark.parametrize(
    ("fault", "ranks"),
    [
        *((fault, "2") for fault in FAULTS if fault != "engine-timeout"),
        *((fault, "1") for fault in ("no-gpu", "load-oom", "profile-oom", "kv-oom", "graph-oom")),
    ],
)
def test_other_failures(run, fault: str, ranks: str) -> None:
    """Exit code 1, and nothing that looks like the sampler's sentence."""
    code, text = run(
        {"SIM_FAULT": f"{fault}:969" if fault == "mamba" else fault, "SIM_START_S": "0"}, "-tp", ranks
    ).end()

    assert code == 1
    assert "dummy requests" not in text
    assert "vllm_supervisor" not in text, "a traceback of our own"


def test_an_engine_that_never_reports(run) -> None:
    """The main process waits for so long, then gives up."""
    code, text = run({"SIM_FAULT": "engine-timeout", "SIM_READY_TIMEOUT_S": "0.5"}).end()

    assert code == 1
    assert "TimeoutError: Timed out waiting for engine core processes to start." in text


@pytest.mark.parametrize(
    ("release", "prefixed", "bare"),
    [
        pytest.param("0.12.0", "\x1b[0;36m(EngineCore_DP0 pid=", "\x1b[0;36m(APIServer pid=", id="coloured"),
        pytest.param("0.21.0", "(EngineCore pid=", "(APIServer pid=", id="plain"),
        pytest.param("0.32.0", "(EngineCore pid=", "INFO:     Application startup complete.", id="log-lines-only"),
    ],
)
def test_prefixes(run, release: str, prefixed: str, bare: str) -> None:
    """Up to 0.30 every line of a process carries its name, uvicorn's too; since then only vLLM's own lines do."""
    server = run({"SIM_VLLM_VERSION": release})
    server.wait_for("Application startup complete.")
    lines = re.split("\r?\n", server.seen)

    assert any(line.startswith(prefixed) and "init engine" in line for line in lines)
    assert next(line for line in lines if "startup complete" in line).startswith(bare)


def test_serving(run) -> None:
    """Health, models, a completion with its usage, metrics, and what is not there."""
    server = run({"SIM_LOG_REQUESTS": "1"}, "--served-model-name", "a", "b", "--api-key", "secret")
    server.wait_until_it_serves()
    key = {"Authorization": "Bearer secret"}

    assert server.get("/health") == (200, "")
    assert server.get("/v1/models")[0] == 401
    assert [model["id"] for model in json.loads(server.get("/v1/models", **key)[1])["data"]] == ["a", "b"]
    status, text = server.get("/v1/completions", {"model": "b", "prompt": "Say it's\nso", "max_tokens": 3}, **key)
    assert (status, json.loads(text)["usage"]["completion_tokens"]) == (200, 3)
    assert server.get("/v1/completions", {"model": "c", "prompt": "x"}, **key)[0] == 404
    assert server.get("/v1/completions", {"model": "a"}, **key)[0] == 400
    assert 'vllm:generation_tokens_total{engine="0",model_name="a"} 3.0' in server.get("/metrics")[1]
    assert server.get("/nothing")[0] == 404

    os.kill(server.process.pid, signal.SIGTERM)
    code, log = server.end()
    assert code == 0
    assert 'details: prompt: "Say it\'s\\nso"' in log
    assert '"POST /v1/completions HTTP/1.1" 200 OK' in log


@pytest.mark.parametrize("whole_group", [False, True], ids=["main-only", "group"])
def test_sigterm_when_ready(run, whole_group: bool) -> None:
    """Exit code 0, soon, and no process is left."""
    server = run({}, "-tp", "2")
    server.wait_for("Application startup complete.")

    (os.killpg if whole_group else os.kill)(server.process.pid, signal.SIGTERM)
    began = time.monotonic()
    code, text = server.end()

    assert code == 0
    assert time.monotonic() - began < LIMIT_S / 2
    assert "INFO:     Shutting down" in text
    assert "EngineDeadError" not in text
    with pytest.raises(ProcessLookupError):
        os.killpg(server.process.pid, 0)


def test_a_stop_that_reaches_the_main_process_last(run) -> None:
    """Is a stop all the same: no rank and no engine is said to have died."""
    server = run({}, "-tp", "2")
    server.wait_for("Application startup complete.")
    names = ("Worker_TP0", "Worker_TP1", "EngineCore", "APIServer")
    processes = [int(re.findall(rf"\({name} pid=(\d+)\)", server.seen)[0]) for name in names]

    for process in processes:
        os.kill(process, signal.SIGTERM)
        time.sleep(0.01)

    code, text = server.end()
    assert code == 0
    assert "died unexpectedly" not in text
    assert "EngineDeadError" not in text


def test_sigterm_to_the_main_process_is_swallowed_while_it_loads(run) -> None:
    """The start goes on; a later one is heeded."""
    server = run({"SIM_START_S": "0.4"})
    server.wait_for("Loading model from scratch")
    os.kill(server.process.pid, signal.SIGTERM)

    server.wait_for("Application startup complete.")
    os.kill(server.process.pid, signal.SIGTERM)

    assert server.end()[0] == 0


@pytest.mark.parametrize("busy", [False, True])
def test_sigterm_to_the_group_while_it_loads_hangs_the_main_process(run, busy: bool) -> None:
    """The engine dies with an error that is none, the main process waits; a second signal ends it by SIGINT.

    That holds on a busy machine too, where the main process may not run until the engine is gone.
    """
    server = run({"SIM_START_S": "0.4"}, "-tp", "2")
    server.wait_for("Loading model from scratch")
    if busy:
        os.kill(server.process.pid, signal.SIGSTOP)
    os.killpg(server.process.pid, signal.SIGTERM)

    server.wait_for("Process EngineCore:")
    time.sleep(0.3)
    os.kill(server.process.pid, signal.SIGCONT)
    server.wait_until_no_signal_pends()
    time.sleep(0.3)
    assert server.process.poll() is None
    os.kill(server.process.pid, signal.SIGTERM)

    code, text = server.end()
    assert code == -signal.SIGINT
    assert text.rstrip().endswith("KeyboardInterrupt: terminated")


def test_sigkill_of_the_main_process_leaves_the_rest(run) -> None:
    """Engine and workers stay, and the port is free."""
    server = run({}, "-tp", "2")
    server.wait_until_it_serves()
    engine = int(re.findall(r"EngineCore pid=(\d+)", server.seen)[0])

    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait(LIMIT_S)
    time.sleep(0.1)

    assert Path(f"/proc/{engine}/comm").read_text(encoding="ascii") == "VLLM::EngineCor\n"
    assert Path(f"/proc/{engine}/cmdline").read_text(encoding="ascii").rstrip("\0") == "VLLM::EngineCore"
    with pytest.raises(ConnectionRefusedError):
        server.get("/health")


@pytest.mark.parametrize(
    ("how", "said"), [("oom", "EngineCore encountered a fatal error."), ("kill", "exited unexpectedly")]
)
def test_an_engine_that_dies_later_ends_the_server_with_0(run, how: str, said: str) -> None:
    """After answering 503 for a moment."""
    server = run({"SIM_DIE_AFTER_S": "0.1", "SIM_DIE_HOW": how})
    server.wait_for("EngineDeadError: EngineCore encountered an issue.")

    assert server.get("/health")[0] == 503
    assert server.get("/v1/completions", {"prompt": "x"})[0] == 500
    code, text = server.end()
    assert code == 0
    assert said in text


def test_a_port_in_use_fails_before_anything_is_loaded(run, port: int) -> None:
    """With Python's own error."""
    with socket.create_server(("0.0.0.0", port)):
        code, text = run().end()

    assert code == 1
    assert text.rstrip().endswith("OSError: [Errno 98] Address already in use")
    assert "EngineCore" not in text


def test_two_that_load_at_once_clash_only_when_the_later_one_is_up(run) -> None:
    """Both have bound the port by then, since neither listened."""
    first, second = run({"SIM_START_S": "0.2"}), run({"SIM_START_S": "0.8"})
    first.wait_until_it_serves()

    code, text = second.end()
    assert code == 1
    assert "Application startup complete." in text
    assert text.rstrip().endswith("OSError: [Errno 98] Address already in use")


@pytest.mark.parametrize(
    ("arguments", "last"),
    [
        (["--max-num-seq-typo", "4"], "vllm: error: unrecognized arguments: --max-num-seq-typo 4"),
        (["--max-num-seqs", "many"], "vllm serve: error: argument --max-num-seqs: invalid int value: 'many'"),
    ],
)
def test_a_command_line_it_cannot_parse(run, arguments: list[str], last: str) -> None:
    """Usage, one line, exit code 2."""
    code, text = run({}, *arguments).end()

    assert code == 2
    assert text.startswith("usage: vllm ")
    assert text.rstrip().endswith(last)


def test_a_flood_before_the_error_loses_no_line(run) -> None:
    """Every line whole and in order, although other ranks write at the same time; then the sentence."""
    code, text = run(FAILS_AT_1024 | {"SIM_FLOOD": "20000"}, "-tp", "2").end()

    numbers = [int(number) for number in re.findall(r"skipping tactic (\d+) of 20000$", text, re.MULTILINE)]
    assert code == 1
    assert numbers == list(range(1, 20001))
    assert M1 not in text[: text.rindex("skipping tactic")]
    assert text.count(M1) == 6


def test_the_version() -> None:
    """`vllm --version` prints nothing else."""
    command = [sys.executable, "-m", "vllm_supervisor.simulator", "--version"]
    done = subprocess.run(command, env=os.environ | {"SIM_VLLM_VERSION": "0.12.0"}, capture_output=True, text=True)

    assert (done.returncode, done.stdout) == (0, "0.12.0\n")
