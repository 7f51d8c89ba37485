"""The page of faults: each row is written by the test that makes the fault, and held by it from then on.

    @fault("the disk is full", made="a file system of 1 MiB, filled", promised="nothing is touched until there is room")
    def test_a_full_disk(fleet, seen):
        ...
        seen(f"one step, {tried} to {to}; the same daemon")

What was seen is put together from what the test measured, and holds nothing that differs from one run to the next: the
page says the same, or the test fails. UPDATE_EXPECTED=1 writes the rows of the tests that run.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "faults.md"

SECTIONS = {
    "test_interruption": "Killed at every step",
    "test_races": "Two hands on one unit",
    "test_host_faults": "The host misbehaves",
    "test_service_faults": "The service misbehaves",
    "test_many": "Load",
    "test_intruders": "Hostile input",
    "test_operators": "People without root",
    "test_planted": "Planted faults",
}
"""Modules that hold faults, and their headings, in the order of the page."""

HEAD = """# Faults

What was done to it on a real systemd and journald, what was promised, and what was seen. Each row is written by the
test that makes the fault, which fails when it sees anything else; `./dev test` makes them all.
"""
_TABLE = "| fault | how it is made | what is promised | what was seen |\n| --- | --- | --- | --- |\n"


class Row(NamedTuple):
    """One fault; no cell holds a line break or a bar."""

    section: str
    title: str
    made: str
    promised: str
    seen: str


def fault(title: str, *, made: str, promised: str) -> pytest.MarkDecorator:
    """Mark a test as one that makes a fault; `{name}` in the title is a parameter of the test."""
    return pytest.mark.fault(title=title, made=made, promised=promised)


def recorder(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """What a test calls with what it saw, once, at its end."""

    def seen(text: str) -> None:
        row = row_of(request.node, text)
        assert not any(re.search(r"[|\n]", cell) for cell in row), row
        if os.environ.get("UPDATE_EXPECTED"):
            _write(lambda rows: [*(r for r in rows if r[:2] != row[:2]), row])
        assert row in rows(), f"{row} is not on the page; UPDATE_EXPECTED=1 writes {PAGE}"

    return seen


def row_of(item: pytest.Item, seen: str = "") -> Row:
    """The row of a test that is marked with `fault`."""
    mark = item.get_closest_marker("fault")
    assert mark is not None, f"{item.name} is not marked with a fault"
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    title = mark.kwargs["title"].format(**parameters)
    return Row(SECTIONS[item.path.stem], title, mark.kwargs["made"], mark.kwargs["promised"], seen)


def keep_only(wanted: Iterable[Row]) -> None:
    """Drop the rows whose test is gone."""
    keys = {row[:2] for row in wanted}
    _write(lambda rows: [row for row in rows if row[:2] in keys])


def rows() -> list[Row]:
    """The rows on the page."""
    found, section = [], ""
    for line in PAGE.read_text(encoding="utf-8").splitlines() if PAGE.exists() else []:
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("| ") and section and not line.startswith(("| fault |", "| --- |")):
            title, made, promised, seen = line.removeprefix("| ").removesuffix(" |").split(" | ")
            found.append(Row(section, title, made, promised, seen))
    return found


def page(rows: Iterable[Row]) -> str:
    """The whole page."""
    text, everything = HEAD, sorted(rows)
    for section in SECTIONS.values():
        if mine := [row for row in everything if row.section == section]:
            text += f"\n## {section}\n\n{_TABLE}" + "".join(f"| {' | '.join(row[1:])} |\n" for row in mine)
    return text


def _write(change: Callable[[list[Row]], list[Row]]) -> None:
    """Change the page, one process at a time."""
    with PAGE.parent.joinpath("rules.md").open() as lock:  # a file that is always there
        fcntl.flock(lock, fcntl.LOCK_EX)
        PAGE.write_text(page(change(rows())), encoding="utf-8")
