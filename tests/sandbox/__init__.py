r"""A real systemd, journald and D-Bus in private namespaces, booted in under a second on the files of this machine.

The root is an overlay of the host's: everything installed is there, everything written is gone at the end, and nothing
of the host is touched. Services the host has enabled do not run. The network is a loopback of its own. The clone is
installed in /opt/vllm-supervisor, as `SUPERVISOR` and `PYTHON` say.

    with Sandbox() as box:
        box.write("/etc/systemd/system/hello.service", "[Service]\nExecStart=/bin/echo hello\n")
        box.run(["systemctl", "start", "hello"], check=True)
        assert "hello" in [entry["MESSAGE"] for entry in box.journal("--unit=hello")]

`python -m tests.sandbox [COMMAND ...]` gives a shell, or runs one command, in a fresh one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Self, TypeVar

from tests.sandbox.process import Process
from tests.sandbox.root import INSTALLED, SYSTEMD

T = TypeVar("T")

CLONE = Path(__file__).resolve().parents[2]
# The clone and its dependencies as a sandbox has them, where every service can reach them.
PYTHON = f"{INSTALLED}/bin/python"
SUPERVISOR = f"{INSTALLED}/bin/vllm-supervisor"
HOSTNAME = "sandbox"
SERVICE_USER = "vllm"
# For whatever is waited for. It ends what hangs; that something is quick is measured by the benchmarks, not here.
LIMIT_S = 120
# Debian's package for each program that a sandbox needs besides systemd itself.
PROGRAMS = {"nsenter": "util-linux", "setpriv": "util-linux", "systemctl": "systemd", "dbus-daemon": "dbus"}


class SandboxError(Exception):
    """The sandbox cannot be had, or did not do what every sandbox does; starts with "cannot"."""


def obstacle() -> str | None:
    """Say what this machine lacks to boot a sandbox, or None. Boots nothing, so the kernel may still refuse."""
    if sys.platform != "linux":
        return "cannot boot a sandbox: it takes Linux"
    if os.geteuid() != 0:
        return "cannot boot a sandbox: it takes root"
    if not any(os.access(path, os.X_OK) for path in SYSTEMD):
        return "cannot boot a sandbox: systemd is not installed; apt-get install systemd dbus"
    missing = sorted({package for program, package in PROGRAMS.items() if not shutil.which(program)})
    return f"cannot boot a sandbox: apt-get install {' '.join(missing)}" if missing else None


def _mount_id(path: Path) -> str:
    """The kernel's number of the mount that `path` is on; st_dev would not tell a bind mount."""
    descriptor = os.open(path, os.O_PATH)
    try:
        info = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
    finally:
        os.close(descriptor)
    return next(line.split()[1] for line in info.splitlines() if line.startswith("mnt_id:"))


class Sandbox:
    """One machine of its own, while the `with` block lasts.

    Args:
        env: variables for every command run in it, over the few set anyway.
        tmpfs: path to size (`"64M"`): a file system that can be filled up; it survives a reboot.
        storage: journald's `Storage=`; only `persistent` survives a reboot.
        visible: further paths of the host that must be seen though they are on other mounts than `/`. The clone, its
            virtual environment and the Python installation always are.
        boot_timeout_s: how long a boot may take before it is an error.

    Attributes:
        boot_s: seconds the last boot took until `systemctl is-system-running` was content.
        pid: its PID 1 as seen from outside.
    """

    def __init__(
        self,
        *,
        env: Mapping[str, str] | None = None,
        tmpfs: Mapping[str, str] | None = None,
        storage: Literal["persistent", "volatile"] = "persistent",
        visible: Sequence[Path] = (),
        boot_timeout_s: float = LIMIT_S,
    ) -> None:
        self._env = {
            "PATH": f"{INSTALLED}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "TERM": os.environ.get("TERM", "dumb"),
            **(env or {}),
        }
        python, site_packages = Path(sys.executable).resolve(), Path(sysconfig.get_path("purelib"))
        needed = [CLONE, Path(sys.prefix), python.parents[1], *visible]
        root = _mount_id(Path("/"))
        self._spec = {
            "layers": [str(path) for path in dict.fromkeys(needed) if _mount_id(path) != root],
            "clone": str(CLONE),
            "python": str(python),
            "site_packages": str(site_packages),
            "passable": [str(path) for path in dict.fromkeys(p for n in needed for p in reversed((n, *n.parents)))],
            "tmpfs": dict(tmpfs or {}),
            "storage": storage,
            "user": SERVICE_USER,
            "hostname": HOSTNAME,
        }
        self._boot_timeout_s = boot_timeout_s
        self._keeper: subprocess.Popen[str] | None = None
        self.boot_s = 0.0
        self.pid = 0

    def __enter__(self) -> Self:
        if reason := obstacle():
            raise SandboxError(reason)
        self._keeper = subprocess.Popen(
            [sys.executable, "-S", "-m", "tests.sandbox.keeper", json.dumps(self._spec)],
            cwd=CLONE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the test runner, which then ends us in order
        )
        try:
            self._boot()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End everything in it, at once and without shutting down. Harmless when it has ended."""
        if self._keeper and self._keeper.stdin and self._keeper.stdout:
            self._keeper.stdin.close()
            self._keeper.wait(timeout=30)
            self._keeper.stdout.close()
        self._keeper = None

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = LIMIT_S,
        check: bool = False,
        input: str | None = None,  # noqa: A002 - as subprocess.run has it
        user: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in it to its end, as root or as `user`, with its output captured.

        Raises:
            subprocess.TimeoutExpired: it took longer than `timeout` seconds and was killed.
            SandboxError: `check` is set and the exit code is not 0; the message holds what the command printed.
        """
        process = self.popen(
            argv,
            user=user,
            env=env,
            stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with process:
            try:
                out, err = process.communicate(input, timeout=timeout)
            except BaseException:
                process.kill()
                raise
        done = subprocess.CompletedProcess(list(argv), process.returncode, out, err)
        if check and done.returncode:
            raise SandboxError(f"cannot {' '.join(argv)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def popen(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[Any] | None = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
    ) -> Process:
        """Start a command in it. Signals sent to what is returned reach the command."""
        environment = {**self._env, **(env or {})}
        command = self.command(argv, user=user)
        return Process(command, env=environment, stdin=stdin, stdout=stdout, stderr=stderr, text=True, errors="replace")

    def command(self, argv: Sequence[str], *, user: str | None = None) -> list[str]:
        """The argument list that, run outside, runs `argv` inside."""
        namespaces = ["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]
        enter = ["nsenter", f"--target={self.pid}", *namespaces, "--root", "--wd", "--"]
        # The user first: until setpriv has started another program it has root's capabilities, and would find what the
        # user cannot reach; and a change of user clears the signal.
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
        return [*enter, *become, "setpriv", "--pdeathsig=KILL", *argv]

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file, and the directories above it, as root."""
        # Through a process inside: a link to an absolute path, followed from outside, would lead to the host's file.
        self.run(["install", "-D", f"--mode={mode:o}", "/dev/stdin", path], input=text, check=True)

    def read(self, path: str) -> str:
        """Read a file. Raises SandboxError when it cannot be."""
        return self.run(["cat", path], check=True).stdout

    def journal(self, *arguments: str) -> list[dict[str, Any]]:
        """Read the journal, with everything logged until now in it.

        Args:
            arguments: as for `journalctl`: `"--unit=x"`, `"_PID=1"`.

        Returns:
            One dictionary an entry, as `journalctl --output=json` gives them: fields that are not UTF-8 are lists of
            numbers, repeated fields are lists.
        """
        self.run(["journalctl", "--sync"], check=True)
        done = self.run(["journalctl", "--output=json", "--all", "--no-pager", "--quiet", *arguments])
        # 1 and no word is how `--grep` says that it found nothing.
        if done.returncode and (done.stdout or done.stderr or done.returncode != 1):
            raise SandboxError(f"cannot read the journal: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def wait_until(self, probe: Callable[[], T], what: str, *, timeout: float = LIMIT_S) -> T:
        """Call `probe` until it returns something true, and return that.

        Raises:
            AssertionError: it did not within `timeout` seconds; names `what` and shows the end of the journal.
        """
        deadline = time.monotonic() + timeout
        while not (found := probe()):
            if time.monotonic() > deadline:
                tail = self.run(["journalctl", "--no-pager", "--lines=40"]).stdout
                raise AssertionError(f"after {timeout:g} s still not so: {what}\n{tail}")
            time.sleep(0.02)
        return found

    def reboot(self, *, power_cut: bool = False) -> None:
        """Start PID 1 again on the same files: `/run` is fresh, the boot ID is new, the machine ID and `/var` stay.

        Args:
            power_cut: kill all at once instead of `systemctl reboot`.
        """
        if not power_cut:
            self.run(["systemctl", "reboot"], check=True)
            self.wait_until(lambda: not Path(f"/proc/{self.pid}/ns/pid").exists(), "the sandbox has shut down")
        self._ask("kill")
        self._boot()

    def _boot(self) -> None:
        start = time.monotonic()
        self.pid = self._ask("boot")["pid"]
        listening = Path(f"/proc/{self.pid}/root/run/systemd/private")
        while not listening.exists():
            if time.monotonic() - start > self._boot_timeout_s or not Path(f"/proc/{self.pid}").exists():
                raise SandboxError(f"cannot boot a sandbox: PID 1 did not come up in {self._boot_timeout_s:g} s")
            time.sleep(0.005)
        left = self._boot_timeout_s - (time.monotonic() - start)
        try:
            state = self.run(["systemctl", "is-system-running", "--wait"], timeout=left).stdout.strip()
        except subprocess.TimeoutExpired:
            state = "still starting"
        self.boot_s = time.monotonic() - start
        if state != "running":
            jobs = self.run(["sh", "-c", "systemctl list-jobs; systemctl --failed; journalctl -b -p warning -n 30"])
            raise SandboxError(f"cannot boot a sandbox: it is {state or 'gone'}\n{jobs.stdout}{jobs.stderr}")

    def _ask(self, what: str) -> dict[str, Any]:
        if not (self._keeper and self._keeper.stdin and self._keeper.stdout):
            raise SandboxError(f"cannot {what} a sandbox that has ended")
        try:
            self._keeper.stdin.write(f"{what}\n")
            self._keeper.stdin.flush()
        except BrokenPipeError:
            pass  # it has told why on its way out
        line = self._keeper.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "cannot tell why: the keeper ended; see above"}
        if "error" in answer:
            raise SandboxError(f"cannot {what} a sandbox: {answer['error']}")
        return answer
