"""The main job, unattended, on a real systemd: services that run out of memory in sampler warm-up come up."""

from __future__ import annotations

import json
import time

import pytest

from tests.live.fleet import DAEMON, VLLM, Fleet

# A card on which 1,024 and 512 sequences of a 200,064-token vocabulary do not fit and 256 do.
TIGHT = {"SIM_RUNNER": "v1", "SIM_VOCABULARY": 200064, "SIM_OUTSIDE_GIB": 3.2, "SIM_START_S": 0.4, "SIM_SHARDS": 4}
MINIMAX = {
    "model": "MiniMaxAI/MiniMax-M2.5",
    "gpus": [0, 1, 2, 3],
    "environment": TIGHT,
    "arguments": {"tensor-parallel-size": 4, "max-model-len": 131072, "gpu-memory-utilization": 0.95},
}
SINGLE = {
    "model": "org/small",
    "gpus": [0],
    "environment": TIGHT,
    "arguments": {"gpu-memory-utilization": 0.95, "max-model-len": 8192},
}


def with_environment(service, **variables):
    return {**service, "environment": {**service["environment"], **variables}}


@pytest.fixture
def fleet(box):
    return Fleet(box)


def completion(fleet, port=8000):
    body = json.dumps({"model": fleet_model(fleet, port), "prompt": "hello", "max_tokens": 4})
    url = f"http://127.0.0.1:{port}/v1/completions"
    done = fleet.box.run(["curl", "-sf", url, "-H", "Content-Type: application/json", "-d", body])
    assert done.returncode == 0, done
    return json.loads(done.stdout)["choices"][0]["text"]


def fleet_model(fleet, port):
    return json.loads(fleet.box.run(["curl", "-sf", f"http://127.0.0.1:{port}/v1/models"]).stdout)["data"][0]["id"]


def test_the_seed_scenario(fleet):
    """Flag never given, TP 4, every rank prints: 1024 and 512 do not fit, 256 serves, and all of it is told."""
    fleet.configure({"minimax-m25": MINIMAX})
    fleet.start_daemon()

    fleet.supervisor("apply")

    assert fleet.steps("minimax-m25") == [(1024, 512), (512, 256)]
    assert completion(fleet)
    assert "--max-num-seqs 256" in fleet.unit("minimax-m25")
    status = fleet.status()["minimax-m25"]
    assert (status["condition"], status["declared"], status["effective"]) == ("ready", None, 256)
    told = fleet.supervisor("explain", "minimax-m25")
    assert "when warming up sampler with 512 dummy requests" in told
    assert "vllm-supervisor forget minimax-m25" in told


@pytest.mark.parametrize(
    ("variables", "declared", "steps"),
    [
        pytest.param({}, 1024, [(1024, 512), (512, 256)], id="v1-flag-declared"),
        pytest.param({"SIM_RUNNER": "v2"}, 1024, [(1024, 512), (512, 256)], id="v2-value-from-the-stamp"),
        pytest.param({"SIM_RUNNER": "v2"}, None, [(1024, 512), (512, 256)], id="v2-flag-unset-default-rule"),
        pytest.param({"SIM_VLLM_VERSION": "0.12.0"}, None, None, id="old-prefixes-in-colour"),
        pytest.param({"SIM_VLLM_VERSION": "0.8.5"}, None, None, id="oldest-generation"),
        pytest.param({"SIM_FLOOD": 200000}, 1024, [(1024, 512), (512, 256)], id="200000-lines-before-the-error"),
    ],
)
def test_every_shape_of_the_failure(fleet, variables, declared, steps):
    """Whatever the runner, the release and the noise, it comes up, each value is tried once, and none is raised."""
    service = with_environment(SINGLE, **variables)
    fleet.configure({"a": {**service, "max_num_seqs": declared} if declared else service})
    fleet.start_daemon()

    fleet.supervisor("apply", timeout=120)

    taken = fleet.steps("a")
    assert taken[0] == (1024, 512)
    assert [to for _, to in taken] == sorted({to for _, to in taken}, reverse=True)
    assert taken == (steps or taken)
    assert completion(fleet)


def test_a_pooling_model(fleet):
    """Its twin sentence says pooler, and it generates no text for the canary."""
    service = {**SINGLE, "arguments": {**SINGLE["arguments"], "runner": "pooling"}, "max_num_seqs": 1024}
    fleet.configure({"a": service})
    fleet.start_daemon()

    fleet.supervisor("apply")

    assert fleet.steps("a")[0] == (1024, 512)
    assert "pooler" in fleet.history("a")[1]["quote"]


def test_mamba_blocks_set_the_number_in_the_message(fleet):
    """At most 969, says vLLM: 969 it is, not 512."""
    fleet.configure({"a": with_environment(SINGLE, SIM_OUTSIDE_GIB=0.6, SIM_FAULT="mamba:969")})
    fleet.start_daemon()

    fleet.supervisor("apply")

    assert fleet.steps("a") == [(1024, 969)]


def test_at_the_floor_it_is_left_down_and_said_once(fleet):
    """Nothing fits: it ends, at the floor, and no start follows."""
    fleet.configure({"a": {**with_environment(SINGLE, SIM_OUTSIDE_GIB=3.95), "remediation": {"floor": 200}}})
    fleet.start_daemon()

    done = fleet.run("apply")

    assert done.returncode == 4
    assert fleet.steps("a") == [(1024, 512), (512, 256), (256, 200)]
    status = fleet.wait_for("a", "given-up")
    invocation = status["invocation"]
    time.sleep(3)
    assert fleet.status()["a"]["invocation"] == invocation
    said = [e for e in fleet.box.journal("-u", DAEMON) if "gave up" in e["MESSAGE"]]
    assert len(said) == 1
    assert said[0]["PRIORITY"] == "2"


def test_a_second_apply_changes_nothing(fleet):
    """Nothing is written, reloaded or restarted; plan agrees by its exit code."""
    fleet.configure({"a": SINGLE, "b": {**SINGLE, "gpus": [1], "port": 8001}})
    fleet.start_daemon()
    fleet.supervisor("apply")
    before = [(fleet.unit(name), fleet.show(name, "InvocationID")) for name in "ab"]

    assert "nothing to do" in fleet.supervisor("apply")

    assert [(fleet.unit(name), fleet.show(name, "InvocationID")) for name in "ab"] == before
    assert fleet.run("plan").returncode == 0


def test_a_crash_loop_from_before_the_daemon_is_found(fleet):
    """Started without the daemon, it fails and fails; the daemon comes and treats it."""
    fleet.configure({"a": SINGLE})
    fleet.supervisor("apply", "--no-wait")
    fleet.box.wait_until(lambda: fleet.show("a", "SubState") == "auto-restart", "a failed start")

    fleet.start_daemon()

    fleet.wait_for("a", "ready")
    assert fleet.steps("a") == [(1024, 512), (512, 256)]


def test_a_unit_at_its_start_limit_is_found(fleet):
    """It used up its starts before the daemon came: systemd alone would never start it again."""
    fleet.configure({"a": SINGLE})
    fleet.supervisor("apply", "--no-wait")
    fleet.box.write("/etc/systemd/system/vllm-a.service.d/quick.conf", "[Service]\nRestartSec=0\n")
    fleet.box.run(["systemctl", "daemon-reload"], check=True)
    fleet.box.wait_until(lambda: fleet.show("a", "ActiveState") == "failed", "the start limit")

    fleet.start_daemon()

    fleet.wait_for("a", "ready")
    assert fleet.steps("a") == [(1024, 512), (512, 256)]


def test_a_stop_by_hand_is_respected(fleet):
    """Evidence is there, and somebody stopped the unit: it stays stopped; what was learned holds for its next start."""
    fleet.configure({"a": SINGLE})
    fleet.supervisor("apply", "--no-wait")
    fleet.box.wait_until(lambda: fleet.show("a", "SubState") == "auto-restart", "a failed start")
    fleet.box.run(["systemctl", "stop", "vllm-a"], check=True)

    fleet.start_daemon()
    time.sleep(3)

    assert fleet.show("a", "ActiveState") == "inactive"
    assert "--max-num-seqs 512" in fleet.unit("a")


def test_a_stop_by_hand_while_it_loads_is_no_failure(fleet):
    """An error traceback is printed on the way out; nothing is lowered and nothing started."""
    fleet.configure({"a": with_environment(SINGLE, SIM_START_S=60)})
    fleet.start_daemon()
    fleet.supervisor("apply", "--no-wait")
    fleet.box.wait_until(lambda: "oading" in fleet.status()["a"]["phase"], "loading")

    # Its main process heeds only the second, and the kernel takes two of a kind for one until the first is delivered.
    fleet.box.run(["systemctl", "kill", "vllm-a", "--kill-who=main", "--signal=TERM"], check=True)
    delivered = ["grep", "-q", r"^ShdPnd:\s*0*$", f"/proc/{fleet.show('a', 'MainPID')}/status"]
    fleet.box.wait_until(lambda: fleet.box.run(delivered).returncode == 0, "the first stop request arrived")
    fleet.box.run(["systemctl", "stop", "vllm-a"], check=True, timeout=60)
    time.sleep(1)

    assert any("KeyboardInterrupt: terminated" in str(entry["MESSAGE"]) for entry in fleet.box.journal("-u", "vllm-a"))
    assert fleet.show("a", "ActiveState") in ("inactive", "failed")
    assert [row["kind"] for row in fleet.history("a")] == ["applied"]


def test_a_prompt_that_quotes_the_error_changes_nothing(fleet):
    """A user pastes the sentence and a traceback into a chat after the service is ready."""
    fleet.configure({"a": with_environment(SINGLE, SIM_OUTSIDE_GIB=0.6, SIM_LOG_REQUESTS=1)})
    fleet.start_daemon()
    fleet.supervisor("apply")
    before = (fleet.unit("a"), fleet.show("a", "InvocationID"))
    sentence = "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try"
    body = json.dumps({"model": "org/small", "prompt": f"x\n{sentence}\n", "max_tokens": 1})
    fleet.box.run(["curl", "-sf", "http://127.0.0.1:8000/v1/completions", "-d", body], check=True)
    fleet.box.run(["systemd-run", "--wait", "-p", "User=vllm", "/bin/sh", "-c", f"echo '{sentence}'"], check=True)
    time.sleep(2)

    assert any(sentence in str(entry["MESSAGE"]) for entry in fleet.box.journal("-u", "vllm-a"))
    assert (fleet.unit("a"), fleet.show("a", "InvocationID")) == before
    assert fleet.steps("a") == []


@pytest.mark.parametrize("fault", ["load-oom", "kv-none", "bad-path"])
def test_other_failures_are_reported_and_change_nothing(fleet, fault):
    """Not ours to lower: the unit is what it was, and the history says why it failed."""
    fleet.configure({"a": with_environment(SINGLE, SIM_FAULT=fault)})
    fleet.start_daemon()
    fleet.supervisor("apply", "--no-wait")
    before = fleet.unit("a")

    fleet.box.wait_until(lambda: [r for r in fleet.history("a") if r["kind"] == "reported"], "a report")

    assert fleet.unit("a") == before
    assert fleet.steps("a") == []


@pytest.mark.parametrize(
    ("variables", "opened", "expected"),
    [
        pytest.param(
            {"SIM_FAULT": "graph-oom"},
            {"gpu_memory_utilization": {"step": 0.02, "floor": 0.93}, "enforce_eager": True},
            [("gpu-memory-utilization", 0.93), ("enforce-eager", 1)],
            id="graphs",
        ),
        pytest.param(
            {"SIM_FAULT": "context-too-long"},
            {"max_model_len": {"floor": 64}},
            [("max-model-len", None)],
            id="context",
        ),
    ],
)
def test_flags_the_operator_opened(fleet, variables, opened, expected):
    """Each within its bound, one after the other, told in the history and shown in the unit."""
    service = with_environment(SINGLE, SIM_OUTSIDE_GIB=0.6, **variables)
    fleet.configure({"a": {**service, "remediation": opened}})
    fleet.start_daemon()
    fleet.supervisor("apply", "--no-wait")

    rows = fleet.box.wait_until(
        lambda: len(rows := [r for r in fleet.history("a") if r["kind"] == "changed"]) >= len(expected) and rows,
        "changes",
    )

    assert [(row["flag"], row["to"]) for row in rows[: len(expected)]] == [
        (flag, row["to"] if to is None else to) for (flag, to), row in zip(expected, rows, strict=False)
    ]
    told = next(line for line in fleet.unit("a").splitlines() if line.startswith("# Runs with "))
    command = fleet.unit("a").partition("ExecStart=")[2]
    assert all(f"--{flag}" in told and f"--{flag}" in command for flag, _ in expected)


def test_lines_that_journald_dropped_are_missed(fleet):
    """An operator's drop-in brings the default rate limit back: what is reported says that evidence is missing."""
    fleet.configure({"a": with_environment(SINGLE, SIM_FLOOD=50000)})
    drop_in = "[Service]\nLogRateLimitIntervalSec=30s\nLogRateLimitBurst=100\n"
    fleet.box.write("/etc/systemd/system/vllm-a.service.d/limit.conf", drop_in)
    fleet.start_daemon()
    fleet.supervisor("apply", "--no-wait")

    row = fleet.box.wait_until(lambda: [r for r in fleet.history("a") if r["kind"] == "reported"], "a report")[0]

    assert "lines of this run are missing" in row["why"]


def test_a_chain_of_failures_is_classified_afresh_each_time(fleet):
    """At 512 the sampler fits and the KV cache does not: nothing more is lowered, and both stand in the history."""
    program, then = "/opt/vllm/bin/then", 'case "$*" in *"--max-num-seqs 512"*) export SIM_FAULT=kv-none ;; esac'
    fleet.box.write(program, f'#!/bin/sh\n{then}\nexec {VLLM} "$@"\n', mode=0o755)
    fleet.configure({"a": {**SINGLE, "executable": program}})
    fleet.start_daemon()
    fleet.supervisor("apply", "--no-wait")

    fleet.box.wait_until(lambda: [r for r in fleet.history("a") if r["kind"] == "reported"], "a report")

    told = [(row["kind"], row["rule"]) for row in fleet.history("a") if row["rule"]]
    assert told[:2] == [("lowered", "sampler-oom"), ("reported", "no-kv-cache")]
    assert fleet.steps("a") == [(1024, 512)]
    assert "--max-num-seqs 512" in fleet.unit("a")
    story = fleet.supervisor("explain", "a")
    assert story.index("sampler-oom") < story.index("no-kv-cache")
