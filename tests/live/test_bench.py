"""What `./dev bench` runs, with tiny numbers, so that it does not rot; the numbers themselves mean nothing here."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.sandbox import CLONE, throughput
from tests.sandbox.throughput import JUDGED_FROM, Row, has_fail2ban


def bench(*arguments: str) -> str:
    argv = [sys.executable, "-m", "tests.sandbox.bench", *arguments]
    return subprocess.run(argv, cwd=CLONE, capture_output=True, text=True, check=True, timeout=300).stdout


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
    # No ratio is printed for nothing: each has a bound, which the exit code of a full run tells.
    assert [line for line in lines if " x " in line and "must be" not in line] == []


@pytest.mark.parametrize(
    ("bound", "ratio", "code"),
    [("at_least", 3.9, 1), ("at_least", 4.0, 0), ("at_most", 1.5, 0), ("at_most", 1.6, 1), ("at_most", None, 0)],
)
def test_a_ratio_beyond_its_bound_ends_in_1(bound: str, ratio: float | None, code: int) -> None:
    """Among others that hold; with too few entries nothing is judged."""
    limit = {"at_least": 4.0, "at_most": 1.5}[bound]
    rows = [Row("ours", 1, 1), Row("this one", 1, 1, ratio, **{bound: limit}), Row("a third", 1, 1, 9, at_least=1)]

    assert throughput.exit_code(rows, JUDGED_FROM) == code
    assert throughput.exit_code(rows, JUDGED_FROM - 1) == 0


def test_many_failures_at_once_are_measured() -> None:
    """Two services, which end ready at 512."""
    said = bench("load", "2", "--entries", "50")

    assert re.search(r"^ +2( +\d+\.\d+){4}( +\d+){2}( +\d+\.\d+){2}$", said, re.MULTILINE), said
    assert "processor time for each of 2: 1.00 times that for each of 2" in said


def test_what_watching_costs_is_measured() -> None:
    """For a second; others of the trade only where they are installed."""
    said = bench("idle", "--seconds", "1")

    number = r"( +\d+\.\d+){4}$"
    assert re.search(rf"^ours {number}", said, re.MULTILINE), said
    for rate in ("100", "10,000"):
        assert re.search(rf"^ours, while another unit writes {rate} lines/s{number}", said, re.MULTILINE), said
    assert "nothing is judged" in said
