"""A command in a sandbox, as seen from outside."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path


class Process(subprocess.Popen[str]):
    """A command in the sandbox, started through `nsenter`, which waits for it outside and ends as it ended."""

    def send_signal(self, sig: int) -> None:
        """Send a signal to the command rather than to `nsenter`.

        Killing `nsenter` would leave the command to be reaped by the host's PID 1, and until that has happened the
        kernel does not let the sandbox's PID namespace end.
        """
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        while self.poll() is None:
            if inside := children.read_text().split():
                os.kill(int(inside[0]), sig)
                return
            time.sleep(0.001)  # it has not entered yet
