"""What systemd does that we rely on. docs/design.md names these tests, and others that hold such a thing."""

from __future__ import annotations

from tests.live.test_sandbox import show, unit
from tests.sandbox import Sandbox


def states(box: Sandbox, name: str) -> tuple[str, str]:
    return show(box, name, "ActiveState"), show(box, name, "SubState")


def link(box: Sandbox, name: str) -> None:
    """Refer to a unit as `systemctl enable` does."""
    wants = "/etc/systemd/system/multi-user.target.wants"
    box.run(["sh", "-c", f"mkdir -p {wants} && ln -s ../{name}.service {wants}/"], check=True)
    box.run(["systemctl", "daemon-reload"], check=True)


def wait_for(box: Sandbox, name: str, *wanted: str) -> None:
    box.wait_until(lambda: states(box, name) == wanted, f"{name} {wanted}")


def test_a_unit_starts_until_its_gate_has_ended(box: Sandbox) -> None:
    """Though its process runs, and even when that has ended meanwhile."""
    gate = "/bin/sh -c 'while [ ! -e /run/open ]; do sleep 0.05; done'"
    unit(box, "gated", Type="exec", ExecStart="/bin/sleep infinity", ExecStartPost=gate)
    box.run(["systemctl", "start", "--no-block", "gated"], check=True)
    wait_for(box, "gated", "activating", "start-post")
    box.run(["systemctl", "kill", "--kill-who=main", "--signal=KILL", "gated"], check=True)
    box.wait_until(lambda: show(box, "gated", "MainPID") == "0", "the end of its process")
    assert states(box, "gated") == ("activating", "start-post")

    box.write("/run/open", "")

    wait_for(box, "gated", "failed", "failed")
    box.run(["systemctl", "start", "gated"], check=True)
    assert states(box, "gated") == ("active", "running")


def test_a_unit_that_nothing_refers_to_is_forgotten(box: Sandbox) -> None:
    """With its invocation, once it has stopped; a link that systemd has read keeps it."""
    for name in ("lost", "kept"):
        unit(box, name, ExecStart="/bin/sleep infinity")
    link(box, "kept")
    box.run(["systemctl", "start", "lost", "kept"], check=True)
    assert show(box, "lost", "InvocationID")

    box.run(["systemctl", "stop", "lost", "kept"], check=True)

    box.wait_until(lambda: not show(box, "lost", "InvocationID"), "the unit to be forgotten")
    assert show(box, "kept", "InvocationID")


def failing(box: Sandbox, name: str) -> None:
    """A unit that failed and waits for an hour to be started again."""
    command = "/bin/sh -c 'test -e /run/works && exec sleep infinity'"
    unit(box, name, ExecStart=command, Restart="on-failure", RestartSec="1h")
    box.run(["systemctl", "start", "--no-block", name], check=True)
    wait_for(box, name, "activating", "auto-restart")


def test_a_restart_does_not_wait_for_the_automatic_one(box: Sandbox) -> None:
    """A start does; and to try a restart starts nothing that was stopped."""
    failing(box, "waits")
    failing(box, "goes")
    box.write("/run/works", "")

    box.run(["systemctl", "start", "--no-block", "waits"], check=True)
    box.run(["systemctl", "try-restart", "goes"], check=True)

    assert states(box, "goes") == ("active", "running")
    assert states(box, "waits") == ("activating", "auto-restart")
    assert "waits.service start" in " ".join(box.run(["systemctl", "list-jobs"]).stdout.split())
    box.run(["systemctl", "stop", "goes"], check=True)
    box.run(["systemctl", "try-restart", "goes"], check=True)
    assert show(box, "goes", "ActiveState") == "inactive"


def test_a_stop_between_two_starts_keeps_the_result(box: Sandbox) -> None:
    """Of the first; a failure that was reset leaves none."""
    for name in ("stopped", "reset"):
        failing(box, name)
        link(box, name)

    box.run(["systemctl", "stop", "stopped"], check=True)
    box.run(["systemctl", "reset-failed", "reset"], check=True)
    box.run(["systemctl", "stop", "reset"], check=True)

    assert (show(box, "stopped", "Result"), show(box, "reset", "Result")) == ("exit-code", "success")
