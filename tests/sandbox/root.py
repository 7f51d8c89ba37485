"""The root file system of a sandbox: an overlay of the host's, made a machine of its own.

`prepare` is called once, in a mount namespace of ours, and what it lays out outlives each boot;
`mount_api_file_systems` adds what every boot starts afresh with.
"""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

from tests.sandbox.linux import (
    CLONE_NEWNS,
    MS_BIND,
    MS_MOVE,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    bind,
    mount,
    unshare,
)

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


def inside(path: str) -> Path:
    """Where an absolute path of the sandbox is while its root is being prepared."""
    return ROOT / path.lstrip("/")


def prepare(spec: Spec) -> None:
    """Build the root file system in a mount namespace of our own. Done once; it outlives each boot."""
    unshare(CLONE_NEWNS)
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
