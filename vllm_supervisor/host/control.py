"""The control socket: how somebody without root has a command of ours run, and how root's side answers.

One connection is one command. The client sends its arguments as a JSON list on one line, and gets one JSON object back:
`{"code": 0, "out": "...", "err": "..."}`. systemd listens, and starts a process of its own for each connection.
"""

from __future__ import annotations

import json
import os
import pwd
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from vllm_supervisor.errors import HostError, PermissionDeniedError

GROUP = "vllm-operators"
"""Whose members may connect; the socket unit names it too."""

LINE_LIMIT = 4096
"""Bytes of a request; the longest that means anything is under 100."""

ANSWER_LIMIT = 64 << 20
"""Bytes of an answer; the whole history with its longest quotes is a tenth of that."""

READ_S = 5.0
"""A client sends its line at once, or is not served."""

WRITE_S = 10.0
"""How long the whole answer may take to be taken."""

ANSWER_S = 60.0
"""How long a client waits for any part of the answer: `explain` may have a long journal to read."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


def ask(path: Path, arguments: Sequence[str]) -> Answer:
    """Have a command run by root's side.

    Raises:
        PermissionDeniedError: the user may not, or nobody answers there, which leaves root.
        HostError: no answer came.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(ANSWER_S)
        try:
            connection.connect(str(path))
        except PermissionError as e:
            raise PermissionDeniedError(
                f"cannot do that as {user_name(os.getuid())}: it takes root, or the group {GROUP}",
                hint=f"ask to be added to the group {GROUP}, and log in again",
            ) from e
        except (FileNotFoundError, ConnectionRefusedError) as e:
            raise PermissionDeniedError(
                f"cannot do that without root: nobody answers at {path}",
                hint="run it as root, or see there to vllm-supervisor-control.socket",
            ) from e
        except OSError as e:
            raise HostError(f"cannot connect to {path}: {e}") from e
        try:
            connection.sendall(json.dumps(list(arguments)).encode() + b"\n")
            return Answer(**json.loads(_all(connection)))
        except (OSError, ValueError, TypeError) as e:
            raise HostError(
                f"cannot get an answer at {path}: {e}",
                hint="try again; if it stays so, root finds why with `journalctl -u 'vllm-supervisor-control*'`",
            ) from e


def _all(connection: socket.socket) -> bytes:
    parts, left = [], ANSWER_LIMIT
    while left > 0 and (part := connection.recv(min(65536, left))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def take_over(descriptor: int) -> socket.socket:
    """The connection that systemd handed over."""
    connection = socket.socket(fileno=os.dup(descriptor))
    connection.setblocking(True)
    return connection


def read_request(connection: socket.socket) -> list[str]:
    """The arguments that the client sent.

    Raises:
        HostError: it sent nothing, too much, something else, or went away.
    """
    data, deadline_s = b"", time.monotonic() + READ_S
    try:
        while b"\n" not in data:
            connection.settimeout(max(deadline_s - time.monotonic(), 0.001))
            part = connection.recv(LINE_LIMIT + 1 - len(data))
            data += part
            if not part or len(data) > LINE_LIMIT:
                raise HostError("cannot read the request: it is no line of at most 4096 bytes")
        request = json.loads(data.partition(b"\n")[0])
    except (OSError, ValueError, RecursionError) as e:
        raise HostError(f"cannot read the request: {e}") from e
    if not isinstance(request, list) or not request or not all(isinstance(word, str) for word in request):
        raise HostError("cannot read the request: it is no list of words")
    return request


def reply(connection: socket.socket, answer: Answer) -> None:
    """Send the answer, to whoever still waits for it.

    Raises:
        HostError: the client went away, or does not take it.
    """
    connection.settimeout(WRITE_S)
    try:
        connection.sendall(json.dumps(asdict(answer)).encode())
    except OSError as e:
        raise HostError(f"cannot answer: {e}") from e


def peer(connection: socket.socket) -> str:
    """The user at the other end, as the kernel recorded it when the connection was made."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return user_name(uid)


def user_name(uid: int) -> str:
    """Name of a user; `uid 1000` for one that has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
