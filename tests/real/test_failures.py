"""Every failure a real vLLM can be brought to: what it prints, what we make of it, and whether the simulator agrees.

With `--record` the logs go into the corpus, each under its rule, as RELEASE-CASE.log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.live.fleet import Fleet
from tests.real.machine import arguments, environment
from tests.real.server import PORT, REAL, SIMULATED, Server, Told, told
from vllm_supervisor.diagnosis import Phase

# A card on which 512 sequences of the simulator's do not fit.
TIGHT = {"SIM_VOCABULARY": 200064, "SIM_OUTSIDE_GIB": 6.3}


@dataclass(frozen=True)
class Case:
    """One failure.

    Attributes:
        name: as in the corpus.
        rule: what we must make of it.
        flags: what the command line has besides, or instead of, that of a start that succeeds.
        model: what is served.
        fault: for `memory_faults`.
        runner: the model runner, `v1` or `v2`.
        phase: where it must have failed; not checked where None.
        code: the exit code.
        simulated: variables that have the simulator fail in the same way; None where it cannot.
    """

    name: str
    rule: str
    flags: dict[str, Any] = field(default_factory=dict)
    model: str = "/opt/models/tiny"
    fault: str = ""
    runner: str = "v1"
    phase: Phase | None = None
    code: int = 1
    simulated: dict[str, Any] | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The flags, as a mapping; None takes one out."""
        merged = {"max-num-seqs": 16, **arguments(runner=self.runner), **self.flags}
        return {name: value for name, value in merged.items() if value is not None}


INTERPRETED = "/opt/models/tiny-context"  # Triton's interpreter takes its time over a large vocabulary
GRAPHS = {"enforce-eager": None, "compilation-config": {"mode": 0}}
FEW_TOKENS = {"max-num-batched-tokens": 512, "max-num-seqs": 1024}
CASES = (
    Case("bad-flag", "bad-flag", {"max-num-seq-typo": 4}, code=2, simulated={}),
    Case("bad-value", "bad-value", {"max-num-seqs": 0}, simulated={}),
    Case("batched-tokens-under-seqs", "batched-tokens", FEW_TOKENS, simulated={}),
    Case("bad-path", "model-missing", model="/opt/models/none", simulated={"SIM_FAULT": "bad-path"}),
    Case("bad-repo-offline", "offline", model="meta-llama/Llama-3.1-8B-Instruct"),
    Case("port-in-use", "port-in-use", simulated={}),
    Case("tp-mismatch", "tp-mismatch", {"tensor-parallel-size": 3}),
    Case("max-len-over-model", "context-over-model", {"max-model-len": 100000}),
    Case("truncated-weights", "weights-corrupt", model="/opt/models/tiny-truncated", phase=Phase.LOADING),
    Case("oom-load-gpu", "oom-weights", fault="load:1", phase=Phase.LOADING, simulated={"SIM_FAULT": "load-oom"}),
    Case(
        "oom-profile-forward",
        "oom-profile",
        fault="profile:0.1",
        phase=Phase.PROFILING,
        simulated={"SIM_FAULT": "profile-oom"},
    ),
    Case("profile-sampler-512", "sampler-oom", {"max-num-seqs": 512}, fault="measure:500", phase=Phase.PROFILING),
    Case(
        "v2-profile-sampler-512",
        "sampler-oom-frames",
        {"max-num-seqs": 512},
        model=INTERPRETED,
        fault="measure:0",
        runner="v2",
        phase=Phase.PROFILING,
    ),
    Case(
        "max-len-over-kv",
        "context-too-long",
        {"max-model-len": 4194304},
        model="/opt/models/tiny-context",
        phase=Phase.KV_CACHE,
        simulated={"SIM_FAULT": "context-too-long"},
    ),
    Case("oom-kv", "oom-kv-cache", fault="kv:64", phase=Phase.KV_CACHE, simulated={"SIM_FAULT": "kv-oom"}),
    Case("oom-graph", "oom-graph-capture", GRAPHS, fault="graph:0", simulated={"SIM_FAULT": "graph-oom"}),
    Case(
        "warmup-sampler-512",
        "sampler-oom",
        {"max-num-seqs": 512},
        fault="sampler:500",
        phase=Phase.WARM_UP,
        simulated=TIGHT,
    ),
    Case(
        "warmup-sampler-512-mp",
        "sampler-oom",
        {"max-num-seqs": 512, "distributed-executor-backend": "mp"},
        fault="sampler:500",
        phase=Phase.WARM_UP,
        simulated=TIGHT,
    ),
    Case(
        "v2-warmup-sampler-512",
        "sampler-oom-frames",
        {"max-num-seqs": 512},
        model=INTERPRETED,
        fault="sampler:3",
        runner="v2",
        phase=Phase.WARM_UP,
        simulated=TIGHT,
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_failure(fleet: Fleet, case: Case, tmp_path: Path, record: Any) -> None:
    """The rule, the phase and the exit code; and the simulator prints and does the same."""
    variables = environment(case.fault, runner=case.runner)
    code, log = run(fleet, REAL, case, variables, tmp_path / "real.log")
    record(case.name, case.rule, log)
    real = told(log)

    assert (code, real.diagnosis and real.diagnosis.rule) == (case.code, case.rule), log[-3000:].decode()
    if case.phase:
        assert real.diagnosis
        assert real.diagnosis.phase == case.phase
    if case.simulated is not None:
        pretended = {"SIM_START_S": 0.2, "SIM_RUNNER": case.runner, **case.simulated}
        simulated_code, log = run(fleet, SIMULATED, case, pretended, tmp_path / "simulated.log")
        assert claims(case, simulated_code, told(log)) == claims(case, code, real)


def run(fleet: Fleet, program: tuple[str, ...], case: Case, variables: dict[str, Any], log: Path) -> tuple[int, bytes]:
    """Start it and wait until it has failed; its exit code and its log."""
    occupied = ["python3", "-m", "http.server", str(PORT), "--bind", "127.0.0.1"]
    neighbour = fleet.box.popen(occupied) if case.rule == "port-in-use" else None
    try:
        with Server(fleet.box, program, case.model, case.arguments, variables, log) as server:
            return server.fail(), server.log
    finally:
        if neighbour:
            neighbour.kill()
            neighbour.wait()


def claims(case: Case, code: int, story: Told) -> dict[str, Any]:
    """What the simulator and the real one must have in common."""
    assert story.diagnosis, case.name
    # The line that begins the warm-up is about kernels that only GPUs have.
    phases = [phase for phase in story.phases if phase is not Phase.WARM_UP]
    return {
        "exit code": code,
        "rule": story.diagnosis.rule,
        "phase": story.diagnosis.phase,
        "phases": phases,
        "sentence": story.sentence,
        "copies": story.copies,
        "last line": story.last,
    }
