"""A rendered unit on a real systemd: what its process finds there, and what the sandbox keeps from it."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox import PYTHON, Sandbox
from vllm_supervisor.config import Service
from vllm_supervisor.units import Host, fingerprint, render, run_hash, unit_name

VLLM = "/opt/vllm/bin/vllm"
SEEN = "/var/lib/vllm/seen.json"
# In place of vLLM: tells what it finds, then stays, as a server would.
PROBE = f"""#!{PYTHON} -IS
import json, os, resource, signal, sys

def able(act):
    try:
        act()
        return "yes"
    except OSError as e:
        return e.strerror

credentials = os.environ.get("HF_TOKEN_PATH")
seen = {{
    "argv": sys.argv[1:],
    "environ": dict(os.environ),
    "cwd": os.getcwd(),
    "token": open(credentials).read() if credentials else None,
    "files": resource.getrlimit(resource.RLIMIT_NOFILE),
    "writes": {{
        path: able(lambda: open(path + "/probe", "w"))
        for path in ("/var/lib/vllm", "/var/cache/vllm", "/tmp", "/dev/shm", "/data", "/etc", "/usr", "/home/operator")
    }},
    "code": able(lambda: __import__("mmap").mmap(-1, 4096, prot=7)),
}}
json.dump(seen, open("{SEEN}", "w"))
print("here I am", flush=True)
signal.pause()
"""


def service(**settings: Any) -> Service:
    return Service.model_validate(
        {"name": "probe", "model": "org/model", "executable": VLLM, "source": Path("/etc/x.yaml"), **settings}
    )


@pytest.fixture
def host(box: Sandbox) -> Host:
    """The sandbox with the probe as vLLM, and a gate that lets everything pass."""
    box.write(VLLM, PROBE, mode=0o755)
    box.write("/opt/gate", f"#!/bin/sh\nwhile kill -0 $3 && ! [ -e {SEEN} ]; do sleep 0.05; done\n", mode=0o755)
    box.run(["mount", "--make-rshared", "/"], check=True)  # as on every host; credentials are mounted by way of that
    version = box.run(["systemctl", "--version"], check=True).stdout.split()[1]
    return Host(systemd_version=int(version), program=("/opt/gate",))


def start(box: Sandbox, host: Host, wanted: Service) -> dict[str, Any]:
    """Install the unit, start it, and return what its process saw."""
    text = render(wanted, None, host, fingerprint=fingerprint(wanted, None), after=[])
    box.write(f"/etc/systemd/system/{unit_name(wanted.name)}", text)
    box.run(["systemctl", "daemon-reload"], check=True)
    box.run(["systemctl", "start", unit_name(wanted.name)], check=True)
    seen: dict[str, Any] = json.loads(box.read(SEEN))
    assert seen["environ"]["SUPERVISED_RUN"] == run_hash(text)
    return seen


def test_a_service_finds_what_vllm_needs(box: Sandbox, host: Host) -> None:
    """Home and caches it may write to, its venv first on PATH, limits for many files and pinned memory."""
    box.write("/data/.keep", "")
    box.run(["chown", "vllm", "/data"], check=True)

    seen = start(box, host, service(gpus=[2, 0], arguments={"max-model-len": 4096}))

    assert seen["argv"] == ["serve", "org/model", "--port", "8000", "--max-model-len", "4096"]
    assert seen["cwd"] == seen["environ"]["HOME"] == "/var/lib/vllm"
    assert seen["environ"]["PATH"].split(":")[0] == "/opt/vllm/bin"
    assert seen["environ"]["CUDA_VISIBLE_DEVICES"] == "2,0"
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # where root may not raise it, as in some containers
    assert seen["files"] in ([65536, 524288], [most, most])
    may = {path for path, answer in seen["writes"].items() if answer == "yes"}
    assert may == {"/var/lib/vllm", "/var/cache/vllm", "/tmp", "/dev/shm", "/data"}
    assert seen["code"] == "yes"  # Triton and CUDA write code and run it
    assert box.run(["test", "-e", "/tmp/probe"]).returncode != 0  # its /tmp is its own


def test_a_secret_reaches_the_service_and_nobody_else(box: Sandbox, host: Host) -> None:
    box.write("/etc/secrets/hf", "hf_secret", mode=0o600)

    seen = start(box, host, service(credentials={"HF_TOKEN": "/etc/secrets/hf"}))

    assert seen["token"] == "hf_secret"
    assert box.run(["cat", seen["environ"]["HF_TOKEN_PATH"]], user="daemon").returncode != 0
    shown = box.run(["systemctl", "show", "vllm-probe"], check=True).stdout + json.dumps(seen["environ"])
    assert "hf_secret" not in shown + " ".join(seen["argv"])


@pytest.mark.parametrize(
    ("told", "answer"),
    [
        pytest.param({}, "Read-only file system", id="elsewhere"),
        pytest.param({"environment": {"HF_HOME": "/home/operator/hf"}}, "yes", id="named"),
    ],
)
def test_homes_are_written_to_only_if_the_service_is_told_of_one(
    box: Sandbox, host: Host, told: dict[str, Any], answer: str
) -> None:
    box.write("/home/operator/.keep", "")
    box.run(["chown", "vllm", "/home/operator"], check=True)

    assert start(box, host, service(**told))["writes"]["/home/operator"] == answer


def test_every_line_says_what_it_ran_with(box: Sandbox, host: Host) -> None:
    wanted = service(max_num_seqs=512)
    start(box, host, wanted)

    (line,) = box.journal("--unit=vllm-probe", "--grep=here I am")

    stamp = {k.removeprefix("VLLM_SUPERVISOR_"): v for k, v in line.items() if k.startswith("VLLM_SUPERVISOR_")}
    assert stamp == {"SERVICE": "probe", "MAX_NUM_SEQS": "512", "FINGERPRINT": fingerprint(wanted, None)}
    assert line["_TRANSPORT"] == "stdout"
