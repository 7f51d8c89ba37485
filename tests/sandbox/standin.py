"""A `vllm` for measurements, where sixty-four of them share two cores: 8 MB, 20 ms, and the lines of a real one.

It prints a real start, fails as a real one does when it is given more sequences than fit, and serves otherwise, in one
process. The simulator does more, and costs more. It cannot be asked for its flags, as a wrapper for a shell cannot.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.sandbox import CLONE, PYTHON, Sandbox

PROGRAM = "/opt/vllm/bin/stand-in"
BARRIER = "/run/barrier"
"""Where this is a FIFO, a start that will fail waits until it is opened for writing, with a file in `ARRIVED`."""

ARRIVED = "/run/arrived"
SENTENCE = "when warming up sampler with 1024 dummy requests"
FIRST_PORT = 20000

_CORPUS = CLONE / "tests/corpus"
_HEALTHY = _CORPUS / "none/0.32.0-ok.log"
_FAILING = _CORPUS / "sampler-oom/0.32.0-warmup-sampler-1024.log"
_TEXT = """#!/bin/sh
exec {python} -IS /opt/vllm/bin/stand-in.py "$@"
"""
_BODY = """
import os, sys

def given(flag, default):
    return int(sys.argv[sys.argv.index(flag) + 1]) if flag in sys.argv else default

def say(name, old="", new=""):
    with open("/opt/vllm/" + name, encoding="utf-8") as log:
        sys.stdout.write(log.read().replace(old, new) if old else log.read())
    sys.stdout.flush()

seqs, port = given("--max-num-seqs", 1024), given("--port", 8000)
if seqs > int(os.environ["FITS"]):
    say("before.log")
    if os.path.exists("{barrier}"):
        open("{arrived}/%d" % port, "w").close()
        open("{barrier}").read()
    say("failure.log", "with 1024 dummy", "with %d dummy" % seqs)
    sys.exit(1)
say("healthy.log")
import socket
listening = socket.create_server(("", port), backlog=16)
while True:
    connection, _ = listening.accept()
    with connection:
        asked = connection.recv(65536)
        body = b'{{"data": [{{"id": "m"}}]}}' if b"/models" in asked[:40] else b"{{}}"
        connection.sendall(b"HTTP/1.0 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body)
"""


def install(box: Sandbox) -> None:
    """Put it into a sandbox."""
    lines = _FAILING.read_text(encoding="utf-8").splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if "_dummy_sampler_run" in line)
    logs = {"before": lines[:first], "failure": lines[first:], "healthy": [_HEALTHY.read_text(encoding="utf-8")]}
    for name, text in logs.items():
        box.write(f"/opt/vllm/{name}.log", "".join(text))
    box.write(PROGRAM, _TEXT.format(python=PYTHON), mode=0o755)
    box.write(f"{PROGRAM}.py", _BODY.format(barrier=BARRIER, arrived=ARRIVED))


def service(number: int, *, fits: int, **keys: Any) -> dict[str, Any]:
    """The entry of one service with a GPU and a port of its own, which fails with more than `fits` sequences."""
    return {
        "model": "org/small",
        "executable": PROGRAM,
        "gpus": [number],
        "port": FIRST_PORT + number,
        "environment": {"FITS": fits},
        **keys,
    }


def make_barrier(box: Sandbox) -> None:
    """From now on starts that will fail wait for each other."""
    script = f"rm -rf {ARRIVED} {BARRIER}; mkdir -m 1777 {ARRIVED}; mkfifo -m 644 {BARRIER}"
    box.run(["sh", "-c", script], check=True)


def wait_for_arrival(box: Sandbox, count: int) -> None:
    """Wait until so many starts wait for each other."""
    arrived = Path(f"/proc/{box.pid}/root{ARRIVED}")
    box.wait_until(lambda: len(list(arrived.iterdir())) >= count, f"{count} starts at the barrier", timeout=300)


def open_barrier(box: Sandbox) -> None:
    """Let all that wait fail at once, and whatever comes after them without waiting."""
    box.run(["sh", "-c", f": >{BARRIER}; rm {BARRIER}"], check=True)


def all_ready(box: Sandbox, names: Sequence[str]) -> bool:
    """Whether every service serves; asked once a second at most, since asking costs PID 1 something too."""
    time.sleep(1)
    units = [f"vllm-{name}.service" for name in names]
    return set(box.run(["systemctl", "is-active", *units]).stdout.split()) == {"active"}
