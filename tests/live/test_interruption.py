"""SIGKILL at every effect of a recovery: the daemon comes back and ends in the same place, with one step taken."""

from __future__ import annotations

import json
import subprocess

from tests.faults import fault
from tests.live.fleet import DAEMON, Fleet
from tests.live.test_recovery import SINGLE, with_environment
from tests.sandbox import SUPERVISOR

# What changes anything outside the process: a commit or a file reaching the disk, a rename, a program being run.
EFFECTS = "fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,vfork,clone,clone3"


def daemon(fleet: Fleet, prop: str) -> str:
    return fleet.box.run(["systemctl", "show", DAEMON, "--value", "-p", prop]).stdout.strip()


def settings(unit: str) -> list[str]:
    """A unit without its comments, which tell when something was learned."""
    return [line for line in unit.splitlines() if not line.startswith("#")]


def test_killed_at_each_effect_of_a_recovery(box):
    """The effects are found, not listed: the n-th system call that changes something is the daemon's last.

    1024 sequences do not fit, 512 do. Whatever n is, the unit ends ready at 512 after exactly one lowering.
    """
    fleet = Fleet(box)
    fleet.configure({"a": with_environment(SINGLE, SIM_OUTSIDE_GIB=2.4, SIM_START_S=1)})
    box.write(
        f"/etc/systemd/system/{DAEMON}.d/quick.conf", "[Service]\nRestartSec=100ms\n[Unit]\nStartLimitBurst=1000\n"
    )
    fleet.start_daemon()
    fleet.supervisor("apply")
    expected, kills = settings(fleet.unit("a")), 0

    for number in range(1, 100):
        before = len(fleet.steps("a"))
        fleet.supervisor("forget", "a")
        fleet.supervisor("apply", "--no-wait")
        killed = _kill_at(fleet, number)
        assert fleet.steps("a")[before:] == [(1024, 512)], (number, fleet.log())
        assert settings(fleet.unit("a")) == expected, number
        kills += killed
        if not killed:
            break

    assert not killed, "more effects than looked at"
    assert kills >= 12, "commit, write, sync, rename, reload, kill, reset, restart and the looks between are more"


def _kill_at(fleet: Fleet, number: int) -> bool:
    """Let a recovery run with the daemon killed at its `number`-th effect. Returns whether it came so far."""
    pid = daemon(fleet, "MainPID")
    inject = f"--inject={EFFECTS}:signal=SIGKILL:when={number}"
    tracer = fleet.box.popen(
        ["strace", "-qq", "-o", "/dev/null", f"--trace={EFFECTS}", inject, "-p", pid], stderr=subprocess.DEVNULL
    )
    try:
        fleet.wait_for("a", "ready")
        return daemon(fleet, "MainPID") != pid
    finally:
        tracer.terminate()
        tracer.wait(10)


@fault(
    "power fails while the unit is about to be killed",
    made="`systemctl` is replaced by a program that looks into the store first",
    promised="cap, attempt and history are committed before the unit is touched",
)
def test_a_remedy_is_committed_before_the_unit_is_touched(box, seen):
    """When the daemon asks for the kill, the store holds the cap, the attempt and the row of history already."""
    fleet = Fleet(box)
    looked = "/run/vllm-supervisor/at-the-kill"
    look = f'case "$1" in kill) [ -e {looked} ] || /usr/bin/env {SUPERVISOR} status --json >{looked};; esac'
    box.write("/usr/local/sbin/systemctl", f'#!/bin/sh\n{look}\nexec /usr/bin/systemctl "$@"\n', mode=0o755)
    fleet.configure({"a": with_environment(SINGLE, SIM_OUTSIDE_GIB=2.4)})
    fleet.supervisor("apply", "--no-wait")
    fleet.start_daemon()

    fleet.wait_for("a", "ready")

    told = json.loads(box.read(looked))["services"][0]
    assert (told["effective"], told["attempts"], told["last"]["kind"]) == (512, 1, "lowered")
    seen(f"at the kill the store holds {told['effective']}, attempt {told['attempts']}, and the row in the history")
