"""Each line of the threat model, and each thing the design relies on, names its tests, and they are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

CLONE = Path(__file__).parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("| ").split(" | ")]
    for line in (CLONE / "docs/threat-model.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| ---")
]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def tables() -> dict[str, list[list[str]]]:
    """The rows of each table that has a column for tests, by its first heading."""
    found: dict[str, list[list[str]]] = {}
    heading, wanted = "", False
    for row in ROWS:
        if row[0] in ("who", "entry", "kept", "key"):
            heading, wanted = f"{row[0]} {len(found)}", row[-1] == "test"
        elif wanted:
            found.setdefault(heading, []).append(row)
    return found


def test_every_line_names_a_test() -> None:
    rows = [row for table in tables().values() for row in table]

    assert len(rows) > 25
    assert [row[0] for row in rows if not NAMED.search(row[-1])] == []


def test_every_named_test_is_there() -> None:
    named = {found for row in ROWS for found in NAMED.findall(" ".join(row))}

    assert len(named) > 25
    assert [f"{path}::{name}" for path, name in sorted(named) if name not in functions(path)] == []


def test_each_thing_relied_on_names_a_test() -> None:
    """In docs/design.md, where every point of a list of its own is about systemd and journald."""
    text = (CLONE / "docs/design.md").read_text().partition("## What it relies on")[2].partition("\n## ")[0]
    points = text.split("\n- ")[1:]
    named = [NAMED.findall(point) for point in points]

    assert len(points) > 8
    assert [point for point, found in zip(points, named, strict=True) if not found] == []
    assert [f"{path}::{name}" for each in named for path, name in each if name not in functions(path)] == []


def functions(path: str) -> set[str]:
    """The test functions of a module; none where there is no such file."""
    file = CLONE / path
    tree = ast.parse(file.read_text()) if file.exists() else ast.Module([], [])
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
