"""The readiness probe against real HTTP servers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from vllm_supervisor.host import health

MODELS = json.dumps({"data": [{"id": "m"}]})


@contextmanager
def server(answers: dict[str, tuple[int, str]]) -> Iterator[str]:
    """Serve fixed answers by path; gives the base URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.get(self.path, (404, ""))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        do_POST = do_GET  # noqa: N815 - the library's name

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()


@pytest.mark.parametrize(
    ("answers", "ready"),
    [
        pytest.param(
            {"/health": (200, ""), "/v1/models": (200, MODELS), "/v1/completions": (200, "{}")}, True, id="serves"
        ),
        pytest.param({"/health": (503, "")}, False, id="engine-dead"),
        pytest.param({"/health": (200, ""), "/v1/models": (401, "")}, True, id="wants-an-api-key"),
        pytest.param(
            {"/health": (200, ""), "/v1/models": (200, MODELS), "/v1/completions": (404, "")},
            True,
            id="generates-no-text",
        ),
        pytest.param(
            {"/health": (200, ""), "/v1/models": (200, MODELS), "/v1/completions": (500, "")},
            False,
            id="first-request-fails",
        ),
        pytest.param({"/health": (200, ""), "/v1/models": (200, "<html>")}, False, id="somebody-else's-server"),
        pytest.param({"/health": (200, ""), "/v1/models": (200, '{"data": []}')}, False, id="no-model"),
    ],
)
def test_ready_means_health_and_a_canary(answers, ready):
    """A server is ready when /health answers and a one-token completion is not an error of the server's."""
    with server(answers) as url:
        assert health.probe(url).ready is ready


def test_nothing_listening_is_not_ready_and_no_exception():
    """While vLLM loads, the port refuses."""
    assert not health.probe("http://127.0.0.1:1").ready
