"""HTTP as far as a supervisor, a load balancer and curl need it: one thread, keep-alive, bodies with a length."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

_LARGEST_REQUEST = 16 << 20  # bytes
_SEND_TIMEOUT_S = 5.0

REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
    500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip


class Request(NamedTuple):
    """A whole request; header names are in lower case, `target` is as it was sent."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]


class Response(NamedTuple):
    """What to answer."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"


class Connection:
    """One client; `receive` is called when its socket is readable.

    Args:
        client: the accepted socket.
        peer: the client as the access log shows it.
        answer: turns a request into a response.
        access: writes a line of the access log.
    """

    def __init__(
        self, client: socket.socket, peer: str, answer: Callable[[Request], Response], access: Callable[[str], None]
    ) -> None:
        client.settimeout(_SEND_TIMEOUT_S)
        self.socket = client
        self._peer = peer
        self._answer = answer
        self._access = access
        self._buffer = b""

    def receive(self) -> bool:
        """Take what came and answer every request that is whole; False when the connection is over."""
        try:
            piece = self.socket.recv(1 << 16)
        except OSError:
            return False
        self._buffer += piece
        while piece and (request := self._take_request()) is not None:
            if not self._respond(request):
                return False
        return bool(piece) and len(self._buffer) <= _LARGEST_REQUEST

    def _take_request(self) -> Request | None:
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        length = headers.get("content-length", "0")
        length_bytes = int(length) if length.isdecimal() else 0
        if len(rest) < length_bytes:
            return None
        self._buffer = rest[length_bytes:]
        method, target, *_ = *first.split(" "), "", ""
        return Request(method, target, headers, rest[:length_bytes])

    def _respond(self, request: Request) -> bool:
        response = self._answer(request)
        reason = REASONS[response.status]
        keep = request.headers.get("connection", "").lower() != "close"
        head = (
            f"HTTP/1.1 {response.status} {reason}\r\nserver: uvicorn\r\ncontent-length: {len(response.body)}\r\n"
            f"content-type: {response.content_type}\r\n{'' if keep else 'connection: close'}"
        )
        self._access(
            f'INFO:     {self._peer} - "{request.method} {request.target} HTTP/1.1" {response.status} {reason}'
        )
        with suppress(OSError):
            self.socket.sendall(head.rstrip("\r\n").encode() + b"\r\n\r\n" + response.body)
            return keep
        return False
