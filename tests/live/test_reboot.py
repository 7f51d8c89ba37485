"""The host goes down in the middle, and comes back: what was learned is kept, what was begun is finished."""

from __future__ import annotations

from tests.live.fleet import DAEMON, Fleet
from tests.live.test_recovery import SINGLE, with_environment


def test_a_crash_loop_from_before_a_reboot(box):
    """It failed while no daemon was there; after the reboot both start, and it is treated."""
    fleet = Fleet(box)
    fleet.configure({"a": SINGLE})
    fleet.supervisor("apply", "--no-wait")
    box.wait_until(lambda: fleet.show("a", "SubState") == "auto-restart", "a failed start")
    box.run(["systemctl", "enable", DAEMON], check=True)

    box.reboot()

    fleet.wait_for("a", "ready")
    assert fleet.steps("a") == [(1024, 512), (512, 256)]


def test_power_cut_right_after_the_decision(box):
    """The cap is on the disk; the unit may or may not be. No value is tried again, and none is skipped."""
    fleet = Fleet(box)
    fleet.configure({"a": with_environment(SINGLE, SIM_START_S=1)})
    fleet.start_daemon()
    box.run(["systemctl", "enable", DAEMON], check=True)
    fleet.supervisor("apply", "--no-wait")
    box.wait_until(lambda: fleet.steps("a"), "the first lowering")

    box.reboot(power_cut=True)

    fleet.wait_for("a", "ready")
    assert fleet.steps("a") == [(1024, 512), (512, 256)]


def test_what_was_learned_outlives_a_reboot(box):
    """It comes up at the learned value at once."""
    fleet = Fleet(box)
    fleet.configure({"a": SINGLE})
    fleet.start_daemon()
    fleet.supervisor("apply")
    before = fleet.unit("a")

    box.reboot()

    box.run(["systemctl", "start", DAEMON], check=True)
    fleet.wait_for("a", "ready")
    assert fleet.unit("a") == before
    assert fleet.steps("a") == [(1024, 512), (512, 256)]
