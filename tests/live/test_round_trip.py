"""From YAML by way of a unit to systemd's own parser and back: what it read is what was asked for."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import given

from tests.properties import searching
from tests.sandbox import PYTHON, Sandbox
from tests.unit.config.asked import STYLES, configurations, taken, written
from vllm_supervisor.config import Service
from vllm_supervisor.units import Host, fingerprint, render, run_hash, serve_argv

# In the sandbox: puts the units down, has them all read by one reload, and asks PID 1 what each of them says. D-Bus
# gives lists as lists; what `systemctl show` prints of them cannot be told apart again.
ASK = """
import json, pathlib, subprocess, sys
units = json.load(sys.stdin)
for name, text in units.items():
    pathlib.Path("/etc/systemd/system", name).write_text(text)
subprocess.run(["systemctl", "daemon-reload"], check=True)
answers = {}
for name in units:
    path = "/org/freedesktop/systemd1/unit/" + "".join(c if c.isalnum() else f"_{ord(c):02x}" for c in name)
    command = ["busctl", "--json=short", "get-property", "org.freedesktop.systemd1", path]
    properties = ["ExecStart", "Environment", "LogExtraFields", "LoadCredential"]
    lines = subprocess.run([*command, "org.freedesktop.systemd1.Service", *properties], check=True, capture_output=True)
    answers[name] = [json.loads(line)["data"] for line in lines.stdout.splitlines()]
json.dump(answers, sys.stdout)
"""


def test_systemd_reads_what_was_asked_for(box: Sandbox) -> None:
    """Every word of the command, every variable, every stamp, every credential, of services of every shape."""
    services: list[Service] = []

    @searching(60)
    @given(configurations(), STYLES)
    def collect(asked: Mapping[str, Any], style: str) -> None:
        with tempfile.TemporaryDirectory() as directory:
            services.extend(taken(written(asked, style), Path(directory)).values())

    collect()
    host = Host(252, ("/opt/gate",))
    units = {
        f"u{number}.service": render(service, None, host, fingerprint=fingerprint(service, None), after=[])
        for number, service in enumerate(services)
    }
    answer = box.run([PYTHON, "-c", ASK], input=json.dumps(units), check=True, timeout=300).stdout
    read: dict[str, list[Any]] = json.loads(answer)

    assert len(read) == len(services) > 50
    for service, (name, said) in zip(services, read.items(), strict=True):
        check(service, units[name], *said)


def check(service: Service, unit: str, commands: Any, variables: Any, stamps: Any, credentials: Any) -> None:
    """What systemd says of one unit, against its service."""
    (command,) = commands
    # A dollar is undone only when the process starts, as tests/live/test_quoting.py sees.
    assert [word.replace("$$", "$") for word in command[1]] == serve_argv(service, None)
    assert command[0] == str(service.executable)
    given = dict(pair.split("=", 1) for pair in variables)
    assert {key: given.get(key) for key in service.environment} == dict(service.environment)
    assert given["CUDA_VISIBLE_DEVICES"] == ",".join(map(str, service.gpus or ()))
    assert given["SUPERVISED_RUN"] == run_hash(unit)
    assert {bytes(stamp).decode() for stamp in stamps} == {
        f"VLLM_SUPERVISOR_SERVICE={service.name}",
        f"VLLM_SUPERVISOR_MAX_NUM_SEQS={service.max_num_seqs or 'default'}",
        f"VLLM_SUPERVISOR_FINGERPRINT={fingerprint(service, None)}",
    }
    assert dict(credentials) == {key: str(path) for key, path in service.credentials.items()}
