"""What operators, crashes and strangers do at the wrong moment, on a real systemd."""

from __future__ import annotations

import pytest

from tests.live.fleet import VLLM, Fleet
from tests.live.test_recovery import SINGLE


@pytest.fixture
def fleet(box):
    return Fleet(box)


def script(fleet, text):
    """A stand-in for `vllm` that a test writes itself; where it lies."""
    fleet.box.write("/opt/vllm/bin/scripted", f"#!/bin/sh\n{text}\n", mode=0o755)
    return "/opt/vllm/bin/scripted"


def rows(fleet, kind, name="a"):
    return [row for row in fleet.history(name) if row["kind"] == kind]


def test_another_server_on_the_port_is_not_ours(fleet):
    """It answers while ours still loads: that is no reason to call ours ready, which is about to die of it."""
    server = (
        "import http.server as h\n"
        "class H(h.BaseHTTPRequestHandler):\n"
        "  def do_GET(self): self.send_response(200 if self.path == '/health' else 404); self.end_headers()\n"
        "h.HTTPServer(('', 8000), H).serve_forever()"
    )
    fleet.box.run(["systemd-run", "--unit=other", "python3", "-c", server], check=True)
    fleet.box.wait_until(lambda: fleet.box.run(["curl", "-sf", "http://127.0.0.1:8000/health"]).returncode == 0, "it")
    fleet.configure({"a": {**SINGLE, "executable": script(fleet, f'sleep 2\nexec {VLLM} "$@"')}})
    fleet.start_daemon()
    fleet.supervisor("apply", "--no-wait")

    fleet.box.wait_until(lambda: rows(fleet, "reported") + rows(fleet, "waiting"), "a word on the failure", timeout=20)

    assert rows(fleet, "ready") == []
