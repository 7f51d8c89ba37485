"""The sandbox itself, and the facts about systemd and journald that the product rests on."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.live.conftest import Boot
from tests.sandbox import CLONE, PYTHON, SUPERVISOR, Sandbox, SandboxError
from vllm_supervisor import __version__

BOOT_ID = "/proc/sys/kernel/random/boot_id"
LINES = 200_000


def unit(box: Sandbox, name: str, **service: str) -> None:
    """Write a unit with these keys in its [Service] section and make it known."""
    text = "[Service]\n" + "".join(f"{key}={value}\n" for key, value in service.items())
    box.write(f"/etc/systemd/system/{name}.service", text)
    box.run(["systemctl", "daemon-reload"], check=True)


def show(box: Sandbox, name: str, key: str) -> str:
    return box.run(["systemctl", "show", "--value", f"--property={key}", name], check=True).stdout.strip()


# The sandbox.


def test_it_is_a_machine_of_its_own(box: Sandbox) -> None:
    """Every unit of the boot came up, and what is written inside stays inside."""
    box.write("/etc/written-inside", "x")

    assert box.run(["systemctl", "is-system-running"]).stdout.strip() == "running"
    assert box.boot_s < 5  # 0.25 s on an idle machine; a sandbox per test is affordable
    assert not Path("/etc/written-inside").exists()
    assert not Path(f"/proc/{box.pid}/root/dev/kmsg").exists()


def test_two_at_once_know_nothing_of_each_other(boot: Boot) -> None:
    """Tests that run in parallel may use the same unit names and ports, and the host notices neither."""
    one, other = boot(), boot()
    for kind in ("cgroup", "ipc", "mnt", "net", "pid", "uts"):
        link = f"/proc/self/ns/{kind}"
        seen = {str(Path(link).readlink()), *(box.run(["readlink", link]).stdout.strip() for box in (one, other))}
        assert len(seen) == 3, seen
    for box in (one, other):
        unit(box, "same", ExecStart="/bin/sleep infinity")
    one.run(["systemctl", "start", "same"], check=True)

    assert (show(one, "same", "ActiveState"), show(other, "same", "ActiveState")) == ("active", "inactive")


def test_a_service_reaches_the_interpreter_and_the_package(box: Sandbox) -> None:
    """Also where the clone is in /tmp, which it does not see, and Python in a home that is closed to others."""
    where = f"{PYTHON} -c 'import vllm_supervisor; print(vllm_supervisor.__file__)'"
    unit(box, "reaches", User="vllm", PrivateTmp="yes", ProtectHome="read-only", ExecStart=where)
    unit(box, "runs", User="vllm", PrivateTmp="yes", ProtectHome="read-only", ExecStart=f"{SUPERVISOR} --version")
    box.run(["systemctl", "start", "--wait", "reaches", "runs"], check=True)

    said = [entry["MESSAGE"] for entry in box.journal("--unit=reaches", "--unit=runs", "_TRANSPORT=stdout")]
    assert sorted(said) == ["/opt/vllm-supervisor/src/vllm_supervisor/__init__.py", f"vllm-supervisor {__version__}"]


def test_a_command_gets_its_signals_and_is_gone_after_its_time(box: Sandbox) -> None:
    """Neither SIGTERM nor a timeout leaves a command behind in the sandbox."""
    command = box.popen(
        ["sh", "-c", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done"], stdout=subprocess.PIPE
    )
    with command:
        assert command.stdout is not None
        assert command.stdout.readline() == "ready\n"
        command.terminate()
        assert command.wait(5) == 7
    with pytest.raises(subprocess.TimeoutExpired):
        box.run(["sleep", "123"], timeout=0.2)

    assert box.run(["pgrep", "-x", "sleep"]).stdout == ""


def test_a_small_file_system_fills_up(boot: Boot) -> None:
    """So that a full disk can be tested; it survives a reboot, as a disk does."""
    box = boot(tmpfs={"/var/lib/small": "1M"})
    box.write("/var/lib/small/kept", "kept")

    assert "No space left" in box.run(["dd", "if=/dev/zero", "of=/var/lib/small/big", "bs=64K"]).stderr
    box.reboot(power_cut=True)
    assert box.read("/var/lib/small/kept") == "kept"


@pytest.mark.parametrize("power_cut", [False, True], ids=["in-order", "power-cut"])
def test_a_reboot_keeps_the_journal_and_the_machine_but_not_the_boot(box: Sandbox, *, power_cut: bool) -> None:
    """The boot ID is what tells "before the reboot" from "since"."""
    before = box.read(BOOT_ID), box.read("/etc/machine-id")
    box.write("/run/gone", "")
    box.write(
        "/etc/systemd/system/wanted.service",
        "[Service]\nExecStart=/bin/echo up\n[Install]\nWantedBy=multi-user.target\n",
    )
    box.run(["systemctl", "enable", "--now", "wanted"], check=True)
    box.journal()  # what journald has not yet written, a power cut may take

    box.reboot(power_cut=power_cut)

    assert box.read(BOOT_ID) != before[0]
    assert box.read("/etc/machine-id") == before[1]
    with pytest.raises(SandboxError, match="No such file"):
        box.read("/run/gone")
    boots = [entry["_BOOT_ID"] for entry in box.journal("_SYSTEMD_UNIT=wanted.service", "_TRANSPORT=stdout")]
    assert boots == [text.strip().replace("-", "") for text in (before[0], box.read(BOOT_ID))]


def test_nothing_is_left_when_the_test_runner_is_killed() -> None:
    """Killed with SIGKILL it cleans up nothing; the sandbox ends all the same."""
    program = textwrap.dedent("""
        import os, signal
        from tests.sandbox import Sandbox
        with Sandbox() as box:
            print(box.pid, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    done = subprocess.run([sys.executable, "-c", program], cwd=CLONE, capture_output=True, text=True, timeout=30)
    assert done.returncode == -9, done.stderr

    deadline = time.monotonic() + 5
    while Path(f"/proc/{done.stdout.strip()}").exists():
        assert time.monotonic() < deadline, "PID 1 of the sandbox still runs"
        time.sleep(0.01)


# systemd and journald.


def test_log_extra_fields_stamp_each_line_of_a_run(box: Sandbox) -> None:
    """A new value takes effect with the next start after a reload: a line carries the value it ran with."""
    for value in ("1024", "512"):
        unit(
            box, "stamped", ExecStart="/bin/echo out of memory", LogExtraFields=f"VLLM_SUPERVISOR_MAX_NUM_SEQS={value}"
        )
        box.run(["systemctl", "start", "--wait", "stamped"], check=True)

    lines = box.journal("_SYSTEMD_UNIT=stamped.service", "_TRANSPORT=stdout")

    assert [(line["MESSAGE"], line["VLLM_SUPERVISOR_MAX_NUM_SEQS"]) for line in lines] == [
        ("out of memory", "1024"),
        ("out of memory", "512"),
    ]


@pytest.mark.parametrize(
    ("limit", "complete"),
    [
        pytest.param({"LogRateLimitIntervalSec": "0"}, False, id="zero-does-not-switch-it-off"),
        pytest.param(
            {"LogRateLimitIntervalSec": "1s", "LogRateLimitBurst": "1000000"}, True, id="a-wide-limit-loses-nothing"
        ),
    ],
)
def test_rate_limit_of_a_unit(box: Sandbox, limit: dict[str, str], *, complete: bool) -> None:
    """An interval of 0 falls back on journald's own limit, and then the line that matters can be among the lost."""
    unit(box, "flood", ExecStart=f"/usr/bin/seq {LINES}", **limit)
    box.run(["systemctl", "start", "--wait", "flood"], check=True)
    box.run(["journalctl", "--sync"], check=True)
    count = "journalctl _SYSTEMD_UNIT=flood.service _TRANSPORT=stdout --output=cat --no-pager | wc -l"
    arrived = int(box.run(["sh", "-c", count], check=True).stdout)

    assert (arrived == LINES) is complete
    # No word of a loss either: journald tells with the unit's next line after the interval, and not even then always.
    assert box.journal("MESSAGE_ID=a596d6fe7bfa4994828e72309e95d61e") == []


@pytest.mark.parametrize(
    ("options", "code"), [([], 0), (["--recursive-errors=no"], 1)], ids=["warns-only", "recursive-errors-no-fails"]
)
def test_verify_of_a_misspelt_key(box: Sandbox, options: list[str], code: int) -> None:
    """Without `--recursive-errors=no` the exit code hides what verify has found."""
    box.write("/etc/systemd/system/typo.service", "[Service]\nExecStart=/bin/true\nRestartSecs=5\n")
    done = box.run(["systemd-analyze", "verify", *options, "/etc/systemd/system/typo.service"])

    assert done.returncode == code
    assert "'RestartSecs'" in done.stderr


def test_root_sets_the_status_of_a_process_that_knows_nothing_of_systemd(box: Sandbox) -> None:
    """With the PID of the main process as the sender's credential, NotifyAccess=main lets it in."""
    unit(box, "served", Type="exec", NotifyAccess="main", ExecStart="/bin/sleep infinity")
    box.run(["systemctl", "start", "served"], check=True)
    send = textwrap.dedent("""
        import socket, struct, sys
        credentials = struct.pack("3i", int(sys.argv[1]), 0, 0)
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notify.connect("/run/systemd/notify")
        notify.sendmsg([b"STATUS=Loading weights"], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, credentials)])
    """)
    box.run([PYTHON, "-c", send, show(box, "served", "MainPID")], check=True)

    box.wait_until(lambda: show(box, "served", "StatusText") == "Loading weights", "the status has arrived")
    assert 'Status: "Loading weights"' in box.run(["systemctl", "status", "served"]).stdout


def test_reset_failed_clears_the_start_counter_of_an_active_unit(box: Sandbox) -> None:
    """Otherwise crashes hours apart would add up to a start limit that is meant for failing starts."""
    box.write(
        "/etc/systemd/system/flaky.service",
        "[Unit]\nStartLimitBurst=3\nStartLimitIntervalSec=1h\n[Service]\nExecStart=/bin/sleep infinity\n",
    )
    for _ in range(3):
        box.run(["systemctl", "restart", "flaky"], check=True)

    box.run(["systemctl", "reset-failed", "flaky"], check=True)

    assert [box.run(["systemctl", "restart", "flaky"]).returncode for _ in range(4)] == [0, 0, 0, 1]
