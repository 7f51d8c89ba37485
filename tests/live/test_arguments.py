"""Arguments that a vLLM would refuse, found out by asking it, while what runs goes on running."""

from __future__ import annotations

import json

import pytest

from tests.live.fleet import CONFIG, PROGRAM, VLLM, Fleet

SERVICE = {
    "model": "org/small",
    "gpus": [0],
    "environment": {"SIM_START_S": 0.3, "SIM_SHARDS": 2},
    "arguments": {"max-model-len": 8192},
}
OTHER = {**SERVICE, "gpus": [1], "port": 8001}
FLAGS = "/var/lib/vllm-supervisor/flags"


@pytest.fixture
def fleet(box):
    return Fleet(box)


def with_arguments(**arguments):
    return {**SERVICE, "arguments": {key.replace("_", "-"): value for key, value in arguments.items()}}


def asked(fleet):
    """How often a vLLM was asked, by what systemd says of it."""
    return fleet.box.run(["journalctl", "--no-pager", "-o", "cat"]).stdout.count("Started run-")


def replaced(fleet, text, mode=0o755):
    """Put another program in vLLM's place."""
    fleet.box.write(VLLM, text, mode=mode)


def test_a_misspelt_flag_stops_nothing_that_runs(fleet):
    """Its service is left as it is, byte for byte and running; the others are applied; the line to mend is named."""
    fleet.configure({"a": SERVICE, "b": OTHER})
    fleet.supervisor("apply")
    before = (fleet.unit("a"), fleet.show("a", "InvocationID"))

    fleet.configure({"a": with_arguments(max_model_length=4096), "b": {**OTHER, "arguments": {"max-model-len": 4096}}})
    done = fleet.run("apply")

    line = 1 + fleet.box.read(CONFIG).splitlines().index('        "max-model-length": 4096')
    assert done.returncode == 78
    assert f"{CONFIG}:{line}: cannot use services.a.arguments.max-model-length = 4096" in done.stderr
    assert "did you mean `max-model-len`?" in done.stderr
    assert (fleet.unit("a"), fleet.show("a", "InvocationID")) == before
    assert "4096" in fleet.unit("b")
    assert "1 to update, 1 refused; to restart: b" in done.stdout


def test_a_service_that_was_never_applied_is_not_written(fleet):
    """The first apply asks as well, and the daemon hears nothing of the service."""
    fleet.configure({"a": with_arguments(enforce_eager="yes")})

    done = fleet.run("apply")

    assert done.returncode == 78
    assert "write true or false" in done.stderr
    assert fleet.box.run(["ls", "/etc/systemd/system/vllm-a.service"]).returncode
    assert fleet.box.run(["systemctl", "is-active", "vllm-a"]).stdout.strip() == "inactive"


def test_a_vllm_is_asked_once_for_each_version(fleet):
    """The answer is kept for root alone; another program in the same place is asked again."""
    fleet.configure({"a": SERVICE, "b": OTHER})
    fleet.supervisor("apply")
    assert asked(fleet) == 1
    assert fleet.box.run(["stat", "-c", "%a %U", FLAGS]).stdout.split() == ["700", "root"]
    assert fleet.box.run(["sh", "-c", f"stat -c '%a %U' {FLAGS}/*.json"]).stdout.split() == ["600", "root"]

    fleet.configure({"a": with_arguments(max_model_len=4096), "b": OTHER})
    fleet.supervisor("apply")
    assert asked(fleet) == 1

    replaced(fleet, PROGRAM)
    fleet.configure({"a": with_arguments(max_model_len=2048), "b": OTHER})
    fleet.supervisor("apply")
    assert asked(fleet) == 2


def test_nothing_is_asked_where_nothing_changes(fleet):
    """A host that only wants to know that all is well does not wait for an answer that is of no use."""
    fleet.configure({"a": SERVICE})
    fleet.supervisor("apply")
    fleet.box.run(["rm", "-r", FLAGS], check=True)

    fleet.supervisor("apply")

    assert asked(fleet) == 1


def test_plan_asks_and_keeps_nothing(fleet):
    """It says what apply would say, and leaves no file."""
    fleet.configure({"a": with_arguments(max_model_length=4096)})

    done = fleet.run("plan")

    assert done.returncode == 78
    assert "did you mean `max-model-len`?" in done.stderr
    assert fleet.box.run(["ls", "/var/lib/vllm-supervisor"]).returncode


PYTHON = "#!/usr/bin/python3\n"


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        pytest.param(f'#!/bin/sh\nexec {VLLM}.py "$@"\n', "it is not a Python program", id="wrapper"),
        pytest.param(
            f"{PYTHON}raise ImportError('no\\033[31mthing')\n", "code 1: ImportError: no[31mthing", id="broken"
        ),
        pytest.param(PYTHON, "cannot read what", id="says-nothing"),
        pytest.param(f"{PYTHON}import os\nos.write(3, b'[' * 99999)\n", "cannot read what", id="says-nonsense"),
        pytest.param(f"{PYTHON}while True: print('x' * 99999)\n", ": xxx", id="never-stops-talking"),
    ],
)
def test_a_vllm_that_cannot_be_asked_stops_nothing(fleet, program, reason):
    """A note says why, without what could play tricks on a terminal; the service is applied unchecked."""
    fleet.box.write(f"{VLLM}.py", PROGRAM, mode=0o755)
    replaced(fleet, program)
    fleet.configure({"a": with_arguments(max_model_length=4096)})

    done = fleet.run("apply", "--no-wait")

    assert done.returncode == 0
    assert "a: its arguments were not checked: " in done.stderr
    assert reason in done.stderr
    assert len(done.stderr) < 1000
    assert "--max-model-length 4096" in fleet.unit("a")


def test_a_program_that_is_not_there_is_not_asked(fleet):
    """Plan says so; what apply makes of it is told by systemd's own check."""
    fleet.configure({"a": {**SERVICE, "executable": "/opt/none/bin/vllm"}})

    done = fleet.run("plan")

    assert done.returncode == 3
    assert "its arguments were not checked: /opt/none/bin/vllm is not there" in done.stdout
    assert asked(fleet) == 0


def test_what_is_asked_runs_without_rights(fleet):
    """As the service's user, with no privilege to gain, no network, and nothing that it could write to."""
    spy = """
import json, os, sys
seen = {
    "uid": os.getuid(), "groups": os.getgroups(), "tty": os.path.exists("/dev/tty") and not os.system("true </dev/tty"),
    "caps": [line.split()[1].strip("0") for line in open("/proc/self/status") if line.startswith(("CapEff", "CapBnd"))],
    "no_new": [line.split()[1] for line in open("/proc/self/status") if line.startswith("NoNewPrivs")],
    "net": os.readlink("/proc/self/ns/net"), "plugins": os.environ.get("VLLM_PLUGINS"),
    "write": [place for place in ("/var/lib/vllm", "/etc", "/opt/vllm/cache") if os.access(place, os.W_OK)],
}
print(json.dumps(seen), file=sys.stderr)
sys.exit(1)
"""
    fleet.box.run(["install", "-d", "-o", "vllm", "/var/lib/vllm", "/opt/vllm/cache"], check=True)
    replaced(fleet, f"{PYTHON}{spy}")
    environment = {**SERVICE["environment"], "VLLM_PLUGINS": "mine"}
    fleet.configure({"a": {**SERVICE, "environment": environment}})

    said = fleet.run("plan").stdout

    seen = json.loads(said.partition("exit code 1: ")[2].splitlines()[0])
    user = int(fleet.box.run(["id", "-u", "vllm"]).stdout)
    assert (seen["uid"], seen["tty"], seen["write"]) == (user, False, [])
    assert seen["net"] != fleet.box.run(["readlink", "/proc/1/ns/net"]).stdout.strip()
    assert (seen["caps"], seen["no_new"]) == (["", ""], ["1"])
    assert seen["plugins"] == "mine"
    assert 0 not in seen["groups"]
