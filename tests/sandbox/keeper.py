"""Holds one sandbox: prepares its root file system, starts systemd in it as often as asked, and cleans up at the end.

It runs as a program of its own, so that the sandbox outlives nobody: when the test runner goes away, however it goes,
standard input ends and everything is taken down; when the keeper itself is killed, the kernel takes PID 1 along
(`PR_SET_PDEATHSIG`), PID 1 takes its whole PID namespace along, and the mounts vanish with their last process.

Protocol: the specification is the first argument, as JSON. Each line on standard input, `boot` or `kill`, is answered
by one JSON object on standard output: `{"pid": N}` (PID 1 as seen from outside), `{}`, or `{"error": "cannot ..."}`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from tests.sandbox.linux import (
    CLONE_NEWCGROUP,
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUTS,
    MS_MOVE,
    KernelError,
    die_with_parent,
    drop_capability,
    mount,
    unshare,
)
from tests.sandbox.root import CGROUPS, ROOT, SYSTEMD, Spec, mount_api_file_systems, prepare

# linux/capability.h: what could change the machine around the sandbox; systemd skips the units that need them.
CAPABILITIES_DROPPED = {"SYS_MODULE": 16, "SYS_RAWIO": 17, "SYS_TIME": 25, "AUDIT_CONTROL": 30, "AUDIT_READ": 37}


def start(cgroup: Path, hostname: str) -> tuple[int, int]:
    """Start systemd as PID 1 of fresh namespaces; return the PIDs of the process that waits for it and of PID 1."""
    reader, writer = os.pipe()
    waiter = os.fork()
    if waiter == 0:
        os.close(reader)
        try:
            wait_for_init(cgroup, hostname, writer)
        except (KernelError, OSError) as error:
            os.write(writer, json.dumps({"error": str(error)}).encode() + b"\n")
        os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as answers:  # ends when PID 1 has become systemd: the pipe closes on exec
        said = [json.loads(line) for line in answers]
    for answer in said:
        if "error" in answer:
            os.waitpid(waiter, 0)
            raise KernelError(answer["error"])
    return waiter, said[0]["pid"]


def wait_for_init(cgroup: Path, hostname: str, answers: int) -> NoReturn:
    """Enter the namespaces, fork PID 1, tell its PID, and live as long as it does."""
    die_with_parent()
    unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET)
    init = os.fork()
    if init == 0:
        die_with_parent()
        # Only PID 1 joins: systemd cannot hand out controllers while a process it does not see sits in its root group.
        (cgroup / "cgroup.procs").write_text("0")
        unshare(CLONE_NEWCGROUP)
        become_init(hostname)
    os.write(answers, json.dumps({"pid": init}).encode() + b"\n")
    os.close(answers)
    for descriptor in (0, 1):
        os.close(descriptor)
    os.waitpid(init, 0)
    os._exit(0)


def become_init(hostname: str) -> NoReturn:
    """Mount what a boot starts afresh with, make the prepared root our root, and become systemd."""
    os.setsid()
    socket.sethostname(hostname)
    mount_api_file_systems()
    os.chdir(ROOT)
    mount(".", "/", flags=MS_MOVE)
    os.chroot(".")
    for capability in CAPABILITIES_DROPPED.values():
        drop_capability(capability)
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    program = next(path for path in SYSTEMD if os.access(path, os.X_OK))
    # Any value of container= tells systemd not to touch the hardware and the kernel's settings.
    os.execve(program, [program, "--system", "--unit=multi-user.target"], {"container": "sandbox"})


def remove_cgroup(cgroup: Path) -> None:
    """Remove the directories that a dead systemd left in the cgroup tree."""
    for directory, _, _ in os.walk(cgroup, topdown=False):
        Path(directory).rmdir()


class Keeper:
    """The running sandbox, if any, behind the two commands."""

    def __init__(self, spec: Spec) -> None:
        prepare(spec)
        self.hostname = spec.hostname
        self.cgroup = CGROUPS / f"vllm-supervisor-{spec.hostname}-{uuid.uuid4().hex[:12]}"
        self.running: tuple[int, int] | None = None

    def boot(self) -> dict[str, int]:
        """Start a PID 1; what is left of the one before goes first."""
        self.kill()
        self.cgroup.mkdir()
        waiter, init = start(self.cgroup, self.hostname)
        self.running = waiter, os.pidfd_open(init)  # its number may be another's once it has ended
        return {"pid": init}

    def kill(self) -> dict[str, int]:
        """Kill PID 1 and, by that, all in its namespace; return when the last is gone."""
        if self.running:
            waiter, init = self.running
            self.running = None
            with suppress(ProcessLookupError):  # it has shut down
                signal.pidfd_send_signal(init, signal.SIGKILL)
            os.close(init)
            os.waitpid(waiter, 0)
        if self.cgroup.exists():
            remove_cgroup(self.cgroup)
        return {}


def main() -> None:
    """Answer commands until standard input ends."""
    try:
        keeper = Keeper(Spec(**json.loads(sys.argv[1])))
    except (KernelError, OSError) as error:
        print(json.dumps({"error": str(error)}), flush=True)
        sys.exit(1)
    try:
        for line in sys.stdin:
            answer: dict[str, int] | dict[str, str]
            try:
                answer = {"boot": keeper.boot, "kill": keeper.kill}[line.strip()]()
            except (KernelError, OSError) as error:
                answer = {"error": str(error)}
            print(json.dumps(answer), flush=True)
    finally:
        keeper.kill()


if __name__ == "__main__":
    main()
