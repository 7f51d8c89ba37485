"""The sandbox itself, and the facts about systemd and journald that the product rests on."""

from __future__ import annotations

from tests.sandbox import Sandbox


def test_it_runs(box: Sandbox) -> None:
    """Every unit of the boot came up, fast enough for a sandbox per test."""
    assert box.run(["systemctl", "is-system-running"]).stdout.strip() == "running"
    assert box.boot_s < 5  # 0.25 s on an idle machine
