"""What systemd is told: one message stays one."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from vllm_supervisor.host.notify import Notifier


def test_a_text_of_several_lines_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of its own would be a setting, such as MAINPID=; what a program of the host printed is passed on here."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))

        Notifier().status("cannot reload: exit code 1:\nMAINPID=1\r\nREADY=1")

        assert listener.recv(1000) == b"STATUS=cannot reload: exit code 1: MAINPID=1 READY=1"
