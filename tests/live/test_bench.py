"""What `./dev bench` runs, with tiny numbers, so that it does not rot; the numbers themselves mean nothing here."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.sandbox import CLONE
from tests.sandbox.throughput import has_fail2ban


def bench(*arguments: str) -> str:
    argv = [sys.executable, "-m", "tests.sandbox.bench", *arguments]
    return subprocess.run(argv, cwd=CLONE, capture_output=True, text=True, check=True, timeout=120).stdout


def test_a_recovery_is_measured() -> None:
    """One recovery, from the error line to the new start."""
    assert re.search(r"1 runs: median \d+\.\d{3} s, maximum", bench("recovery", "--runs", "1"))


def test_readers_of_a_journal_are_compared() -> None:
    """A row for each reader and each number of rules; fail2ban only where it is installed."""
    lines = bench("throughput", "--entries", "2000", "--rounds", "1").splitlines()
    rows = {re.split(r"  +", line)[0]: line for line in lines}

    measured = {name for name, line in rows.items() if re.search(r" m?s +[\d,]+", line)}
    readers = {"ours", "journalctl -o cat", "python-systemd's Reader", "ours, with as much of another unit"}
    assert measured - {"fail2ban-regex"} == readers | {
        f"{log}, {count} rules" for log in ("a start that fails", "a healthy start") for count in ("10", "100", "1,000")
    }
    assert ("fail2ban-regex" in measured) is has_fail2ban()
    assert any("left out" in line for line in lines) is not has_fail2ban()
