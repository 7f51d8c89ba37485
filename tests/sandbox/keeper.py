"""Holds one sandbox: prepares its root file system, starts systemd in it as often as asked, and cleans up at the end.

It runs as a program of its own, so that the sandbox outlives nobody: when the test runner goes away, however it goes,
standard input ends and everything is taken down; when the keeper itself is killed, the kernel takes PID 1 along
(`PR_SET_PDEATHSIG`), PID 1 takes its whole PID namespace along, and the mounts vanish with their last process.

Protocol: the specification is the first argument, as JSON. Each line on standard input, `boot` or `kill`, is answered
by one JSON object on standard output: `{"pid": N}` (PID 1 as seen from outside), `{}`, or `{"error": "cannot ..."}`.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

# linux/mount.h, linux/sched.h, linux/prctl.h, linux/capability.h
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x1, 0x2, 0x4, 0x8
MS_REMOUNT, MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 0x20, 0x1000, 0x2000, 0x4000, 0x40000
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS = 0x00020000, 0x02000000, 0x04000000
CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = 0x08000000, 0x20000000, 0x40000000
PR_SET_PDEATHSIG, PR_CAPBSET_DROP = 1, 24
# What could change the machine around the sandbox; systemd skips the units that need them.
CAPABILITIES_DROPPED = {"SYS_MODULE": 16, "SYS_RAWIO": 17, "SYS_TIME": 25, "AUDIT_CONTROL": 30, "AUDIT_READ": 37}

SYSTEMD = ("/usr/lib/systemd/systemd", "/lib/systemd/systemd")
# No clone and no interpreter lives below /sys, so hiding it in our own mount namespace hides nothing we need.
BENCH = Path("/sys")
ROOT = BENCH / "root"
INSTALLED = "/opt/vllm-supervisor"
CGROUPS = BENCH / "cgroup"
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
# They work on the machine, not on services, or only cost time.
MASKED = (
    "dev-hugepages.mount",
    "getty.target",
    "proc-sys-fs-binfmt_misc.automount",
    "sys-fs-fuse-connections.mount",
    "sys-kernel-config.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "systemd-journald-audit.socket",
    "systemd-tmpfiles-clean.timer",
    "systemd-udevd.service",
    "systemd-udevd-control.socket",
    "systemd-udevd-kernel.socket",
    "systemd-udev-trigger.service",
    "systemd-update-utmp.service",
    "systemd-update-utmp-runlevel.service",
)

libc = ctypes.CDLL(None, use_errno=True)


class KeeperError(Exception):
    """One sentence starting with "cannot", for the test runner to show."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What the test runner asks for.

    Attributes:
        layers: paths that need an overlay of their own since the one of `/` does not show what is mounted below it.
        clone: the project's directory.
        python: the interpreter itself, not a virtual environment's link to it.
        site_packages: where that virtual environment keeps what was installed.
        passable: directories that every user may pass, so that service users reach the interpreter.
        tmpfs: path to size, in the kernel's spelling (`64M`); kept over a reboot.
        storage: journald's `Storage=`.
        user: a system user to add.
        hostname: of the sandbox.
    """

    layers: list[str]
    clone: str
    python: str
    site_packages: str
    passable: list[str]
    tmpfs: dict[str, str]
    storage: str
    user: str
    hostname: str


def check(result: int, what: str) -> None:
    """Turn the -1 of a C library call into an error that says what could not be done."""
    if result == -1:
        raise KeeperError(f"cannot {what}: {os.strerror(ctypes.get_errno())}")


def mount(source: str | Path, target: str | Path, fstype: str = "", flags: int = 0, data: str = "") -> None:
    """Mount, bind, move or remount, as the flags say. Raises KeeperError."""
    result = libc.mount(
        os.fsencode(source), os.fsencode(target), fstype.encode(), ctypes.c_ulong(flags), os.fsencode(data)
    )
    check(result, f"mount {fstype or source} on {target}")


def bind(source: str | Path, target: str | Path, *, read_only: bool = False) -> None:
    """Show `source` at `target` too."""
    mount(source, target, flags=MS_BIND)
    if read_only:  # the kernel takes this flag in a second step only
        mount("none", target, flags=MS_REMOUNT | MS_BIND | MS_RDONLY)


def inside(path: str) -> Path:
    """Where an absolute path of the sandbox is while its root is being prepared."""
    return ROOT / path.lstrip("/")


def prepare(spec: Spec) -> None:
    """Build the root file system in a mount namespace of our own. Done once; it outlives each boot."""
    check(libc.unshare(CLONE_NEWNS), "make a mount namespace (root with CAP_SYS_ADMIN is needed)")
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    mount("tmpfs", BENCH, "tmpfs", data="mode=0755")
    ROOT.mkdir()
    for number, layer in enumerate(["/", *spec.layers]):
        overlay(layer, BENCH / f"layer{number}")
    CGROUPS.mkdir()
    mount("cgroup2", CGROUPS, "cgroup2")
    for path in spec.passable:
        inside(path).chmod(inside(path).stat().st_mode | 0o011)
    configure(spec)
    install(spec)
    for path, size in spec.tmpfs.items():
        inside(path).mkdir(parents=True, exist_ok=True)
        mount("tmpfs", inside(path), "tmpfs", MS_NOSUID | MS_NODEV, f"mode=0755,size={size}")


def overlay(lower: str, layer: Path) -> None:
    """Lay a writable, empty layer over what the host has at `lower`."""
    for part in (upper := layer / "upper", work := layer / "work"):
        part.mkdir(parents=True)
    status = Path(lower).stat()
    upper.chmod(status.st_mode & 0o7777)
    os.chown(upper, status.st_uid, status.st_gid)
    inside(lower).mkdir(parents=True, exist_ok=True)
    escaped = lower.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
    mount("overlay", inside(lower), "overlay", data=f"lowerdir={escaped},upperdir={upper},workdir={work}")


def configure(spec: Spec) -> None:
    """Make it a machine of its own: identity, no services of the host's, a journal, a service user."""
    shutil.rmtree(inside("/etc/systemd"), ignore_errors=True)
    journal = BENCH / "journal"
    journal.mkdir()
    inside("/var/log/journal").mkdir(parents=True, exist_ok=True)
    bind(journal, inside("/var/log/journal"))
    etc = {
        "machine-id": uuid.uuid4().hex + "\n",
        "hostname": spec.hostname + "\n",
        "hosts": f"127.0.0.1 localhost {spec.hostname}\n::1 localhost\n",
        ".updated": "",  # or ConditionNeedsUpdate=/etc rebuilds the hardware database at every boot
        "../var/.updated": "",
        "systemd/journald.conf": f"[Journal]\nStorage={spec.storage}\nSystemMaxUse=1G\nRuntimeMaxUse=1G\nAudit=no\n",
        "systemd/system.conf": "[Manager]\nShowStatus=no\n",
    }
    for name, text in etc.items():
        path = inside("/etc") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # it may be a link to somewhere else
        path.write_text(text)
    mask(inside("/etc/systemd/system"), MASKED)
    mask(inside("/etc/tmpfiles.d"), ["tmp.conf"])  # Debian's empties /tmp at boot; the clone may live there
    for vendor in ("/usr/lib", "/lib", "/usr/local/lib", "/etc"):
        generators = inside(f"{vendor}/systemd/system-generators")
        mask(inside("/etc/systemd/system-generators"), [path.name for path in generators.glob("*")])
    add_user(spec.user)


def install(spec: Spec) -> None:
    """Lay the clone and its virtual environment out as an installation in /opt.

    A service with PrivateTmp= does not see a clone in /tmp, and to one with ProtectHome= a home may be closed.
    """
    place = inside(INSTALLED)
    shutil.rmtree(place, ignore_errors=True)
    source = place / "src"
    packages = place / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    for directory, seen_from in ((source, spec.clone), (packages, spec.site_packages)):
        directory.mkdir(parents=True)
        mount(inside(seen_from), directory, flags=MS_BIND | MS_REC)
    for path in packages.glob("*.pth"):  # one of them names the clone: that is how it is installed there
        path.write_text(path.read_text().replace(spec.clone, f"{INSTALLED}/src"))
    (place / "pyvenv.cfg").write_text(f"home = {Path(spec.python).parent}\ninclude-system-site-packages = false\n")
    (place / "bin").mkdir()
    (place / "bin/python").symlink_to(spec.python)
    program = place / "bin/vllm-supervisor"
    program.write_text(
        f"#!{INSTALLED}/bin/python\nimport sys\nfrom vllm_supervisor.cli import main\nsys.exit(main())\n"
    )
    program.chmod(0o755)


def mask(directory: Path, names: tuple[str, ...] | list[str]) -> None:
    """Switch off units, generators or tmpfiles by name, systemd's way."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        (directory / name).unlink(missing_ok=True)
        (directory / name).symlink_to("/dev/null")


def add_user(name: str) -> None:
    """Add a system user with a home below /var/lib, as a package would."""
    entries = [line.split(":") for line in inside("/etc/passwd").read_text().splitlines()]
    if any(entry[0] == name for entry in entries):
        return
    taken = {int(line.split(":")[2]) for line in inside("/etc/group").read_text().splitlines() if line}
    taken |= {int(entry[2]) for entry in entries if len(entry) > 2}
    number = max(set(range(100, 1000)) - taken)
    home = f"/var/lib/{name}"
    for path, line in {
        "/etc/passwd": f"{name}:x:{number}:{number}::{home}:/usr/sbin/nologin\n",
        "/etc/group": f"{name}:x:{number}:\n",
        "/etc/shadow": f"{name}:!*:19000::::::\n",
    }.items():
        with inside(path).open("a") as file:
            file.write(line)
    inside(home).mkdir(mode=0o750, exist_ok=True)
    os.chown(inside(home), number, number)


def start(cgroup: Path, hostname: str) -> tuple[int, int]:
    """Start systemd as PID 1 of fresh namespaces; return the PIDs of the process that waits for it and of PID 1."""
    reader, writer = os.pipe()
    waiter = os.fork()
    if waiter == 0:
        os.close(reader)
        try:
            wait_for_init(cgroup, hostname, writer)
        except (KeeperError, OSError) as error:
            os.write(writer, json.dumps({"error": str(error)}).encode() + b"\n")
        os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as answers:  # ends when PID 1 has become systemd: the pipe closes on exec
        said = [json.loads(line) for line in answers]
    for answer in said:
        if "error" in answer:
            os.waitpid(waiter, 0)
            raise KeeperError(answer["error"])
    return waiter, said[0]["pid"]


def wait_for_init(cgroup: Path, hostname: str, answers: int) -> NoReturn:
    """Enter the namespaces, fork PID 1, tell its PID, and live as long as it does."""
    die_with_parent()
    check(libc.unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET), "make namespaces")
    init = os.fork()
    if init == 0:
        die_with_parent()
        # Only PID 1 joins: systemd cannot hand out controllers while a process it does not see sits in its root group.
        (cgroup / "cgroup.procs").write_text("0")
        check(libc.unshare(CLONE_NEWCGROUP), "make a cgroup namespace")
        become_init(hostname)
    os.write(answers, json.dumps({"pid": init}).encode() + b"\n")
    os.close(answers)
    for descriptor in (0, 1):
        os.close(descriptor)
    os.waitpid(init, 0)
    os._exit(0)


def die_with_parent() -> None:
    """Have the kernel kill us when our parent ends."""
    check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL), "ask to be killed with the parent")


def become_init(hostname: str) -> NoReturn:
    """Mount what a boot starts afresh with, make the prepared root our root, and become systemd."""
    os.setsid()
    socket.sethostname(hostname)
    mount_api_file_systems()
    os.chdir(ROOT)
    mount(".", "/", flags=MS_MOVE)
    os.chroot(".")
    for capability in CAPABILITIES_DROPPED.values():
        check(libc.prctl(PR_CAPBSET_DROP, capability), "drop a capability")
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    program = next(path for path in SYSTEMD if os.access(path, os.X_OK))
    # Any value of container= tells systemd not to touch the hardware and the kernel's settings.
    os.execve(program, [program, "--system", "--unit=multi-user.target"], {"container": "sandbox"})


def mount_api_file_systems() -> None:
    """As systemd-nspawn lays them out: /sys and /proc/sys read-only, harmless devices in /dev, an empty /run."""
    mount("proc", inside("/proc"), "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    bind(inside("/proc/sys"), inside("/proc/sys"), read_only=True)
    mount("sysfs", inside("/sys"), "sysfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("cgroup2", inside("/sys/fs/cgroup"), "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("tmpfs", inside("/run"), "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755")
    boot_id = inside("/run/boot-id")
    boot_id.write_text(f"{uuid.uuid4()}\n")
    bind(boot_id, inside("/proc/sys/kernel/random/boot_id"), read_only=True)
    boot_id.unlink()
    # Ours, since journald makes /dev/log; without /dev/kmsg, since the kernel's messages are the host's.
    dev = BENCH / "dev"
    dev.mkdir(exist_ok=True)
    mount("tmpfs", dev, "tmpfs", MS_NOSUID, "mode=0755")
    for name in DEVICES:
        (dev / name).touch()
        bind(Path("/dev") / name, dev / name)
    for name in ("pts", "shm"):
        (dev / name).mkdir()
    mount("devpts", dev / "pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5")
    mount("tmpfs", dev / "shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
    for name, target in links.items():
        (dev / name).symlink_to(target)
    mount(dev, inside("/dev"), flags=MS_MOVE)


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
        self.running = start(self.cgroup, self.hostname)
        return {"pid": self.running[1]}

    def kill(self) -> dict[str, int]:
        """Kill PID 1 and, by that, all in its namespace; return when the last is gone."""
        if self.running:
            waiter, init = self.running
            if os.waitpid(waiter, os.WNOHANG) == (0, 0):  # else PID 1 has ended by itself and its number may be reused
                os.kill(init, signal.SIGKILL)
                os.waitpid(waiter, 0)
            self.running = None
        if self.cgroup.exists():
            remove_cgroup(self.cgroup)
        return {}


def main() -> None:
    """Answer commands until standard input ends."""
    try:
        keeper = Keeper(Spec(**json.loads(sys.argv[1])))
    except (KeeperError, OSError) as error:
        print(json.dumps({"error": str(error)}), flush=True)
        sys.exit(1)
    try:
        for line in sys.stdin:
            answer: dict[str, int] | dict[str, str]
            try:
                answer = {"boot": keeper.boot, "kill": keeper.kill}[line.strip()]()
            except (KeeperError, OSError) as error:
                answer = {"error": str(error)}
            print(json.dumps(answer), flush=True)
    finally:
        keeper.kill()


if __name__ == "__main__":
    main()
