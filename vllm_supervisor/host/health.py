"""Does a vLLM server serve? One question over HTTP, asked the way a client would."""

from __future__ import annotations

import http.client
import json
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

HEALTH_TIMEOUT_S = 5.0
CANARY_TIMEOUT_S = 300.0
"""The first request may compile kernels, which takes minutes on a large model."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: `ready`, and one phrase that says what it rests on."""

    ready: bool
    said: str


def probe(url: str) -> Answer:
    """Ask a vLLM server whether it is ready: /health, then one token of a completion.

    A server that needs an API key, or that generates no text, answers the completion with 4xx: it serves, and that is
    as much as a stranger can learn. A 5xx is a server that came up and cannot work.

    Args:
        url: base URL, `http://127.0.0.1:8000`. A certificate is not checked: we ask the process on this host.

    Returns:
        Never raises for anything the server does or does not do.
    """
    health = _request(url, "GET", "/health", timeout_s=HEALTH_TIMEOUT_S)
    if health.status != 200:
        return Answer(False, f"/health: {health.said}")
    models = _request(url, "GET", "/v1/models", timeout_s=HEALTH_TIMEOUT_S)
    if 400 <= models.status < 500:
        return Answer(True, f"/health answers; no canary: /v1/models says {models.status}")
    name = _first_model(models.body)
    if name is None:
        return Answer(False, f"/v1/models: {models.said}")
    canary = json.dumps({"model": name, "prompt": "1", "max_tokens": 1, "temperature": 0})
    answer = _request(url, "POST", "/v1/completions", body=canary, timeout_s=CANARY_TIMEOUT_S)
    if answer.status == 200:
        return Answer(True, "/health and a canary completion answer")
    if 400 <= answer.status < 500:
        return Answer(True, f"/health answers; no canary: /v1/completions says {answer.status}")
    return Answer(False, f"canary completion: {answer.said}")


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    body: bytes
    said: str


def _request(url: str, method: str, path: str, *, timeout_s: float, body: str | None = None) -> _Reply:
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl._create_unverified_context()  # noqa: S323 - our own process on this host
        connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request(method, path, body=body, headers={"Content-Type": "application/json"} if body else {})
        response = connection.getresponse()
        return _Reply(response.status, response.read(1 << 20), f"{response.status} {response.reason}")
    except (OSError, http.client.HTTPException) as e:
        return _Reply(0, b"", str(e) or type(e).__name__)
    finally:
        connection.close()


def _first_model(body: bytes) -> str | None:
    try:
        name = json.loads(body)["data"][0]["id"]
    except (ValueError, LookupError, TypeError):
        return None
    return name if isinstance(name, str) else None
